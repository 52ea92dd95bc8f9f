"""Requests to train on premises with hypotheses: what is refused."""

import pandas as pd
import pytest

from raycase.distributed.train import train as fine_tune
from raycase.errors import RequestError
from raycase.training.inference_jobs import DualCseJob, SimCseJob


@pytest.fixture
def tuning(inferences, tiny_model, tmp_path):
    def job(kind, system, **options):
        settings = inferences | {"model": str(tiny_model), "compute": "float32", "output": str(tmp_path / system)}
        return kind(**settings | {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3} | options)

    return job


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (DualCseJob, {"temperature": 0.0}, "--temperature: expected a number above 0"),
        (DualCseJob, {"train": "nowhere.csv"}, "--train"),
        (SimCseJob, {"epochs": 0}, "--epochs"),
    ],
)
def test_wrong_requests_are_refused(tuning, kind, options, said):
    with pytest.raises(RequestError, match=said):
        fine_tune(tuning(kind, "x", **options))


def test_a_premise_that_is_trained_on_is_no_validation(tuning, inferences):
    both = pd.concat([pd.read_csv(inferences[name]) for name in ("validation", "train")])
    both.to_csv(inferences["validation"], index=False)
    with pytest.raises(RequestError, match="no premise that is trained on, got 24"):
        fine_tune(tuning(DualCseJob, "dualcse"))
