"""Words of texts by tokenizers of every family, and the weights of tokens added up by word."""

import numpy as np
import pytest
import tiny
from small import no_signs

from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.tokens.words import words_of

ONE = Template(pattern="{sentence}", span=TokenSpan.SENTENCE)
TEXTS = [
    *tiny.SENTENCES,
    "A red dress, 1234 {sentence} {x}",
    "x [SEP] y",
    "[SEP]",
    " two \n\n  people\t(play) ",
    "cafe\u0301 caf\u00e9, nai\u0308ve",
    "👩‍👩‍👧 ❤️ 🇩🇪 x",
    "",
    "  ",
    "\u0301a",
]


def tokenizer_of(name, max_tokens=2048):
    return PromptTokenizer(tokenizer=tiny.TOKENIZERS[name]()[0], max_tokens=max_tokens)


def words(tokenize, text):
    """The words as strings."""
    return [text[start:end] for start, end in words_of(tokenize, [text])[0].spans.tolist()]


@pytest.mark.parametrize("name", tiny.TOKENIZERS)
def test_words_are_apart_in_the_order_of_the_text_and_cover_it(name):
    tokenize = tokenizer_of(name)
    for text, found in zip(TEXTS, words_of(tokenize, TEXTS), strict=True):
        ends = [0, *found.spans[:, 1].tolist()]
        assert all(end <= start < stop for end, (start, stop) in zip(ends, found.spans.tolist(), strict=False))
        assert all(not character.isspace() for start, end in found.spans.tolist() for character in text[start:end])
        (prompt,) = tiny.tokens(tokenize, [ONE.render(text, "")])
        assert len(found.word) == prompt.end - prompt.start, "one place for each token that is read"
        covered = "".join(text[start:end] for start, end in found.spans.tolist())
        if name != "wordpiece":  # its normaliser drops characters
            assert no_signs(covered) == no_signs(text)


@pytest.mark.parametrize("name", tiny.TOKENIZERS)
def test_white_space_accents_and_numbers(name):
    tokenize = tokenizer_of(name)
    assert words(tokenize, "  A red\tdress ") == ["A", "red", "dress"]
    assert words(tokenize, "cafe\u0301 caf\u00e9") == ["cafe\u0301", "caf\u00e9"]
    assert words(tokenize, "in 1234 days") == ["in", "1234", "days"]
    assert words(tokenize, "A dog . - !") == ["A", "dog"]
    assert words(tokenize, "two   people\n\nplay") == ["two", "people", "play"]
    assert words(tokenize, "👩‍👩‍👧 x") == ["👩‍👩‍👧", "x"]


@pytest.mark.parametrize("name", tiny.TOKENIZERS)
def test_words_that_were_cut_off_are_left_out(name):
    text = "two people play with a dog " * 20
    short = tokenizer_of(name, max_tokens=20)
    (prompt,) = tiny.tokens(short, [ONE.render(text, "")])
    assert prompt.truncated
    weighed = words_of(short, [text])[0].weigh(np.ones(prompt.end - prompt.start, np.float32))
    assert [text[w.start : w.end] for w in weighed] == text.split()[: len(weighed)]
    assert 0 < len(weighed) < 20
    assert sum(w.weight for w in weighed) == prompt.end - prompt.start
    assert words_of(short, [text])[0].weigh(np.empty(0, np.float32)) == []
