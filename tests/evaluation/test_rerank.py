"""Re-ranking: both measures by hand, figures of folders that embed and that score, files that are refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers import cosines, vectors_of

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.errors import RequestError
from raycase.evaluation.tasks.rerank import reciprocal_rank_at, tied_average_precision
from raycase.models.configs import sentence_encoder
from raycase.papers.mixsp.model import mixsp


@pytest.mark.parametrize(
    ("scores", "relevant", "precision", "reciprocal"),
    [
        ([3, 2, 1], [1, 0, 1], (1 + 2 / 3) / 2, 1),
        ([1, 2, 3], [1, 0, 0], 1 / 3, 1 / 3),
        ([2, 2, 1], [1, 0, 0], 1 / 2, 1 / 2),  # a tie: both at the second place
        ([2, 2, 2, 1], [1, 1, 0, 1], (2 / 3 + 2 / 3 + 3 / 4) / 3, 1 / 2),
    ],
)
def test_measures_of_a_ranking_by_hand(scores, relevant, precision, reciprocal):
    scores, relevant = np.array(scores), np.array(relevant, dtype=bool)
    assert tied_average_precision(scores, relevant) == pytest.approx(precision)
    assert reciprocal_rank_at(scores, relevant, 10) == pytest.approx(reciprocal)


def planted(texts, config, **_):
    """Unit vectors in the plane: a text ends in its degrees."""
    return np.array(
        [[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in (int(t.split()[-1]) for t in texts)]
    )


ROWS = [
    {"query": "a 0", "positive": ["b 10", "c 50"], "negative": ["d 30", "e 90"]},  # b d c e
    {"query": ["a 0", "f 120"], "positive": ["g 110"], "negative": ["h 20", "d 30"]},  # g: 10 degrees, h 20, d 30
    {"query": "i 0", "positive": ["j 90"], "negative": ["k 10", "l 20", "m 30"]},  # the last
    {"query": "n 0", "positive": [], "negative": ["k 10"]},
]


@pytest.fixture
def asked(tiny_model, tmp_path):
    """Makes a job about two folders, one that embeds and one that scores, over rows of .jsonl."""
    sentence_encoder(str(tiny_model)).trainable().save(tmp_path / "encoder")
    mixsp(str(tiny_model)).trainable().save(tmp_path / "mixsp")

    def job(rows, models=("encoder", "mixsp")):
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        folders = tuple(str(tmp_path / name) for name in models)
        settings = {"task": "rerank", "compute": "float32", "resamples": 100, "output": str(tmp_path / "report")}
        return EvaluateFlags(model=folders, data=str(tmp_path / "rows.jsonl"), **settings)

    return job


def figures(system):
    return {name: figure["value"] for name, figure in system["figures"]["all"].items()}


def test_figures_by_hand(asked, tmp_path):
    rows = [row | {"query": row["query"] if isinstance(row["query"], list) else [row["query"]]} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    job = replace(asked(ROWS, ("encoder",)), data=str(tmp_path / "rows.parquet"))
    metrics = measure(job, vectors_of=planted)
    assert measure(asked(ROWS, ("encoder",)), vectors_of=planted)["systems"] == metrics["systems"]
    precisions, reciprocals = [(1 + 2 / 3) / 2, 1, 1 / 4], [1, 1, 1 / 4]
    wanted = {"map": 100 * np.mean(precisions), "mrr@10": 100 * np.mean(reciprocals)}
    assert figures(metrics["systems"][0]) == pytest.approx(wanted)
    assert metrics["data"].items() >= {"queries": 3, "candidates": 11, "left_out": 1}.items()
    report = (tmp_path / "report" / "report.md").read_text()
    assert "3 queries, 11 candidates. 1 without positive and negative texts are left out." in report


def test_the_figures_are_those_of_the_loaded_folders(asked):
    """Of one that embeds, and of one that scores each pair, the query first."""
    words = ["red", "dog", "dress", "people play", "a woman", "two men"]
    rows = [{"query": f"{w} {n}", "positive": words[:2], "negative": words[2:]} for n, w in enumerate(words)]
    job = asked(rows)
    encoder, scorer = (raycase.load(model, dtype=torch.float32) for model in job.model)
    by_cosine, by_score = [], []
    for row in rows:
        query, own = encoder.embed([row["query"]], None), encoder.embed(words, None)
        by_cosine.append(tied_average_precision(cosines(own, query), np.arange(6) < 2))
        by_score.append(tied_average_precision(scorer.score([row["query"]] * 6, words), np.arange(6) < 2))
    systems = measure(job, vectors_of=vectors_of)["systems"]
    for system, wanted in zip(systems, (by_cosine, by_score), strict=True):
        assert figures(system)["map"] == pytest.approx(100 * np.mean(wanted), abs=1e-3)
    assert "against" in systems[1]


def test_wrong_rows_are_refused(asked):
    for rows, words in (
        ([ROWS[0], ROWS[1] | {"query": 7}], "row 1: expected a list of texts with words in 'query', got 7"),
        (ROWS[3:], "expected queries with positive and negative texts in .*, got none"),
    ):
        with pytest.raises(RequestError, match=words):
            measure(asked(rows), vectors_of=planted)
