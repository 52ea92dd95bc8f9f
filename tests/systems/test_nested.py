"""Vectors cut to a dimension that the model was trained with are the first columns; other dimensions are refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from nested_models import NESTED, SAVE, save_case

import raycase
from raycase.errors import RequestError
from raycase.systems.baselines import sentence_encoder
from raycase.systems.condition_head import HeadConfig
from raycase.systems.projector import ProjectorConfig
from raycase.systems.registry import resolve

SENTENCES = ["a red dress", "two people play with a dog", "two people play with a dog"]
CONDITIONS = ["color", "number of people", "color"]


@pytest.fixture(scope="module", params=SAVE)
def folder(request, tmp_path_factory, tiny_model):
    return SAVE[request.param](tmp_path_factory.mktemp(request.param), tiny_model)


@pytest.mark.parametrize("dim", NESTED)
def test_a_cut_gives_the_first_columns_and_leaves_plain_vectors_whole(folder, dim):
    whole, cut = (raycase.load(folder, dtype=torch.float32, dim=d) for d in (None, dim))
    vectors = whole.embed(SENTENCES, CONDITIONS)
    assert (whole.dim, cut.dim, cut.config.plain_dim) == (8, dim, 32)
    assert vectors.shape == (3, 8) and vectors.std() > 0.01
    np.testing.assert_allclose(cut.embed(SENTENCES, CONDITIONS), vectors[:, :dim], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(cut.embed(SENTENCES, None), whole.embed(SENTENCES, None))


def test_the_description_has_the_cut_only_where_there_is_one(folder):
    whole = resolve(folder).describe()
    assert "cut" not in whole
    assert [resolve(folder, dim=dim).describe() for dim in NESTED] == [whole | {"cut": dim} for dim in NESTED]


@pytest.mark.parametrize("dim", [-1, 0, 3, 8, 512])
def test_a_dimension_that_was_not_trained_is_refused(folder, dim):
    with pytest.raises(RequestError, match=rf"^dim: expected one of 2, 4, .* {folder}, got {dim}; .* it is 8$"):
        raycase.load(folder, dim=dim)


def test_a_model_without_nested_dimensions_is_not_cut(tmp_path, tiny_model):
    folders = {system: save(tmp_path / system, tiny_model, nested=()) for system, save in SAVE.items()}
    tuned = sentence_encoder(str(tiny_model), pooling="mean").trainable()
    tuned.save(tmp_path / "tuned")
    for name in (*folders.values(), str(tmp_path / "tuned"), "condition-pooling:minilm"):
        with pytest.raises(RequestError, match=rf"^--dim: expected .* nested .*--nested.*, got {name}, which has none"):
            resolve(name, dim=4)
    with pytest.raises(RequestError, match=r"^--dim: expected a model that was trained with nested"):
        resolve(str(tiny_model), prompt="concat-sc", pooling="mean", dim=4)


def test_the_views_of_a_cut_system_are_whole(tmp_path, tiny_model):
    config = resolve(save_case(tmp_path, tiny_model), dim=4)
    assert [view.dim for view in config.views_apart] == [32]


def test_a_projector_without_nested_dimensions_is_saved_and_described_as_before(tmp_path, tiny_model):
    names = {"input_dim", "output_dim", "layers", "hidden", "activation", "dropout"}
    config = resolve(save_case(tmp_path, tiny_model, nested=()))
    assert json.loads((tmp_path / "raycase.json").read_text())["projector"].keys() == names
    assert config.describe()["projector"].keys() == names | {"weights"}
    other = resolve(save_case(tmp_path / "nested", tiny_model))
    assert json.loads((Path(other.folder) / "raycase.json").read_text())["projector"]["nested"] == [2, 4]
    assert other.projector == replace(config.projector, nested=(2, 4))


@pytest.mark.parametrize("nested", [(0,), (4, 8), (9,)])
def test_a_nested_dimension_must_be_below_the_whole_one(nested):
    with pytest.raises(ValueError, match="nested: expected dimensions below 8"):
        ProjectorConfig(input_dim=32, output_dim=8, nested=nested)
    with pytest.raises(ValueError, match="nested: expected dimensions below 8"):
        HeadConfig(states_dim=32, output_dim=8, nested=nested)
