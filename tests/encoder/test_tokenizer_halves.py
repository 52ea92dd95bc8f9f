"""Sentence and condition tokenised apart give what the whole prompt gives, or are not tokenised apart."""

import logging

import numpy as np
import pytest
from tiny import PAIRS, batches_equal
from tokenizers import pre_tokenizers

from raycase.data.schema import Reason
from raycase.encoder import tokenizer as tokenizer_module
from raycase.encoder.prompts import PromptStyle, Template, TokenSpan, prompt_set
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import REASONS, TokenBatch
from raycase.encoder.tokenizer import boundary

STYLES = [PromptStyle.COND, PromptStyle.SENT, PromptStyle.CONCAT_CS, PromptStyle.CONCAT_SC, PromptStyle.QUESTION]
QWEN3 = ENCODERS["qwen3-embedding-0.6b"].template
APART = ["wordpiece", "byte-level", "qwen", "unigram"]


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
        for span in TokenSpan if style not in (PromptStyle.COND, PromptStyle.SENT) else [TokenSpan.CONDITION]:
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
    pair = prompt_set(PromptStyle.CONCAT_SC, span=TokenSpan.CONDITION).pair
    seen = counted(tokenizer)
    tokenizer.pairs([pair], pairs)
    assert len(seen) == 100 + 50 + tokenizer_module.CHECKED_PROMPTS


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


def test_a_difference_is_found_said_and_ends_it(tokenizer_of, monkeypatch, caplog):
    """With a cut in the middle of words that merge."""
    tokenizer = tokenizer_of("wordpiece")
    template = Template(pattern="{sentence}dress of {condition}", span=TokenSpan.CONDITION)
    cut = (
        Template(pattern="{sentence}dr", span=TokenSpan.ALL),
        Template(pattern="ess of {condition}", span=TokenSpan.ALL),
    )
    monkeypatch.setattr(tokenizer_module, "boundary", lambda *_: cut)
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
    found = boundary(Template(pattern=pattern, span=TokenSpan.ALL), tokenizer_of("qwen").tokenizer)
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
    views = [prompt_set(PromptStyle.CONCAT_SC, span=span).pair for span in (TokenSpan.SENTENCE, TokenSpan.ALL)]
    for pairs in (PAIRS, PAIRS[:1]):
        apart = [tokenizer.pairs([view], pairs) for view in views]
        both = tokenizer.pairs(views, pairs)
        assert both.start.tolist() == np.concatenate([b.start for b in apart], axis=1).tolist()
        assert both.end.tolist() == np.concatenate([b.end for b in apart], axis=1).tolist()
        assert both.lengths.tolist() == apart[0].lengths.tolist()
