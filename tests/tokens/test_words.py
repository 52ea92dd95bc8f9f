"""Words and states of texts by tokenizers of every family; weights of tokens added up by word."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from small import no_signs

from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.table import ENCODERS
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError
from raycase.tokens.states import StateReader, layer_numbers
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


@pytest.fixture
def spec(tmp_path):
    return replace(ENCODERS["minilm"], source=str(tiny.save_encoder(tmp_path, "minilm")))


def test_prompts_of_the_same_ids_pass_every_layer_once(spec):
    """Each pools, and reads, its own part of them; with the mean of what it reads."""
    encoder = load_encoder(spec, dtype=torch.float32, device="cpu", batch_tokens=30)
    views = [Template(pattern="{sentence}", span=part) for part in (TokenSpan.ALL, TokenSpan.SENTENCE)]
    texts = ["two people play with a dog at the bar", "A woman in a red dress", "two people play with a dog at the bar"]
    batch = encoder.tokenize.pairs(views, [(text, "") for text in texts])
    batch = replace(batch, start=batch.start + np.array([[0], [0], [3]]), end=batch.end - np.array([[4], [0], [2]]))
    reader, encoded = StateReader(encoder, [0, 1, 2]), []

    def read(batch):
        """The states of each prompt, their means and unconditional vectors, then the vectors of each."""
        found = {}

        def use(rows, states):
            for i, row in enumerate(rows.tolist()):
                found[row] = states.states[i][states.real[i]].numpy(), states.unconditional[i].numpy()
                np.testing.assert_allclose(states.mean[i], found[row][0].mean(0), atol=1e-5)

        reader.read(batch, use)
        return [*(part for row in range(3) for part in found[row]), *encoder.encode(batch)[0]]

    wanted = read(batch)
    np.testing.assert_allclose(wanted[1], wanted[6][:32], atol=1e-5)
    encoder.model.register_forward_pre_hook(
        lambda _, __, given: encoded.append(len(given["input_ids"])), with_kwargs=True
    )
    found = read(replace(batch, shared=np.array([0, 1, 0])))
    assert sum(encoded) == 4, "each of two prompts by each way"
    for states, others in zip(found, wanted, strict=True):
        np.testing.assert_allclose(states, others, atol=1e-5)


@pytest.mark.parametrize(
    ("depths", "said"),
    [
        ([], "fractions of the depth from 0 to 1, got none"),
        ([1.0, 1.1], "got 1 1.1"),
        ([float("nan")], "got nan"),
        ([0.9, 1.0], "distinct layers of 2, as fractions of the depth from 0 to 1, got 0.9 1"),
    ],
)
def test_depths_outside_the_encoder_are_refused(spec, depths, said):
    with pytest.raises(RequestError, match=f"^--layers: expected .*{said}$"):
        layer_numbers(spec, depths)
