"""CSFCube: measures by hand, the data's refusals, systems that must win, the report."""

import json

import numpy as np
import pytest
from csfcube import TASK, Cube, average_precision, full_recall_precision, ndcg_at, rank_pools, read_cube, recall_at

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.procedure import run_task
from raycase.evaluation.report import render_ranked


def papers(folder, qrels=None):
    """Six papers whose method says its number; each query finds those of its parity relevant."""
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "id": str(i),
            "title": f"title {i % 3}",
            "sentences": [
                {"facet": "objective", "text": f"we want {i}"},
                {"facet": "method", "text": f"method {i % 2}"},
                {"facet": "method", "text": f"more {i % 2}"},
                *([{"facet": "result", "text": f"result {i % 3}"}] if i else []),
            ],
        }
        for i in range(6)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = qrels or [("0", "method", str(c), 3 if c % 2 == 0 else 0) for c in range(1, 6)] + [
        ("1", "result", str(c), 2 if c % 3 == 1 else 1) for c in (5, 4, 3, 2, 0)
    ]
    lines = ["query_id,facet,candidate_id,relevance", *(",".join(map(str, r)) for r in rows)]
    (folder / "qrels_dev.csv").write_text("\n".join(lines))
    return str(folder)


def test_each_pool_is_ranked_by_itself():
    cube = Cube(
        uri="",
        papers=dict.fromkeys("qabcde", "a title and an abstract"),
        pools={("q", "method"): (list("abcde"), np.array([0, 3, 2, 1, 0]))},
    )
    pairs = cube.pairs()
    scores = {"a": 5, "b": 4, "c": 1, "d": 3, "e": 2}
    place = {pairs[name, "method"]: value for name, value in scores.items()}
    [found] = rank_pools(cube, pairs, lambda query, pool: np.array([place[p] for p in pool]))
    # ranked a b d e c: grades 0 3 1 0 2, relevant at ranks 2 and 5; a fifth of five is one
    assert found == pytest.approx([(1 / 2 + 2 / 5) / 2, 0, 2 / 5, 1])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("9", "method", "1", 0), "got 9, method, 1"),
        (("0", "methods", "1", 0), "got 0, methods, 1"),
        (("0", "method", "2", 1), "got 0, method, 2"),
    ],
)
def test_judgements_that_do_not_fit_are_refused(tmp_path, row, words):
    with pytest.raises(RequestError, match=words):
        read_cube(papers(tmp_path, [("0", "method", "2", 1), row]))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RequestError, match="--data: expected"):
        read_cube(str(tmp_path / "none"))


def letters(texts):
    """Vectors that know which digits and words a text has."""
    words = ["0", "1", "2", "3", "4", "5", "title", "want", "method", "more", "result"]
    return np.array([[t.split().count(w) + 0.01 for w in words] for t in texts], dtype=np.float32)


def asked(tmp_path, *models):
    """An evaluation of models on the six papers."""
    data, report = papers(tmp_path / "d"), str(tmp_path / "r")
    return EvaluateJob(task="csfcube", model=models, data=data, output=report, resamples=100)


def test_the_report_of_csfcube(tmp_path):
    def vectors_of(texts, config, **_):
        """Plain vectors know all; under "the proposed method" they know the method alone."""
        return letters([t if isinstance(t, str) else " ".join(t[0].split()[4:8]) for t in texts])

    metrics = run_task(asked(tmp_path, "condition-pooling:minilm"), TASK, vectors_of=vectors_of)
    plain, conditional, both = metrics["systems"]
    values = [s["figures"]["method"]["MAP"]["value"] for s in (plain, conditional)]
    assert values[1] > values[0]
    assert conditional["against"]["method"]["MAP"]["difference"] == pytest.approx(values[1] - values[0])
    assert "against" not in plain and both["name"] == "condition-pooling:minilm: plain + conditional"
    report = (tmp_path / "r" / "report.md").read_text()
    assert report == render_ranked(json.loads((tmp_path / "r" / "metrics.json").read_text()))
    assert "method (1)" in report and "## recall at 20" in report


def test_the_collection_of_the_data_folder_is_read(data):
    cube = read_cube(str(data / "csfcube"))
    assert len(cube.papers) == 4205 and len(cube.pools) == 24
    assert sum(len(pool) for pool, _ in cube.pools.values()) == 2549


def test_measures_of_a_ranking_by_hand():
    relevant = np.array([True, False, True, False, False])
    assert average_precision(relevant) == pytest.approx((1 + 2 / 3) / 2)
    assert full_recall_precision(relevant) == pytest.approx(2 / 3)
    assert [recall_at(relevant, k) for k in (1, 2, 3)] == [0.5, 0.5, 1]
    none = np.zeros(3, bool)
    assert (average_precision(none), full_recall_precision(none), recall_at(none, 2)) == (0, 0, 0)


def test_ndcg_by_hand():
    """Discounts 1, 1, log2(3), 2: the first two ranks count alike, as in the collection's script."""
    grades = np.array([0, 3, 1, 2])
    assert ndcg_at(grades, 2) == pytest.approx((0 + 3) / (3 + 2))
    assert ndcg_at(grades, 4) == pytest.approx((3 + 1 / np.log2(3) + 2 / 2) / (3 + 2 + 1 / np.log2(3)))
    assert ndcg_at(np.array([2, 3]), 2) == 1
    assert ndcg_at(np.zeros(3), 2) == 0 == ndcg_at(grades, 0)
