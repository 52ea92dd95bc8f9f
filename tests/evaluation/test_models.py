"""An evaluation's request: what is refused whatever the task; its models: where their vectors are cached, which fit."""

from pathlib import Path
from typing import get_type_hints

import pytest

from raycase.commands.evaluate import EvaluateFlags, check_places, measure
from raycase.encoder.model_files import DEFAULT_MODEL
from raycase.errors import RequestError
from raycase.evaluation.models import find_models
from raycase.evaluation.tasks import TASKS, find_task
from raycase.job.runner import Runner
from raycase.models.configs import sentence_encoder
from raycase.models.registry import of_papers
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.dualcse.model import dualcse
from raycase.papers.mixsp.model import mixsp
from raycase.training.vector_cache import VectorCache


def test_vectors_are_sought_where_training_put_them(models, tmp_path):
    def caches(*names, **options):
        asked = {"task": "csts", "data": "pairs.csv", "output": tmp_path / "report"}
        found = find_models([*map(str, names)], find_task("csts").expected, None, **asked | options)
        return {Path(model.cache.path) for model in found}

    assert caches(models[0], "minilm") == {models[0].parent / "cache"}
    for name in ("minilm", DEFAULT_MODEL):  # not beside its folder, which is in the package
        assert caches(name) == {tmp_path / "cache"}
    assert caches(models[0], cache=str(tmp_path / "x")) == {tmp_path / "x"}


def test_vectors_are_embedded_once(evaluation, models, tmp_path):
    job = evaluation(models[0], cache=str(tmp_path / "cache"))
    first = measure(job, vectors_of=VectorCache(Runner()).vectors_of)  # on Ray: see test_train.py
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    written = [file.stat().st_mtime_ns for file in files]
    assert len([file for file in files if file.parent.name == "embeddings"]) == 1
    assert measure(job, vectors_of=VectorCache(Runner()).vectors_of)["systems"] == first["systems"]
    assert [file.stat().st_mtime_ns for file in files] == written


@pytest.mark.parametrize(
    ("make", "task", "message"),
    [
        (dualcse, "csts", "expected models that take any condition for --task csts, got .*: dualcse form cross"),
        (dualcse, "sts", "expected models that need no condition"),
        (sentence_encoder, "labelled", "expected models that take any condition"),
        (mixsp, "rte", "expected models that give vectors"),
        (cross_encoder, "labelled", "expected models that give vectors for --task labelled, got .*: cross-encoder"),
        (cross_encoder, "sts", "expected models that need no condition"),
    ],
)
def test_models_are_refused_where_they_do_not_fit(make, task, message, tiny_model, tmp_path):
    make(str(tiny_model)).trainable().save(tmp_path / "model")
    names, places = [str(tmp_path / "model")], {"data": str(tmp_path), "output": tmp_path}
    with pytest.raises(RequestError, match=message):
        find_models(names, find_task(task).expected, None, task=task, **places)


def checked(output, **options):
    return check_places(EvaluateFlags(**{"model": ("minilm",), "data": "data.csv", "output": str(output)} | options))


def test_a_folder_that_holds_something_else_is_refused(models, tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    for folder in (models[0], tmp_path):
        with pytest.raises(RequestError, match=r"--output: .*got one of another job: .*pass --output .*report"):
            checked(folder)
    (tmp_path / "metrics.json").write_text('{"task": "csts"}')
    assert checked(tmp_path) == tmp_path
    with pytest.raises(RequestError, match="on this machine"):
        checked("s3://bucket/report")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sts", "threshold_from": "dev.csv"}, "--threshold-from: expected none but for --task rte"),
        ({"model": ("minilm", "minilm")}, "--model: expected one model or more, each once, got"),
        ({"resamples": 1}, "--resamples: expected 100 to 1,000,000, for"),
        ({"seed": 2**64}, "--seed: expected 0 to 4,294,967,295, got 18446744073709551616"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        checked(tmp_path, **options)


def test_the_table_has_every_task():
    assert (*TASKS, *of_papers("tasks")) == get_type_hints(EvaluateFlags)["task"].__args__
