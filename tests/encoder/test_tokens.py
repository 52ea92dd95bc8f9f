"""Sentence and condition tokenised apart give what the whole prompt gives, or are not tokenised apart."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import tiny
from tokenizers import pre_tokenizers

from raycase.data.schema import Reason
from raycase.encoder import tokens
from raycase.encoder.loading import load_tokenizer
from raycase.encoder.prompts import PromptStyle, Span, Template, prompt_set
from raycase.encoder.table import ENCODERS
from raycase.encoder.tokens import REASONS, Prepared, TokenBatch, Tokens, boundary
from raycase.systems.pairs import prepare

SENTENCES = [
    "A woman in a red dress",
    "café naïve.",
    "Two people play (with a dog)!",
    "100 % 😀",
    "北京 東京",
    "  spaces around \n",
    "it's",
    "a",
    "the word " * 60,
    "\u200b",
]
CONDITIONS = ["color of the dress", "number", "'s color?", "7", "e\u0301t\u00e9", "😀", "(a)", ": colon", "\u200d"]
PAIRS = [(s, c) for s in SENTENCES for c in CONDITIONS]
STYLES = [PromptStyle.COND, PromptStyle.SENT, PromptStyle.CONCAT_CS, PromptStyle.CONCAT_SC, PromptStyle.QUESTION]
QWEN3 = ENCODERS["qwen3-embedding-0.6b"].template
APART = ["wordpiece", "byte-level", "qwen", "unigram"]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """A tokenizer by family."""

    def load(family, max_tokens=120, **options):
        folder = tmp_path_factory.mktemp(family)
        tiny.save_tokenizer(folder, tiny.TOKENIZERS[family](**options))
        end = {"qwen": "<|endoftext|>", "mistral": "</s>"}.get(family)
        return load_tokenizer(replace(ENCODERS["minilm"], source=str(folder), max_tokens=max_tokens, end_token=end))

    return load


def batches_equal(found, wanted):
    rows = np.arange(len(wanted))
    assert len(found) == len(wanted)
    assert found.lengths.tolist() == wanted.lengths.tolist()
    assert found.ids(rows).flat.tolist() == wanted.ids(rows).flat.tolist()
    for name in ("start", "end", "truncated", "refused"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


def counted(tokenizer):
    """Count the texts that go through a tokenizer."""
    seen, original = [], tokenizer.tokenizer

    class Counting:
        def __getattr__(self, name):
            return getattr(original, name)

        def encode_batch(self, texts, **options):
            seen.extend(texts)
            return original.encode_batch(texts, **options)

    tokenizer.tokenizer = Counting()
    return seen


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", APART)
def test_apart_is_the_same_as_together(tokenizer_of, family, style):
    """Every pair, also those too long, refused, or with odd characters at the boundary."""
    tokenizer = tokenizer_of(family)
    for template in (QWEN3, ENCODERS["sfr-mistral"].template):
        for span in Span if style not in (PromptStyle.COND, PromptStyle.SENT) else [Span.CONDITION]:
            pair = prompt_set(style, template=template, span=span).pair
            if boundary(pair, tokenizer.tokenizer) is None:
                assert (family, template) == ("unigram", QWEN3)  # "Query:color" is one word to it
                continue
            wanted = TokenBatch.of(tokenizer([pair.render(*p) for p in PAIRS]))
            found = tokenizer.pairs([pair], PAIRS)
            batches_equal(found, wanted)
            assert tokenizer.in_parts
            assert found.truncated.any()
            if family == "wordpiece":  # it drops characters without width
                assert {REASONS[i] for i in found.refused if i >= 0} == {Reason.EMPTY_TEXT, Reason.EMPTY_CONDITION}


@pytest.mark.parametrize("family", APART)
def test_each_text_is_tokenised_once(tokenizer_of, family):
    tokenizer = tokenizer_of(family, max_tokens=1000)
    pairs = [(f"sentence {n}", f"condition {m}") for n in range(100) for m in range(50)]
    pair = prompt_set(PromptStyle.CONCAT_SC, span=Span.CONDITION).pair
    seen = counted(tokenizer)
    tokenizer.pairs([pair], pairs)
    assert len(seen) == 100 + 50 + tokens.CHECKED_PROMPTS


def test_a_tokenizer_without_known_boundaries_takes_whole_prompts(tokenizer_of):
    """Mistral's has no pieces: spaces are letters."""
    tokenizer = tokenizer_of("mistral")
    pair = prompt_set(PromptStyle.COND).pair
    assert boundary(pair, tokenizer.tokenizer) is None
    seen = counted(tokenizer)
    batches_equal(
        tokenizer.pairs([pair], PAIRS), TokenBatch.of(tokenizer_of("mistral")([pair.render(*p) for p in PAIRS]))
    )
    assert len(seen) == len(PAIRS)


def test_few_equal_texts_are_not_worth_it(tokenizer_of):
    tokenizer = tokenizer_of("wordpiece")
    seen = counted(tokenizer)
    pair = prompt_set(PromptStyle.CONCAT_SC, span=Span.CONDITION).pair
    tokenizer.pairs([pair], [(f"sentence {n}", f"condition {n}") for n in range(20)])
    assert len(seen) == 20


