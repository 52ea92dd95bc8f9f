"""What the tests of joins share: outputs to join, brute force over their files, the check of a result."""

import numpy as np
import pyarrow.dataset as ds
from helpers import embedded, read_output, sentences, vectors

from raycase.io.storage import locate
from raycase.io.vectors import l2_normalize

CONDITIONS = ("color", "number of people")


def written_to_join(home, tiny_model):
    """Queries (some of the vectors' own rows) and vectors, each under two conditions in several units."""
    rows = [{"id": f"r{i}", "text": t, "image": i // 5} for i, t in enumerate(sentences(450))]
    kept = {"conditions": CONDITIONS, "keep_columns": ("text", "image")}
    embedded(home / "v", tiny_model, rows, output=str(home / "vectors"), **kept)
    embedded(home / "q", tiny_model, rows[::3], output=str(home / "queries"), unit_rows=40, **kept)
    embedded(home / "p", tiny_model, rows[:5], output=str(home / "plain"), unconditional=True)
    embedded(home / "o", tiny_model, rows[:5], output=str(home / "other"), subtract=False, **kept)
    return home


def brute(home, k, exclude=None, under=None):
    """(id, condition) -> ids and cosines of the k nearest under the same condition, or under these two."""
    queries, found = read_output(str(home / "queries")).to_pylist(), read_output(str(home / "vectors"))
    theirs, all_vectors = found.to_pylist(), l2_normalize(vectors(found))
    answers = {}
    for row in queries:
        own, searched = under or [row["condition"]] * 2
        if row["condition"] != own:
            continue
        scores = all_vectors @ l2_normalize(np.array([row["embedding"]]))[0]
        kept = [i for i, r in enumerate(theirs) if r["condition"] == searched]
        kept = [i for i in kept if exclude is None or theirs[i][exclude] != row[exclude]]
        order = sorted(kept, key=lambda i: (-scores[i], i))[:k]
        answers[row["id"], row["condition"]] = [theirs[i]["id"] for i in order], scores[order]
    return answers


def check(uri, wanted, k):
    folder = locate(uri) / "neighbours"
    found = {}
    for row in ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table().to_pylist():
        found.setdefault((row["id"], row["condition"]), []).append((row["rank"], row["neighbour"], row["score"]))
    assert found.keys() == wanted.keys()
    for key, (ids, scores) in wanted.items():
        ranks, neighbours, ours = zip(*sorted(found[key]), strict=True)
        assert ranks == tuple(range(1, k + 1))
        assert list(neighbours) == ids
        assert np.allclose(ours, scores, atol=1e-5)
