"""What the tests of indexes and searches share: rows, queries, brute force over the files of an output."""

import numpy as np
import pyarrow as pa
import pytest
from helpers import embedded, read_output, sentences, vectors

from raycase.errors import RequestError
from raycase.index.build import build
from raycase.io.vectors import l2_normalize

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


def alike(found, wanted):
    """Two tables have the same answers, with scores to 1e-6: of rows that tie to that, any comes first."""
    ours, theirs = found.to_pylist(), wanted.to_pylist()
    assert [(row["query"], row["rank"]) for row in ours] == [(row["query"], row["rank"]) for row in theirs]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=2e-6)
    score_of = {(row["query"], row["id"]): row["score"] for row in theirs}
    last = {row["query"]: row["score"] for row in theirs}  # of rows that tie with the last, others may be there
    for row in ours:
        assert row["score"] == pytest.approx(score_of.get((row["query"], row["id"]), last[row["query"]]), abs=2e-6)


def refuse(job, words, work=build):
    with pytest.raises(RequestError, match=words) as error:
        work(**job) if isinstance(job, dict) else work(job)
    assert "\n" not in str(error.value) and ".rs:" not in str(error.value)


def index_of_thirty(folder, tiny_model):
    """An index of 30 texts under "color", by a fine-tuned system; gives its URI and the text of each id."""
    import torch

    from raycase.papers.baselines.model import bi_encoder

    torch.manual_seed(0)
    bi_encoder(str(tiny_model)).trainable().save(folder / "bi")
    words = ["red", "blue", "dog", "cat", "people", "play"]
    texts = {i: f"{words[i % 6]} {words[i // 6]} {i}" for i in range(30)}
    settings = {"conditions": ("color",), "unconditional": False, "prompt": None, "pooling": None}
    output = embedded(folder, folder / "bi", [{"id": i, "text": text} for i, text in texts.items()], **settings)
    build(embeddings=(output,), output=str(folder / "index.lance"))
    return str(folder / "index.lance"), texts
