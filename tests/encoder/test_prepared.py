"""Prepared pairs: taken by rows, refused with a reason, and sent as bytes."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from tiny import PAIRS, batches_equal

from raycase.data.schema import Reason
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import PromptStyle, TokenSpan, prompt_set
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.systems.pairs import prepare


def test_prepared_pairs_travel_as_bytes(tokenizer_of):
    batch = tokenizer_of("qwen").pairs([prompt_set(PromptStyle.CONCAT_SC, span=TokenSpan.CONDITION).pair], PAIRS)
    one = TokenBatch.of([Tokens(ids=[1, 2], start=0, end=2)])
    for conditions, pairs, bases in ((["naïve", "😀"], [batch, one], [one]), (None, [one], [])):
        made = Prepared(
            rows=np.array([0, 1, 0]),
            conditions=conditions,
            sentence=np.array([0, 1]),
            condition=np.array([1, 0]),
            pairs=pairs,
            alone=[one, batch],
            bases=bases,
        )
        found = Prepared.from_bytes(made.to_bytes())
        assert (found.conditions, found.rows.tolist(), found.condition.tolist()) == (conditions, [0, 1, 0], [1, 0])
        assert found.sentence.tolist() == [0, 1]
        for a, b in zip([*found.pairs, *found.alone, *found.bases], [*pairs, one, batch, *bases], strict=True):
            batches_equal(a, b)


@pytest.fixture
def prepared_of(tmp_path):
    """Pairs prepared with prompts of every kind."""
    tiny.save_tokenizer(tmp_path, tiny.wordpiece())
    spec = replace(ENCODERS["minilm"], source=str(tmp_path), max_tokens=12)
    prompts = prompt_set(PromptStyle.CONCAT_SC, span=TokenSpan.CONDITION)

    def prepared(pairs, conditional=True):
        texts, conditions = map(list, zip(*pairs, strict=True))
        kinds = {"pairs": [prompts.pair if conditional else prompts.plain], "alone": [prompts.plain]}
        return prepare(spec, texts, conditions if conditional else None, **kinds, bases=[prompts.base])

    return prepared


def of_each(prepared):
    """Of every pair, in order: its condition and prompts, and what became of them; places of the distinct ones do not
    show."""
    reasons, truncated, found = prepared.reasons, prepared.truncated, []
    for row in prepared.rows.tolist():
        s, c = prepared.sentence[row], prepared.condition[row]
        prompts = [(batch, at) for kind, at in ((prepared.pairs, row), (prepared.alone, s)) for batch in kind]
        prompts += [(batch, c) for batch in prepared.bases]
        tokens = [
            (batch.ids(np.array([at])).flat.tolist(), batch.start[at].tolist(), batch.end[at].tolist())
            for batch, at in prompts
        ]
        found.append((prepared.conditions and prepared.conditions[c], tokens, reasons[row], bool(truncated[row])))
    return found


@pytest.mark.parametrize("conditional", [True, False])
def test_some_pairs_are_what_they_would_be_if_prepared_alone(prepared_of, conditional):
    every = prepared_of(PAIRS, conditional)
    for rows in ([0], [5, 3], [80, 2, 2, 41, 80], list(range(len(PAIRS)))[::-1], [9 * 8, 9 * 9 + 3]):
        taken, anew = every.take(np.array(rows)), prepared_of([PAIRS[i] for i in rows], conditional)
        assert of_each(taken) == of_each(anew)
        for kind in ("pairs", "alone", "bases"):
            assert [len(b) for b in getattr(taken, kind)] == [len(b) for b in getattr(anew, kind)]
    again = every.take(np.array([80, 2, 41])).take(np.array([2, 0]))
    assert of_each(again) == of_each(prepared_of([PAIRS[41], PAIRS[80]], conditional))


def test_the_first_prompt_that_is_refused_says_why():
    """Pairs before sentences before conditions."""
    reasons = [Reason.NO_ROOM, Reason.EMPTY_TEXT, Reason.EMPTY_CONDITION]
    whole = Tokens(ids=[1], start=0, end=1)

    def batch(*refused):
        return TokenBatch.of([replace(whole, refused=reason) for reason in refused])

    no_room, empty_text, empty_condition = reasons
    made = Prepared(
        rows=np.arange(5),
        conditions=["a", "b"],
        sentence=np.array([0, 1, 1, 0, 0]),
        condition=np.array([1, 1, 0, 0, 1]),
        pairs=[batch(None, None, None, None, None), batch(no_room, None, None, None, None)],
        alone=[batch(None, empty_text)],
        bases=[batch(None, empty_condition)],
    )
    assert made.reasons == [no_room, empty_text, empty_text, None, empty_condition]
    cut = replace(whole, truncated=True)
    made = replace(made, pairs=[TokenBatch.of([whole, whole, whole, whole, cut])], alone=[TokenBatch.of([whole, cut])])
    assert made.truncated.tolist() == [False, True, True, False, True]