def test_a_difference_is_found_said_and_ends_it(tokenizer_of, monkeypatch, caplog):
    """With a cut in the middle of words that merge."""
    tokenizer = tokenizer_of("wordpiece")
    template = Template(pattern="{sentence}dress of {condition}", span=Span.CONDITION)
    cut = Template(pattern="{sentence}dr", span=Span.ALL), Template(pattern="ess of {condition}", span=Span.ALL)
    monkeypatch.setattr(tokens, "boundary", lambda *_: cut)
    pairs = [(f"{a} {b}", c) for a in "abcdef" for b in "abcdef" for c in ("color", "number")]
    wanted = TokenBatch.of(tokenizer([template.render(*p) for p in pairs]))
    with caplog.at_level(logging.WARNING):
        batches_equal(tokenizer.pairs([template], pairs), wanted)
        batches_equal(tokenizer.pairs([template], pairs), wanted)
    assert not tokenizer.in_parts
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("pattern", "cut"),
    [
        ("{sentence} {condition}", ("{sentence}", " {condition}")),
        ("{sentence} What is the {condition}?", ("{sentence} What is the", " {condition}?")),
        ("Sentence : {sentence}\nQuery:{condition}", ("Sentence : {sentence}\nQuery", ":{condition}")),
        ("Sentence : {sentence}\nQuery: {condition}", ("Sentence : {sentence}\nQuery:", " {condition}")),
        ("{sentence}{condition}", None),
        ("{sentence}\n{condition}", None),
        ("{sentence}  {condition}", None),
        ("{sentence}:{condition}", None),  # the text before may end in anything
        ("{condition}", None),
    ],
)
def test_where_a_template_is_cut(tokenizer_of, pattern, cut):
    found = boundary(Template(pattern=pattern, span=Span.ALL), tokenizer_of("qwen").tokenizer)
    assert (found and tuple(half.pattern for half in found)) == cut


def test_an_unknown_pre_tokenizer_is_not_trusted(tokenizer_of):
    template = prompt_set(PromptStyle.CONCAT_SC).pair
    tokenizer = tokenizer_of("byte-level").tokenizer
    assert boundary(template, tokenizer)
    for unknown in (
        pre_tokenizers.Whitespace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Split("x", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]),
    ):
        tokenizer.pre_tokenizer = unknown
        assert boundary(template, tokenizer) is None


def test_views_of_one_pattern_share_their_tokens(tokenizer_of):
    tokenizer = tokenizer_of("wordpiece")
    views = [prompt_set(PromptStyle.CONCAT_SC, span=span).pair for span in (Span.SENTENCE, Span.ALL)]
    for pairs in (PAIRS, PAIRS[:1]):
        apart = [tokenizer.pairs([view], pairs) for view in views]
        both = tokenizer.pairs(views, pairs)
        assert both.start.tolist() == np.concatenate([b.start for b in apart], axis=1).tolist()
        assert both.end.tolist() == np.concatenate([b.end for b in apart], axis=1).tolist()
        assert both.lengths.tolist() == apart[0].lengths.tolist()


def test_prepared_pairs_travel_as_bytes(tokenizer_of):
    batch = tokenizer_of("qwen").pairs([prompt_set(PromptStyle.CONCAT_SC, span=Span.CONDITION).pair], PAIRS)
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


def test_a_batch_of_some_rows():
    batch = TokenBatch.of([Tokens(ids=[n] * n, start=0, end=n) for n in range(1, 6)])
    some = batch.take(np.array([3, 0]))
    assert some.lengths.tolist() == [4, 1]
    assert some.ids(np.array([1, 0])).flat.tolist() == [1, 4, 4, 4, 4]
    other = TokenBatch.of([Tokens(ids=[], start=0, end=0, refused=Reason.NO_ROOM)])
    assert batch.replaced(np.array([1]), other).lengths.tolist() == [1, 0, 3, 4, 5]
    assert batch.replaced(np.array([1]), other).reasons == [None, Reason.NO_ROOM, None, None, None]


# ------------------------------------------------------------------------------------------------------- prepared pairs


@pytest.fixture
def prepared_of(tmp_path):
    """Pairs prepared with prompts of every kind."""
    tiny.save_tokenizer(tmp_path, tiny.wordpiece())
    spec = replace(ENCODERS["minilm"], source=str(tmp_path), max_tokens=12)
    prompts = prompt_set(PromptStyle.CONCAT_SC, span=Span.CONDITION)

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
        for name in ("sentence", "condition"):
            assert len(getattr(taken, name)) == len(getattr(anew, name))
        for kind in ("pairs", "alone", "bases"):
            assert [len(b) for b in getattr(taken, kind)] == [len(b) for b in getattr(anew, kind)]
        assert sorted(taken.conditions or []) == sorted(anew.conditions or [])
    again = every.take(np.array([80, 2, 41])).take(np.array([2, 0]))
    assert of_each(again) == of_each(prepared_of([PAIRS[41], PAIRS[80]], conditional))


def test_prompts_that_are_too_long_or_empty_are_said_of_the_pairs_taken(prepared_of):
    every = prepared_of(PAIRS)
    wanted = {reason for _, _, reason, _ in of_each(every)}
    assert wanted == {None, Reason.EMPTY_TEXT, Reason.EMPTY_CONDITION}
    assert {cut for *_, cut in of_each(every)} == {True, False}


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
