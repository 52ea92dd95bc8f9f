"""A model folder is published on a hub on 127.0.0.1, and loaded by its id: pinned, offline too, the same vectors."""

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_hub import COMMIT, fake_hub
from huggingface_hub import constants

import raycase
from raycase.cli import main
from raycase.commands.push import PushFlags, push
from raycase.encoder.model_files import pinned_uri
from raycase.encoder.table import read_spec
from raycase.errors import RequestError, WorkError
from raycase.models.registry import resolve
from raycase.papers.baselines.model import bi_encoder

TOKEN = "hf_secretsecretsecret"
TEXTS = ["a red dog runs", "two girls"]
PINNED = f"me/bi@{COMMIT}"


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """A bi-encoder's folder, with a card and metrics as training writes them."""
    folder = tmp_path_factory.mktemp("hub") / "bi"
    bi_encoder(str(tiny_model)).trainable(0.0).save(folder)
    card = '# bi\n\nmodel = raycase.load("x")  # the path of this folder\n\nmodel = SentenceTransformer("x")\n'
    (folder / "README.md").write_text(card)
    parts = {"train": {"file": "train.parquet", "dataset": "me/pairs"}, "validation": {"file": "validation.csv"}}
    metrics = {"validation": {"spearman": 66.126}, "data": parts}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "notes.txt").write_text("private")
    return folder


def load(name):
    """Name, weights and vectors of a loaded model; or the error."""
    pinned_uri.cache_clear()
    try:
        model = raycase.load(name, dtype=torch.float32)
        return [model.config.name, model.config.describe()["weights"], model.encode(TEXTS, "color")]
    except ValueError as error:
        return str(error)


def run(words):
    """Exit status, output and errors of a command."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            status = main(words) or 0
        except SystemExit as stop:
            status = stop.code
    assert TOKEN not in out.getvalue() + err.getvalue()
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def hub(trained, tiny_model, tmp_path_factory):
    """A hub to which `me/bi` was published, what was done with it and with repositories that were there before, and
    what is loaded once the hub is gone."""
    home = tmp_path_factory.mktemp("hub")
    both, prompted = shutil.copytree(tiny_model, home / "both"), home / "prompted"
    shutil.copytree(trained, both, dirs_exist_ok=True, ignore=shutil.ignore_patterns("modules.json"))
    bi_encoder(str(tiny_model), prompt="concat-cs:sentence").trainable(0.0).save(prompted)
    folders = {"me/both": both, "me/prompted": prompted}
    train = ["train", "bi-encoder", "--model", "me/prompted", "--train", "none.csv", "--validation", "none.csv"]
    with pytest.MonkeyPatch.context() as patch:
        with fake_hub(folders, home) as (endpoint, asked):
            patch.setenv("HF_TOKEN", TOKEN)
            for name, value in {
                "ENDPOINT": endpoint,
                "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
                "HF_HUB_CACHE": str(home / "cache"),
                "HF_HUB_OFFLINE": False,
                "HF_HUB_DISABLE_XET": True,
            }.items():
                patch.setattr(constants, name, value)
            pushed = run(["push", str(trained), "me/bi", "--private"])
            refused = run([*train, "--output", str(home / "out")])
            nothing, *loaded = map(load, ("me/nothing", "me/bi", PINNED, "me/both", "me/both"))
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        offline = [load("me/nothing"), load(PINNED)]
    found = {"pushed": pushed, "refused": refused, "loaded": [nothing, *loaded[:2]], "both": loaded[2:]}
    wanted = raycase.load(trained, dtype=torch.float32).encode(TEXTS, "color")
    return SimpleNamespace(folder=folders["me/bi"], asked=asked, wanted=wanted, offline=offline, **found)


def test_a_folder_is_published_and_loaded_by_its_id(hub):
    status, said, errors = hub.pushed
    assert status == 0, errors
    assert json.loads(said.splitlines()[-1])["model"] == PINNED
    names = {str(file.relative_to(hub.folder)) for file in hub.folder.rglob("*") if file.is_file()}
    assert {"raycase.json", "README.md", "modules.json", "1_Pooling/config.json", "model.safetensors"} <= names
    assert "notes.txt" not in names
    card = (hub.folder / "README.md").read_text()
    lines = ["library_name: raycase", "pipeline_tag: sentence-similarity", "datasets:\n- me/pairs\n"]
    lines += ['raycase.load("me/bi")\n', 'er("me/bi")']
    assert [line for line in lines if line not in card] == []
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


@pytest.mark.parametrize("source", ["./../../x", "/tmp", "s3://bucket/x", "~/x"])
def test_a_model_of_the_hub_names_no_encoder_of_this_machine(trained, source):
    row = json.loads((trained / "raycase.json").read_text())["encoder"]
    with pytest.raises(ValueError, match="in the model folder or on the Hugging Face hub, got"):
        read_spec(row | {"source": source}).at(f"hf://me/bi@{COMMIT}")
    for source in ("./encoder", "package:sentence_model", "me/encoder@main"):
        assert read_spec(row | {"source": source}).at(f"hf://me/bi@{COMMIT}").source.endswith(source.removeprefix("."))


@pytest.mark.parametrize("name", ["../bi", "/nowhere/bi", "a/b/c"])
def test_a_path_without_a_folder_is_not_asked_of_the_hub(name):
    with pytest.raises(RequestError, match=f"--model: expected a model folder, got '{name}', which does not exist"):
        resolve(name)


@pytest.mark.parametrize(
    ("folder", "repository", "said"),
    [(".", "me/bi", "FOLDER: expected a model folder"), (None, "me/bi@main", "Repo id must")],
)
def test_what_is_not_published(trained, folder, repository, said):
    with pytest.raises((RequestError, WorkError), match=said):
        push(PushFlags(folder=str(folder or trained), repository=repository))


def test_a_model_folder_of_the_hub_is_no_encoder_to_train(hub):
    """Unless its encoder is at the root."""
    status, _, errors = hub.refused
    assert status == 2
    assert "expected an encoder at me/prompted on the Hugging Face hub, got no config.json" in errors
