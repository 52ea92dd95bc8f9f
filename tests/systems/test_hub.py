"""A model folder is published on a hub on 127.0.0.1, and loaded by its id: pinned, offline too, the same vectors."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_hub import COMMIT, fake_hub
from helpers import ROOT

import raycase
from raycase.encoder.table import read_spec
from raycase.errors import RequestError
from raycase.systems.bi_encoder import bi_encoder
from raycase.systems.push import PushJob, push
from raycase.systems.registry import resolve
from raycase.training.job import part_metrics

TOKEN = "hf_secretsecretsecret"
TEXTS = ["a red dog runs", "two girls"]
LOAD = """
import json, sys, raycase, torch
from raycase.data.hub import pinned_uri
for name in sys.argv[1:]:
    pinned_uri.cache_clear()
    try:
        model = raycase.load(name, dtype=torch.float32)
        found = [model.config.model, model.config.describe()["weights"]]
        print(json.dumps([*found, model.encode(["a red dog runs", "two girls"], "color").tolist()]))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """A bi-encoder's folder, with a card and metrics as training writes them."""
    folder = tmp_path_factory.mktemp("hub") / "bi"
    bi_encoder(str(tiny_model)).trainable(0.0).save(folder)
    (folder / "README.md").write_text('# bi\n\nmodel = raycase.load("bi")  # the path of this folder\n')
    parts = {"train": {"file": "train.parquet", "dataset": "me/pairs"}, "validation": {"file": "validation.csv"}}
    metrics = {"validation": {"spearman": 66.126}, "data": parts}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "notes.txt").write_text("private")
    return folder


def run(home, endpoint, *command):
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_HOME": str(home / "hf"), "HF_HUB_CACHE": str(home / "hf" / "hub"), "HF_TOKEN": TOKEN}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"} if endpoint else {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert TOKEN not in done.stdout + done.stderr
    return done


def test_a_folder_is_published_and_loaded_by_its_id(trained, tmp_path):
    wanted = raycase.load(trained, dtype=torch.float32).encode(TEXTS, "color")
    folders = {}
    with fake_hub(folders, tmp_path) as (endpoint, asked):
        done = run(tmp_path, endpoint, "-m", "raycase", "push", str(trained), "me/bi", "--private")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["model"] == f"me/bi@{COMMIT}"
        names = {str(file.relative_to(folders["me/bi"])) for file in folders["me/bi"].rglob("*") if file.is_file()}
        assert {"raycase.json", "README.md", "modules.json", "1_Pooling/config.json", "model.safetensors"} <= names
        assert "notes.txt" not in names
        card = (folders["me/bi"] / "README.md").read_text()
        for line in ("library_name: raycase", "pipeline_tag: sentence-similarity", "value: 66.13", 'load("me/bi")'):
            assert line in card
        assert "datasets:\n- me/pairs\n" in card
        pinned = f"me/bi@{COMMIT}"
        for place, names in ((endpoint, ["me/nothing", "me/bi", pinned]), ("", ["me/nothing", pinned])):
            done = run(tmp_path, place, "-c", LOAD, *names)
            refused, *loaded = map(json.loads, done.stdout.splitlines())
            assert "me/nothing" in refused and len(loaded) == len(names) - 1, done.stderr
            for name, weights, vectors in loaded:
                assert name == f"hf://{pinned}" and COMMIT in weights
                np.testing.assert_allclose(vectors, wanted, atol=1e-6)
        assert not any(path.endswith("notes.txt") for path in asked)


def test_a_repository_with_an_encoder_beside_the_model_is_the_model_each_time(trained, tiny_model, tmp_path):
    """The second time the encoder's files are in the hub's cache."""
    both = shutil.copytree(tiny_model, tmp_path / "both")
    shutil.copytree(trained, both, dirs_exist_ok=True, ignore=shutil.ignore_patterns("modules.json"))
    wanted = raycase.load(trained, dtype=torch.float32).encode(TEXTS, "color")
    with fake_hub({"me/both": both}, tmp_path) as (endpoint, _):
        done = run(tmp_path, endpoint, "-c", LOAD, "me/both", "me/both")
    assert len(done.stdout.splitlines()) == 2, done.stderr
    for name, _, vectors in map(json.loads, done.stdout.splitlines()):
        assert name == f"hf://me/both@{COMMIT}"
        np.testing.assert_allclose(vectors, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "source", ["./../../x", "/tmp", "../x", "s3://bucket/x", "file:///tmp", "http://127.0.0.1:1/x", "~/x"]
)
def test_a_model_of_the_hub_names_no_encoder_of_this_machine(trained, source):
    row = json.loads((trained / "raycase.json").read_text())["encoder"]
    for changes in ({"source": source}, {"adapter": source}):
        spec = read_spec(row | changes)
        with pytest.raises(ValueError, match="in the model folder or on the Hugging Face hub, got"):
            spec.at(f"hf://me/bi@{COMMIT}")
    for source in ("./encoder", "package:sentence_model", "me/encoder@main"):
        assert read_spec(row | {"source": source}).at(f"hf://me/bi@{COMMIT}").source.endswith(source.removeprefix("."))


def test_a_name_that_the_hub_does_not_know_is_refused(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(RequestError, match=r"expected a readable encoder at \.\./bi"):
        resolve("../bi")


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("hf://datasets/me/pairs/data/train.parquet", "me/pairs"),
        ("hf://datasets/me/pairs@main/**/*.csv", "me/pairs"),
        ("hf://me/pairs/train.csv", None),
        ("/data/me/pairs/train.csv", None),
    ],
)
def test_the_card_names_datasets_of_the_hub_alone(uri, dataset):
    """The name of any other file would be a guess."""
    found = part_metrics(SimpleNamespace(uri=uri, data_sha256="a1"), 3)
    assert found.pop("dataset", None) == dataset
    assert found == {"file": uri.rpartition("/")[2], "rows": 3, "sha256": "a1"}


