"""The request of an evaluation: where vectors are cached, which models do not fit a task, what else is refused."""

from pathlib import Path
from typing import get_type_hints

import pytest

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request, open_report_folder
from raycase.evaluation.models import find_models
from raycase.evaluation.procedure import TASKS, evaluate, find_task
from raycase.io.fetch import DEFAULT_MODEL
from raycase.job.runner import Runner
from raycase.job.vector_cache import VectorCache
from raycase.models.contracts import sentence_encoder
from raycase.models.registry import of_papers
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.dualcse.model import dualcse
from raycase.papers.mixsp.model import mixsp


def test_vectors_are_sought_where_training_put_them(evaluation, models, tmp_path):
    [folder, name] = find_models(evaluation(models[0], "minilm"))
    assert Path(folder.cache.path) == Path(name.cache.path) == models[0].parent / "cache"
    [alone] = find_models(evaluation("minilm"))
    assert Path(alone.cache.path) == tmp_path / "cache"
    [shipped] = find_models(evaluation(DEFAULT_MODEL))  # not beside its folder, which is in the package
    assert Path(shipped.cache.path) == tmp_path / "cache"
    [said] = find_models(evaluation(models[0], cache=str(tmp_path / "x")))
    assert Path(said.cache.path) == tmp_path / "x"


def test_vectors_are_embedded_once(evaluation, models, tmp_path):
    job = evaluation(models[0], cache=str(tmp_path / "cache"))
    first = evaluate(job, vectors_of=VectorCache(Runner()).vectors_of)  # on Ray: see test_train.py
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    written = [file.stat().st_mtime_ns for file in files]
    assert len([file for file in files if file.parent.name == "embeddings"]) == 1
    assert evaluate(job, vectors_of=VectorCache(Runner()).vectors_of)["systems"] == first["systems"]
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
    asked = EvaluateJob(model=(str(tmp_path / "model"),), data=str(tmp_path), output=str(tmp_path / "r"), task=task)
    with pytest.raises(RequestError, match=message):
        find_models(asked, find_task(task).expected)


def test_a_folder_that_holds_something_else_is_refused(models, tmp_path):
    with pytest.raises(RequestError, match=r"--output: .*got one of another job: .*pass --output .*report"):
        open_report_folder(str(models[0]))
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(RequestError, match=r"--output: .*got one of another job"):
        open_report_folder(str(tmp_path))
    (tmp_path / "metrics.json").write_text('{"task": "csts"}')
    assert open_report_folder(str(tmp_path)) == tmp_path
    with pytest.raises(RequestError, match="on this machine"):
        check_request(EvaluateJob(model=("minilm",), data="data.csv", output="s3://bucket/report"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sts", "threshold_from": "dev.csv"}, "--threshold-from: expected none but for --task rte"),
        ({"resamples": 1}, "--resamples: expected 100 to 1,000,000, for"),
        ({"seed": 2**64}, "--seed: expected 0 to 4,294,967,295, got 18446744073709551616"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        check_request(EvaluateJob(model=("minilm",), data="data.csv", output=str(tmp_path), **options))


def test_the_table_has_every_task():
    assert (*TASKS, *of_papers("tasks")) == get_type_hints(EvaluateJob)["task"].__args__
