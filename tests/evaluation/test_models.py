"""The models of an evaluation: where their vectors are cached, once, and which do not fit a task."""

from pathlib import Path

import pytest

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.models import find_models
from raycase.evaluation.procedure import TASKS, evaluate
from raycase.io.model_files import DEFAULT_MODEL
from raycase.job.runner import Runner
from raycase.models.configs import sentence_encoder
from raycase.models.registry import of_paper
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.dualcse.model import dualcse
from raycase.papers.mixsp.model import mixsp
from raycase.training.vector_cache import VectorCache


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
    asked = EvaluateFlags(model=(str(tmp_path / "model"),), data=str(tmp_path), output=str(tmp_path / "r"), task=task)
    with pytest.raises(RequestError, match=message):
        find_models(asked, (TASKS.get(task) or of_paper("tasks", task)).expected)
