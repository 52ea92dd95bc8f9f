"""States of a text's tokens; that they are the library's is in `encoder/test_architectures.py`."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.tokens.states import StateReader, layer_numbers


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
    encoder.last_layer.register_forward_pre_hook(lambda _, inputs: encoded.append(len(inputs[0])))
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
