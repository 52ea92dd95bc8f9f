"""Planted data of papers, and an evaluation."""

import numpy as np
import pandas as pd
import pytest

from raycase.evaluation.job import EvaluateJob
from raycase.papers.dualcse.task import KINDS


@pytest.fixture
def evaluation(tmp_path):
    """Makes a job that evaluates models."""

    def job(*models, **options):
        defaults = {"output": str(tmp_path / "report"), "compute": "float32", "resamples": 100}
        return EvaluateJob(**defaults | {"model": tuple(map(str, models))} | options)

    return job


@pytest.fixture
def inferences(tmp_path):
    """Planted: an explicit entailment says a premise's first word again, an implied one its second."""

    def write(name, first):
        random = np.random.default_rng(len(name))
        words = ["dog", "dress", "people", "woman", "bar", "red"]
        rows = []
        for n in range(24):
            a, b, c, d = random.permutation(words)[:4]
            rows.append((f"{first} {n} {a} {b}", f"{a} {n}", f"{b} {b} {n}", f"{c} {n}", f"{d} {d} {n}"))
        path = tmp_path / f"inferences-{name}.csv"
        pd.DataFrame(rows, columns=KINDS).to_csv(path, index=False)
        return str(path)

    return {"train": write("train", "a"), "validation": write("validation", "two")}
