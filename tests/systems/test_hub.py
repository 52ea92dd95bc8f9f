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
from raycase.errors import RequestError, WorkError
from raycase.systems.baselines import bi_encoder
from raycase.systems.push import PushJob, push
from raycase.systems.registry import resolve

TOKEN = "hf_secretsecretsecret"
TEXTS = ["a red dog runs", "two girls"]
PROGRAM = """
import contextlib, io, json, sys, raycase, torch
from raycase.cli import main
from raycase.data.hub import pinned_uri

def load(name):
    pinned_uri.cache_clear()
    try:
        model = raycase.load(name, dtype=torch.float32)
        found = [model.config.model, model.config.describe()["weights"]]
        return [*found, model.encode(["a red dog runs", "two girls"], "color").tolist()]
    except ValueError as error:
        return str(error)

def run(words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = main(words) or 0
        except SystemExit as stop:
            status = stop.code
    return status, out.getvalue(), err.getvalue()

for task in json.loads(sys.argv[1]):
    print(json.dumps(load(task) if isinstance(task, str) else run(task)))
"""
PINNED = f"me/bi@{COMMIT}"


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


def run(home, endpoint, *tasks):
    """What a process with a hub, or without one, gives for commands and for names of models to load."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_HOME": str(home / "hf"), "HF_HUB_CACHE": str(home / "hf" / "hub"), "HF_TOKEN": TOKEN}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"} if endpoint else {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(tasks)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert TOKEN not in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(tasks), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def hub(trained, tiny_model, tmp_path_factory):
    """A hub to which a process published `me/bi`, what that process did with it and with repositories that were there
    before, and what another one without the hub loads."""
    home = tmp_path_factory.mktemp("hub")
    both, prompted = shutil.copytree(tiny_model, home / "both"), home / "prompted"
    shutil.copytree(trained, both, dirs_exist_ok=True, ignore=shutil.ignore_patterns("modules.json"))
    bi_encoder(str(tiny_model), prompt="concat-cs:sentence").trainable(0.0).save(prompted)
    folders = {"me/both": both, "me/prompted": prompted}
    push = ["push", str(trained), "me/bi", "--private"]
    train = ["train", "bi-encoder", "--model", "me/prompted", "--train", "none.csv", "--validation", "none.csv"]
    train += ["--output", str(home / "out")]
    with fake_hub(folders, home) as (endpoint, asked):
        pushed, *loaded, refused = run(home, endpoint, push, "me/nothing", "me/bi", PINNED, "me/both", "me/both", train)
    offline = run(home, "", "me/nothing", PINNED)
    names = {"pushed": pushed, "loaded": loaded[:3], "both": loaded[3:], "offline": offline, "refused": refused}
    wanted = raycase.load(trained, dtype=torch.float32).encode(TEXTS, "color")
    return SimpleNamespace(folder=folders["me/bi"], asked=asked, wanted=wanted, **names)


def test_a_folder_is_published_and_loaded_by_its_id(hub):
    status, said, errors = hub.pushed
    assert status == 0, errors
    assert json.loads(said.splitlines()[-1])["model"] == PINNED
    names = {str(file.relative_to(hub.folder)) for file in hub.folder.rglob("*") if file.is_file()}
    assert {"raycase.json", "README.md", "modules.json", "1_Pooling/config.json", "model.safetensors"} <= names
    assert "notes.txt" not in names
    card = (hub.folder / "README.md").read_text()
    for line in ("library_name: raycase", "pipeline_tag: sentence-similarity", "value: 66.13", 'load("me/bi")'):
        assert line in card
    assert "datasets:\n- me/pairs\n" in card
    for (refused, *loaded), count in ((hub.loaded, 2), (hub.offline, 1)):
        assert "me/nothing" in refused and len(loaded) == count
        for name, weights, vectors in loaded:
            assert name == f"hf://{PINNED}" and COMMIT in weights
            np.testing.assert_allclose(vectors, hub.wanted, atol=1e-6)
    assert not any(path.startswith("/me/bi/") and path.endswith("notes.txt") for path in hub.asked)


def test_a_repository_with_an_encoder_beside_the_model_is_the_model_each_time(hub):
    """The second time the encoder's files are in the hub's cache."""
    assert len(hub.both) == 2
    for name, _, vectors in hub.both:
        assert name == f"hf://me/both@{COMMIT}"
        np.testing.assert_allclose(vectors, hub.wanted, atol=1e-6)


@pytest.mark.parametrize(
    "source", ["./../../x", "/tmp", "../x", "s3://bucket/x", "file:///tmp", "http://127.0.0.1:1/x", "~/x"]
)
def test_a_model_of_the_hub_names_no_encoder_of_this_machine(trained, source):
    row = json.loads((trained / "raycase.json").read_text())["encoder"]
    with pytest.raises(ValueError, match="in the model folder or on the Hugging Face hub, got"):
        read_spec(row | {"source": source}).at(f"hf://me/bi@{COMMIT}")
    for source in ("./encoder", "package:sentence_model", "me/encoder@main"):
        assert read_spec(row | {"source": source}).at(f"hf://me/bi@{COMMIT}").source.endswith(source.removeprefix("."))


@pytest.mark.parametrize("name", ["../bi", "./bi", "/nowhere/bi", "~/bi", "a/b/c"])
def test_a_path_without_a_folder_is_not_asked_of_the_hub(name):
    with pytest.raises(RequestError, match=f"--model: expected a model folder, got '{name}', where there is none"):
        resolve(name)


@pytest.mark.parametrize(
    ("folder", "repository", "said"),
    [(".", "me/bi", "FOLDER: expected a model folder"), (None, "me/bi@main", "Repo id must")],
)
def test_what_is_not_published(trained, folder, repository, said):
    with pytest.raises((RequestError, WorkError), match=said):
        push(PushJob(folder=str(folder or trained), repository=repository))


def test_a_head_on_an_encoder_of_this_machine_is_not_published(tiny_model, rated, tmp_path):
    data = {"train": rated / "train.csv", "validation": rated / "validation.csv", "cache": rated / "cache"}
    options = {"model": tiny_model, "prompt": "concat-sc", "pooling": "mean", "epochs": 1, "dim": 8, "ray": False}
    raycase.train("case", output=tmp_path / "case", **data, **options)
    with pytest.raises(RequestError, match="expected an encoder that others can load"):
        push(PushJob(folder=str(tmp_path / "case"), repository="me/case"))


def test_a_model_folder_of_the_hub_is_no_encoder_to_train(hub):
    """Unless its encoder is at the root."""
    status, _, errors = hub.refused
    assert status == 2
    assert "expected an encoder at me/prompted on the Hugging Face hub, got no config.json" in errors
