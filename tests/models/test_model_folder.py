"""The folder that training leaves: read back as a system, never written over another, and a card that says no more."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

import raycase
from raycase.encoder.loading import load_encoder
from raycase.encoder.model_files import MODEL_FILE
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.heads.projector import WEIGHTS, Projector, ProjectorConfig
from raycase.models import case, model_folder
from raycase.models.model_folder import CARD, METRICS, open_model_folder, write_folder
from raycase.models.registry import resolve
from raycase.training.procedure import case_card

METRICS_OF = {
    "history": [],
    "validation": {"loss": 0.08, "spearman": 61.234, "pearson": 58.767, "spearman_rated": 70.005},
    "zero_shot": {"spearman": 41.119, "pearson": 40.0, "spearman_rated": 45.5},
    **{"best_epoch": 17, "epochs": 27, "seed": 31, "workers": 2, "seconds": 98.7},
    "recipe": {"dim": 5, "layers": 1, "loss": "squared", "learning_rate": 0.00123},
    "data": {
        "train": {"file": "learn.csv", "rows": 11342, "not_applicable": 1201, "sha256": "a1" * 32},
        "validation": {"file": "choose.csv", "rows": 2834, "not_applicable": 303, "sha256": "b2" * 32},
    },
    "provenance": {
        "command": "python jobs/train.py case --train 'learn.csv'",
        "commit": "1234abc",
        "versions": {"raycase": "0.1.0"},
        "machine": "a processor, 8 cores, 64 GiB",
        "date": "2025-01-02T03:04:05+00:00",
    },
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A tiny encoder, read in two ways."""
    source = tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "minilm")
    return replace(ENCODERS["minilm"], source=str(source), max_tokens=200, prompt="concat-sc+cond")


def model(spec, **options):
    """The configuration and g of a trained system."""
    torch.manual_seed(2)
    shape = ProjectorConfig(input_dim=64, output_dim=5, **options)
    config = case.CaseConfig(name="tiny", encoder=spec, subtract=True, projector=shape)
    return config, Projector(shape).eval()


def write(folder, spec, fingerprint="one", metrics=METRICS_OF, **options):
    config, projector = model(spec, **options)
    metrics = metrics | {"fingerprint": fingerprint}
    write_folder(folder, config, projector, metrics, case_card(folder.name, config, metrics))
    return folder


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_what_is_written_is_what_is_loaded(tmp_path, spec):
    options = {"layers": 2, "hidden": 6, "dropout": 0.2}
    folder, (config, projector) = write(tmp_path / "new" / "model", spec, **options), model(spec, **options)
    assert sorted(contents(folder)) == sorted([MODEL_FILE, METRICS, CARD, WEIGHTS])
    found = resolve(str(folder))
    assert (found.encoder, found.subtract, found.projector) == (config.encoder, True, projector.config)
    assert found.dim == 5
    trained = case.Case(config=config, encoder=load_encoder(spec, dtype=torch.float32), projector=projector)
    sentences, conditions = ["A woman in a red dress", "Two people"], ["color of the dress", "number of people"]
    vectors = raycase.load(str(folder), dtype=torch.float32).embed(sentences, conditions)
    assert vectors.shape == (2, 5)
    np.testing.assert_array_equal(vectors, trained.embed(sentences, conditions))


@pytest.mark.parametrize("before", [False, True])
def test_without_its_last_file_it_is_no_model(tmp_path, spec, monkeypatch, before):
    """Killed before the weights are whole: neither the new model nor half of the old one is there."""
    folder = tmp_path / "model"
    if before:
        write(folder, spec, "old")

    def killed(projector, file):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_folder, "save_weights", killed)
    with pytest.raises(KeyboardInterrupt):
        write(folder, spec, "new")
    assert sorted(contents(folder)) == sorted([METRICS, CARD, WEIGHTS])
    with pytest.raises(RequestError):
        resolve(str(folder))
    assert open_model_folder(folder, "new") is None  # the same command trains again
    with pytest.raises(RequestError, match="--output"):
        open_model_folder(folder, "old")
    monkeypatch.undo()
    write(folder, spec, "new")
    assert open_model_folder(folder, "new")["fingerprint"] == "new"


def table(card):
    """The rows of every table of two columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_the_card_has_the_figures_of_the_metrics_and_what_the_model_is(tmp_path, spec):
    options = {"layers": 2, "hidden": 6, "dropout": 0.25}
    card = (write(tmp_path / "my-model", spec, **options) / CARD).read_text(encoding="utf-8")
    rows = table(card)
    assert (rows["spearman"], rows["pearson"]) == ("61.23", "58.77")
    assert rows["spearman, the same vectors without projector"] == "41.12"
    assert {name: rows[name] for name in METRICS_OF["recipe"]} == {k: str(v) for k, v in METRICS_OF["recipe"].items()}
    assert (rows["seed"], rows["workers"]) == ("31", "2") and card.startswith("# my-model\n")
    wanted = ["epoch 17 of 27", "python jobs/train.py case --train 'learn.csv'", "1234abc", "98.7 s", "8 cores"]
    wanted += [f"| train | learn.csv | 11342 | `{'a1' * 8}` |", model(spec, **options)[0].describe()["weights"]]
    assert [value for value in wanted if value not in card] == []


def test_a_card_of_many_files_counts_them_and_ends_a_long_command(tmp_path, spec):
    data = {str(n): {"file": f"{n}.csv", "rows": 10, "sha256": "a1" * 32} for n in range(6)}
    command = "python jobs/train.py case --train " + "learn.csv " * 60
    metrics = METRICS_OF | {"data": data, "provenance": METRICS_OF["provenance"] | {"command": command}}
    card = (write(tmp_path / "model", spec, metrics=metrics) / CARD).read_text(encoding="utf-8")
    assert "| 3 | 3.csv | 10 |" in card and "| 2 more | | 20 | |" in card and "4.csv" not in card
    assert card.count("learn.csv") < 30 and " learn.csv ...\n" in card
