"""Vectors cut to a dimension that the model was trained with are the first columns; other dimensions are refused."""

import numpy as np
import pytest
import torch
from nested_models import NESTED, SAVE

import raycase
from raycase.errors import RequestError
from raycase.models.configs import sentence_encoder
from raycase.models.registry import resolve

SENTENCES = ["a red dress", "two people play with a dog", "two people play with a dog"]
CONDITIONS = ["color", "number of people", "color"]


@pytest.fixture(scope="module", params=SAVE)
def folder(request, tmp_path_factory, tiny_model):
    return SAVE[request.param](tmp_path_factory.mktemp(request.param), tiny_model)


@pytest.mark.parametrize("dim", NESTED)
def test_a_cut_gives_the_first_columns_and_leaves_plain_vectors_whole(folder, dim):
    whole, cut = (raycase.load(folder, dtype=torch.float32, dim=d) for d in (None, dim))
    vectors = whole.embed(SENTENCES, CONDITIONS)
    assert (whole.dim, cut.dim, cut.config.unconditional_dim) == (8, dim, 32)
    assert vectors.shape == (3, 8) and vectors.std() > 0.01
    np.testing.assert_allclose(cut.embed(SENTENCES, CONDITIONS), vectors[:, :dim], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(cut.embed(SENTENCES, None), whole.embed(SENTENCES, None))


@pytest.mark.parametrize("dim", [0, 3, 8])
def test_a_dimension_that_was_not_trained_is_refused(folder, dim):
    with pytest.raises(RequestError, match=rf"^dim: expected .* {folder} was trained with .2, 4.*, got {dim};"):
        raycase.load(folder, dim=dim)


def test_a_model_without_nested_dimensions_is_not_cut(tmp_path, tiny_model):
    folders = {system: save(tmp_path / system, tiny_model, nested=()) for system, save in SAVE.items()}
    tuned = sentence_encoder(str(tiny_model), pooling="mean").trainable()
    tuned.save(tmp_path / "tuned")
    for name in (*folders.values(), str(tmp_path / "tuned"), "condition-pooling:minilm"):
        with pytest.raises(RequestError, match=rf"^--dim: expected .* {name} was trained with .it has none., got 4"):
            resolve(name, dim=4)
    with pytest.raises(RequestError, match=r"^--dim: .*it has none"):
        resolve(str(tiny_model), prompt="concat-sc", pooling="mean", dim=4)
