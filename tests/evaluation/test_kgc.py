"""Knowledge graph completion's report: which triples are asked for, and which answers are left out."""

import numpy as np
import pytest

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate

SCORES = {"cat": {"mammal": 4, "pet": 3, "animal": 2}, "ant": {"animal": 2, "pet": 1}}  # of a head's tails
NAMES = ["cat", "ant", "mammal", "pet", "animal"]
TRIPLES = {
    "train": [("cat", "mammal")],
    "validation": [("cat", "pet"), ("ant", "pet")],
    "test": [("cat", "animal"), ("ant", "animal")],
}


@pytest.fixture
def job(tmp_path):
    """Evaluates a graph of five entities and one relation."""
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "entities.tsv").write_text("id\tname\tdefinition\n" + "".join(f"{n}\t{n}\t\n" for n in NAMES))
    (folder / "relations.tsv").write_text("_is\tis a\n")
    for part, triples in TRIPLES.items():
        (folder / f"{part}.tsv").write_text("".join(f"{head}\t_is\t{tail}\n" for head, tail in triples))
    return lambda split: EvaluateJob(
        task="kgc", model=("minilm",), data=str(folder), output=str(tmp_path / "report"), split=split, resamples=100
    )


def vectors_of(texts, *_, **__):
    """An entity's own direction, and for a head under the relation its scores along them."""
    if isinstance(texts[0], str):
        return np.eye(len(NAMES), dtype=np.float32)[[NAMES.index(text) for text in texts]]
    return np.array([[SCORES.get(head, {}).get(name, 0.1) for name in NAMES] for head, _ in texts], dtype=np.float32)


def test_a_split_leaves_out_what_the_parts_up_to_it_know(job):
    reports = {split: evaluate(job(split), vectors_of=vectors_of) for split in (None, "validation", "test")}
    values = {split: report["systems"][0]["figures"]["tail"]["mrr"]["value"] for split, report in reports.items()}
    # validation: pet comes first for cat, without mammal; second for ant, whose animal only the test triples know
    # test: animal comes first for cat, without mammal and pet
    assert values == {None: 75, "validation": 75, "test": 100}
    assert reports["test"]["data"] == {"entities": 5, "train": 1, "validation": 2, "test": 2}


def test_a_split_that_is_not_there_is_named(job, tmp_path):
    (tmp_path / "graph" / "test.tsv").unlink()
    evaluate(job("validation"), vectors_of=vectors_of)
    with pytest.raises(RequestError, match=r"test.tsv: expected a readable tsv file, got"):
        evaluate(job("test"), vectors_of=vectors_of)