def test_a_model_of_the_hub_is_no_uri(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RequestError, match=r"got: .*; a model on the Hugging Face hub is given as owner/name$"):
        resolve("hf://me/bi")


@pytest.mark.parametrize(
    ("folder", "repository", "said"),
    [(".", "me/bi", "FOLDER: expected a model folder"), (None, "bi", "REPOSITORY"), (None, "me/bi@main", "REPOSITORY")],
)
def test_what_is_not_published(trained, folder, repository, said):
    with pytest.raises(RequestError, match=said):
        push(PushJob(folder=str(folder or trained), repository=repository))


def test_a_head_on_an_encoder_of_this_machine_is_not_published(tiny_model, rated, tmp_path):
    data = {"train": rated / "train.csv", "validation": rated / "validation.csv", "cache": rated / "cache"}
    options = {"model": tiny_model, "prompt": "concat-sc", "pooling": "mean", "epochs": 1, "dim": 8, "ray": False}
    raycase.train("case", output=tmp_path / "case", **data, **options)
    with pytest.raises(RequestError, match="expected an encoder that others can load"):
        push(PushJob(folder=str(tmp_path / "case"), repository="me/case"))


def test_a_model_folder_of_the_hub_is_no_encoder_to_train(tiny_model, tmp_path):
    """Unless its encoder is at the root."""
    trained = tmp_path / "bi"
    bi_encoder(str(tiny_model), prompt="concat-cs:sentence").trainable(0.0).save(trained)
    files = ["--train", "none.csv", "--validation", "none.csv", "--output", str(tmp_path / "out")]
    with fake_hub({"me/bi": trained}, tmp_path) as (endpoint, _):
        done = run(tmp_path, endpoint, "-m", "raycase", "train", "bi-encoder", "--model", "me/bi", *files)
    assert (
        done.returncode == 2
        and "expected an encoder at me/bi on the Hugging Face hub, got no config.json" in done.stderr
    )
