"""On real data: zero-shot figures on C-STS, and captions through the whole job."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import cosines, embed_here, read_output, vectors
from scipy.stats import spearmanr

import raycase
from raycase.job.verify import verify


@pytest.mark.long
def test_zero_shot_spearman_on_csts(data):
    """MiniLM, `{s} {c}` pooled over c, minus f(c): 14.0 on the validation rows, and 4.9 without the subtraction."""
    with (data / "csts" / "validation.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    labels = [float(row["label"]) for row in rows]
    conditions = [row["condition"] for row in rows]
    for subtract, wanted in ((True, 14.0), (False, 4.9)):
        case = raycase.load("minilm", subtract=subtract, dtype=torch.float32)
        first, second = (case.embed([row[s] for row in rows], conditions) for s in ("sentence1", "sentence2"))
        assert np.isclose(100 * spearmanr(cosines(first, second), labels)[0], wanted, atol=0.1)


def test_captions_through_the_job(data, job):
    options = {"model": "minilm", "prompt": None, "pooling": None, "keep_columns": ("text", "image"), "limit": 150}
    job = replace(job, input=str(data / "flickr30k" / "captions.parquet"), **options)
    assert embed_here(job)["pairs"] == 300
    table = read_output(job.output)
    plain = raycase.load("minilm", dtype=torch.float32)
    pairs = zip(table["text"].to_pylist(), table["condition"].to_pylist(), strict=True)
    one_by_one = [plain.embed([text], condition)[0] for text, condition in pairs]
    assert cosines(vectors(table), np.stack(one_by_one)).min() > 0.9999
    assert table["id"][0].as_py() == "1000092795#0"
    verify(job.output)
