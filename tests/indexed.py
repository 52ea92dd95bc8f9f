"""What the tests of indexes and searches share: rows, queries, brute force over the files of an output."""

import numpy as np
import pyarrow as pa
import pytest
from helpers import read_output, sentences, vectors

from raycase.errors import RequestError
from raycase.search.build import build
from raycase.search.topk import l2_normalize

CONDITIONS = ("color", "number of people")
QUERIES = ["a red dress", "two people play"]


def rows(count, seed=0, first=0):
    return [{"id": first + i, "text": t, "year": 2000 + i % 20} for i, t in enumerate(sentences(count, seed))]


def brute(output, model, sentence, condition, k, keep=lambda row: True):
    """ids and cosines of the k nearest, from the files that the job wrote."""
    table = read_output(str(output))
    table = table.filter(pa.array([r["condition"] == condition and keep(r) for r in table.to_pylist()]))
    cosines = l2_normalize(vectors(table)) @ l2_normalize(model.embed([sentence], condition))[0]
    order = np.argsort(-cosines, kind="stable")[:k]
    return table["id"].to_numpy()[order].tolist(), cosines[order]


def same(found, wanted):
    ids, cosines = wanted
    assert found["id"].to_pylist() == ids
    assert np.allclose(found["score"].to_numpy(), cosines, atol=1e-5)


def refuse(job, words, work=build):
    with pytest.raises(RequestError, match=words) as error:
        work(job)
    assert "\n" not in str(error.value) and ".rs:" not in str(error.value)
