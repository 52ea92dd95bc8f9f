"""The package's functions: their examples run, they do what the commands do, and name arguments, not flags."""

import doctest
import pathlib

import pytest

import raycase
from raycase import api
from raycase.errors import RequestError
from raycase.index import index
from raycase.models import embedder


def test_the_examples_of_the_docstrings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("captions.csv").write_text("text\nA boy sleeps.\nTwo girls in red dresses play soccer.\n")
    raycase.embed("captions.csv", "out", any_condition=True, index="captions.lance")
    assert dir(raycase) == sorted(raycase.__all__)
    for module, examples in ((api, 16), (embedder, 11), (index, 3)):
        done = doctest.testmod(module, extraglobs={"raycase": raycase, "pathlib": pathlib})
        assert done.failed == 0 and done.attempted >= examples


def test_a_model_is_trained_and_evaluated(tiny_model, rated, tmp_path):
    data = rated / "validation.csv"
    files = {"output": tmp_path / "model", "train": rated / "train.csv", "validation": data, "model": tiny_model}
    options = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "epochs": 2, "dim": 8, "ray": False}
    metrics = raycase.train("case", **files, **options)
    report = raycase.evaluate(tmp_path / "model", data, tmp_path / "report", compute="float32", ray=False)
    found = report["systems"][0]["figures"]["all"]["spearman"]["value"]
    assert found == pytest.approx(metrics["validation"]["spearman"], abs=0.1)
    assert raycase.load(tmp_path / "model").encode(["a red dog"], "color").shape == (1, 8)


PAIRS = {"train": "train.csv", "validation": "validation.csv", "output": "out"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: raycase.embed("no.csv", "out", conditions="color"), "^input: expected .*, got nothing"),
        (lambda: raycase.embed("no.csv", "out", condition="color"), "got condition; perhaps conditions"),
        (lambda: raycase.embed("no.csv", "out", conditions="a", max_rejected=7.0), "^max_rejected: expected a share"),
        (lambda: raycase.train("nothing", output="out"), "system: expected one of case, .*, got 'nothing'"),
        (lambda: raycase.train("case", output="out"), "^train: expected it, got none"),
        (lambda: raycase.train("case", **PAIRS, loss="cosent"), "^loss: expected 'squared' or 'pearson', got 'cosent'"),
        (lambda: raycase.train("case", **PAIRS, epochs=object()), "^epochs: expected a valid integer, got '<object"),
        (lambda: raycase.load("csr"), "^model: expected a model, got the system csr; `raycase train csr` makes one"),
    ],
)
def test_errors_name_arguments(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=said) as error:
        call()
    assert "--" not in str(error.value)
