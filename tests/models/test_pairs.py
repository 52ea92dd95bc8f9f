"""Prepared pairs: each distinct one is found once, in the order they come in; taken by rows, refused with reasons."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from tiny import PAIRS

from raycase.encoder.prompts import TokenSpan, prompt_set
from raycase.encoder.table import ENCODERS
from raycase.models.pairs import CONDITION, SENTENCE, Indexed, prepare
from raycase.models.pairs import SENTENCE as UNCONDITIONAL
from raycase.names import PromptStyle


@pytest.fixture
def spec(tiny_model):
    return replace(ENCODERS["minilm"], source=str(tiny_model), max_tokens=64)


@pytest.mark.parametrize("count", [0, 60])
@pytest.mark.parametrize("conditional", [True, False])
def test_distinct_pairs_are_those_of_a_dictionary(spec, count, conditional):
    random = np.random.default_rng(0)
    sentences = [f"dog {i}" for i in random.integers(0, 7, count)]
    conditions = [f"cat {i}" for i in random.integers(0, 4, count)] if conditional else None
    plain = prepare(spec, sentences, conditions, of_sentences=[SENTENCE], of_conditions=[CONDITION])
    texts = list(zip(sentences, conditions or [""] * count, strict=True))
    pairs = list(dict.fromkeys(texts))
    known = list(dict.fromkeys(s for s, _ in pairs)), list(dict.fromkeys(c for _, c in pairs))
    assert plain.rows.tolist() == [pairs.index(text) for text in texts]
    assert plain.conditions == (known[1] if conditional else None)
    assert plain.sentence.tolist() == [known[0].index(s) for s, _ in pairs]
    assert plain.condition.tolist() == [known[1].index(c) for _, c in pairs]
    # values in any order, one of them unused
    values = [f"dog {i}" for i in random.permutation(8)], [f"cat {i}" for i in random.permutation(5)]
    given = zip(values, (sentences, conditions or []), strict=True)
    indexed = [Indexed(values=v, codes=np.array([v.index(t) for t in ts], np.int64)) for v, ts in given]
    under = indexed[1] if conditional else None
    again = prepare(spec, indexed[0], under, of_sentences=[SENTENCE], of_conditions=[CONDITION])
    assert again.to_bytes() == plain.to_bytes()


@pytest.fixture
def prepared_of(tmp_path):
    """Pairs prepared with prompts of every kind."""
    tiny.save_tokenizer(tmp_path, tiny.wordpiece())
    spec = replace(ENCODERS["minilm"], source=str(tmp_path), max_tokens=12)
    prompts = prompt_set(PromptStyle.CONCAT_SC, span=TokenSpan.CONDITION)

    def prepared(pairs, conditional=True):
        texts, conditions = map(list, zip(*pairs, strict=True))
        kinds = {"of_pairs": [prompts.pair if conditional else UNCONDITIONAL], "of_sentences": [UNCONDITIONAL]}
        return prepare(spec, texts, conditions if conditional else None, **kinds, of_conditions=[prompts.base])

    return prepared


def of_each(prepared):
    """Of every pair, in order: its condition and prompts, and what became of them; places of the distinct ones do not
    show."""
    reasons, truncated, found = prepared.reasons, prepared.truncated, []
    for row in prepared.rows.tolist():
        s, c = prepared.sentence[row], prepared.condition[row]
        prompts = [(batch, at) for kind, at in ((prepared.of_pairs, row), (prepared.of_sentences, s)) for batch in kind]
        prompts += [(batch, c) for batch in prepared.of_conditions]
        ids = [batch.sequences.take(np.array([at])).flat.tolist() for batch, at in prompts]
        tokens = [(i, b.start[at].tolist(), b.end[at].tolist()) for i, (b, at) in zip(ids, prompts, strict=True)]
        found.append((prepared.conditions and prepared.conditions[c], tokens, reasons[row], bool(truncated[row])))
    return found


@pytest.mark.parametrize("conditional", [True, False])
def test_some_pairs_are_what_they_would_be_if_prepared_alone(prepared_of, conditional):
    every = prepared_of(PAIRS, conditional)
    for rows in ([0], [5, 3], [80, 2, 2, 41, 80], list(range(len(PAIRS)))[::-1], [9 * 8, 9 * 9 + 3]):
        taken, anew = every.take(np.array(rows)), prepared_of([PAIRS[i] for i in rows], conditional)
        assert of_each(taken) == of_each(anew)
        for kind in ("of_pairs", "of_sentences", "of_conditions"):
            assert [len(b) for b in getattr(taken, kind)] == [len(b) for b in getattr(anew, kind)]
    again = every.take(np.array([80, 2, 41])).take(np.array([2, 0]))
    assert of_each(again) == of_each(prepared_of([PAIRS[41], PAIRS[80]], conditional))
