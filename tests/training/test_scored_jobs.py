"""Requests to train on scored pairs without a condition: what is refused, and a fit that its report agrees with."""

from dataclasses import replace
from functools import partial

import pytest
from helpers import vectors_of
from uncached import open_local_runner

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.systems.mixsp import Select
from raycase.training import job as jobs
from raycase.training.scored_jobs import MixSpJob

fine_tune = partial(jobs.train, open_runner=open_local_runner)


def test_the_report_has_the_figures_of_training(scored, tiny_model, tmp_path):
    settings = {"train": scored["train"], "validation": scored["validation"], "model": str(tiny_model)}
    settings |= {"compute": "float32", "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
    trained = fine_tune(MixSpJob(output=str(tmp_path / "mixsp"), **settings))["validation"]
    asked = EvaluateJob(
        model=(str(tmp_path / "mixsp"),),
        data=scored["validation"],
        output=str(tmp_path / "report"),
        task="sts",
        compute="float32",
        resamples=100,
    )
    figures = evaluate(asked, vectors_of=vectors_of)["systems"][0]["figures"]["all"]
    assert figures["spearman"]["value"] == pytest.approx(trained["spearman"], abs=1e-2)


def test_pairs_that_are_all_validation_pairs_are_refused(scored, tiny_model, tmp_path):
    both = {"train": scored["train"], "validation": scored["train"], "model": str(tiny_model)}
    with pytest.raises(RequestError, match="--train: expected pairs that are not in --validation, got none"):
        fine_tune(MixSpJob(output=str(tmp_path / "x"), **both))
    heavy = MixSpJob(output=str(tmp_path / "x"), range_weight=-0.1, **both)
    with pytest.raises(RequestError, match="--range-weight: expected at least 0, got"):
        fine_tune(replace(heavy, validation=scored["validation"]))
    assert replace(heavy, range_weight=None).terms["range_weight"] == 1e-4
    assert replace(heavy, range_weight=None, select=Select.SOFT).terms["range_weight"] == 0
    plain = replace(heavy, range_weight=None, select=Select.NONE)
    assert plain.terms == {"similarity_weight": 0, "range_weight": 1e-4}
