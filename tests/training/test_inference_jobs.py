"""Training on premises with hypotheses: what is refused, and a model whose report has the figures of training."""

import json
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from helpers import vectors_of
from uncached import open_local_runner

from raycase.errors import RequestError
from raycase.evaluation.job import SAVED, EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.systems.dualcse import DualCseForm
from raycase.training import job as jobs
from raycase.training.inferences import DualCseJob

fine_tune = partial(jobs.train, open_runner=open_local_runner)


@pytest.fixture
def tuning(inferences, tiny_model, tmp_path):
    def job(kind, system, **options):
        settings = inferences | {"model": str(tiny_model), "compute": "float32", "output": str(tmp_path / system)}
        return kind(**settings | {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3} | options)

    return job


def test_a_premise_that_is_trained_on_is_no_validation(tuning, inferences):
    both = pd.concat([pd.read_csv(inferences[name]) for name in ("validation", "train")])
    both.to_csv(inferences["validation"], index=False)
    with pytest.raises(RequestError, match="no premise that is trained on, got 24"):
        fine_tune(tuning(DualCseJob, "dualcse"))


def test_the_report_on_two_vectors_a_sentence_has_the_figures_of_training(inferences, tiny_model, tmp_path):
    settings = {"model": str(tiny_model), "compute": "float32", "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
    fit = DualCseJob(form=DualCseForm.BI, output=str(tmp_path / "dualcse"), **settings, **inferences)
    metrics = fine_tune(fit)
    assert fine_tune(fit) == json.loads(json.dumps(metrics)), "the same command does nothing"
    with pytest.raises(RequestError, match="got another"):
        fine_tune(replace(fit, intra=False))
    trained = metrics["validation"]
    for task in ("rte", "eis"):
        job = EvaluateJob(
            model=(fit.output,),
            data=inferences["validation"],
            output=str(tmp_path / "report"),
            task=task,
            compute="float32",
            resamples=100,
        )
        figures = evaluate(job, vectors_of=vectors_of)["systems"][0]["figures"]
        assert figures["all"]["accuracy"]["value"] == pytest.approx(trained[task], abs=1e-6)
    report = evaluate(replace(job, task="rte", threshold_from=SAVED), vectors_of=vectors_of)
    assert report["thresholds"]["dualcse"] == [pytest.approx(trained["threshold"])]
    assert report["systems"][0]["what"].endswith(", tuned on these very premises")
    card = (tmp_path / "dualcse" / "README.md").read_text()
    assert f"told by a cosine above {trained['threshold']:.4f}." in card and "| threshold |" not in card
