"""Planted data of papers."""

import numpy as np
import pandas as pd
import pytest

from raycase.papers.dualcse.task import COLUMNS


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
        pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)
        return str(path)

    return {"train": write("train", "a"), "validation": write("validation", "two")}
