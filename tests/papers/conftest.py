"""A tiny BERT, planted data of papers, and an evaluation."""

import numpy as np
import pandas as pd
import pytest
import small

from raycase.evaluation.job import EvaluateJob
from raycase.papers.dualcse.task import KINDS

NAMES = ["dog", "woman", "dress", "bar", "people", "color", "number", "red", "blue", "green"]


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Its folder's name."""
    return small.save_bert(tmp_path_factory.mktemp("bert"))


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


@pytest.fixture
def graph(tmp_path):
    """Ten entities; each is beside the next one, and is seen from the one after that."""
    ids = [f"e{i}" for i in range(10)]
    rows = [
        f"{i}\t{name}\t{name} at the {NAMES[(n * 3) % 10]}" for n, (i, name) in enumerate(zip(ids, NAMES, strict=True))
    ]
    (tmp_path / "entities.tsv").write_text("id\tname\tdefinition\n" + "\n".join(rows) + "\n")
    (tmp_path / "relations.tsv").write_text("_next\tplay with\n_seen\tred dress\n")
    train = [f"{ids[i]}\t_next\t{ids[(i + 1) % 10]}" for i in range(10)] + [
        f"{ids[i]}\t_seen\t{ids[i - 2]}" for i in range(8)
    ]
    (tmp_path / "train.tsv").write_text("\n".join(train) + "\n")
    (tmp_path / "validation.tsv").write_text(f"{ids[8]}\t_seen\t{ids[6]}\n{ids[9]}\t_seen\t{ids[7]}\n")
    return tmp_path
