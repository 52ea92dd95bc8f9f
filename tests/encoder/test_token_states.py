"""States of a text's tokens: those of the library's model, whatever stands beside the text in a batch or a row."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from small import token_states as wanted

from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_states import StateReader, layer_numbers
from raycase.errors import RequestError

TEXTS = [
    "A woman in a red dress",
    "dog",
    "two people play" + " with a dog at the bar" * 3,
    "two people play",
    "a",
    "(a) 7",
    "☃",  # unknown words are words
]
NAMES = ["minilm", "e5-large-instruct", "simcse-roberta-large", "qwen3-embedding-0.6b"]
LAYERS = [0, 1, 2]


def spec_of(folder_of, name, pooling=None):
    row = ENCODERS[name]
    return replace(row, source=str(folder_of(name)), max_tokens=120, pooling=(pooling or row.pooling[0],))


def opened(spec, **options):
    return load_encoder(spec, dtype=torch.float32, device="cpu", **options)


def tokens(encoder, texts, span=TokenSpan.SENTENCE):
    """Two views of each text: all tokens, which are pooled, and those of `span`, which are read."""
    views = [Template(pattern="{sentence}", span=part) for part in (TokenSpan.ALL, span)]
    return encoder.tokenize.pairs(views, [(text, "") for text in texts])


def read(encoder, layers, batch, reader=None):
    """The states of each prompt and their unconditional vectors, by a reader of the encoder."""
    found, plain = {}, np.empty((len(batch), encoder.dim), np.float32)

    def use(rows, states):
        plain[rows] = states.unconditional.numpy()
        means = states.mean.numpy()
        for row, states_SW, real_S, mean in zip(rows.tolist(), states.states, states.real, means, strict=True):
            found[row] = states_SW[real_S].numpy()
            np.testing.assert_allclose(mean, found[row].mean(0), atol=1e-5)

    work = (reader or StateReader(encoder, layers)).read(batch, use)
    return [found[row] for row in range(len(batch))], plain, work


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_the_librarys_model(folder_of, name):
    """Every layer, of texts in several batches, the same one twice; and the unconditional vectors beside them."""
    spec = spec_of(folder_of, name)
    encoder = opened(spec, batch_tokens=30)
    batch = tokens(encoder, [*TEXTS, TEXTS[0]])
    assert len(list(encoder.batches(batch, np.arange(len(batch))))) > 1
    found, plain, work = read(encoder, LAYERS, batch)
    for text, states_TW in zip([*TEXTS, TEXTS[0]], found, strict=True):
        small.close(states_TW, wanted(spec.source, text, LAYERS), atol=1e-5)
    small.close(plain, opened(spec).encode(tokens(encoder, [*TEXTS, TEXTS[0]], TokenSpan.ALL))[0][:, :32], atol=1e-5)
    assert work.tokens == batch.lengths.sum()
    assert work.processed <= work.tokens


def test_prompts_of_the_same_ids_pass_every_layer_once(folder_of):
    """Each pools, and reads, its own part of them."""
    encoder = opened(spec_of(folder_of, "minilm"))
    batch = tokens(encoder, [TEXTS[2], TEXTS[0], TEXTS[2]])
    batch = replace(batch, start=batch.start + np.array([[0], [0], [3]]), end=batch.end - np.array([[4], [0], [2]]))
    reader, encoded = StateReader(encoder, LAYERS), []
    wanted = [*read(encoder, LAYERS, batch, reader)[0], *encoder.encode(batch)[0]]
    encoder.last_layer.register_forward_pre_hook(lambda _, inputs: encoded.append(len(inputs[0])))
    once = replace(batch, shared=np.array([0, 1, 0]))
    found = [*read(encoder, LAYERS, once, reader)[0], *encoder.encode(once)[0]]
    assert encoded == [2, 2]
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
def test_depths_outside_the_encoder_are_refused(folder_of, depths, said):
    with pytest.raises(RequestError, match=f"^--layers: expected .*{said}$"):
        layer_numbers(spec_of(folder_of, "minilm"), depths)
