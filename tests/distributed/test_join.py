"""All-pairs nearest neighbours on Ray: against brute force, over cuts, exclusions, a stop in the middle, refusals."""

import json

import numpy as np
import pyarrow.dataset as ds
import pytest
from helpers import embedded, read_output, run_job, sentences, vectors

from raycase.data.storage import locate
from raycase.distributed import join as module
from raycase.distributed.join import JoinJob, join
from raycase.errors import RequestError
from raycase.search.topk import l2_normalize

CONDITIONS = ("color", "number of people")


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """Queries (some of the vectors' own rows) and vectors, each under two conditions in several units."""
    home = tmp_path_factory.mktemp("joined")
    rows = [{"id": f"r{i}", "text": t, "image": i // 5} for i, t in enumerate(sentences(450))]
    kept = {"conditions": CONDITIONS, "keep_columns": ("text", "image")}
    embedded(home / "v", tiny_model, rows, output=str(home / "vectors"), **kept)
    embedded(home / "q", tiny_model, rows[::3], output=str(home / "queries"), unit_rows=40, **kept | {})
    embedded(home / "p", tiny_model, rows[:5], output=str(home / "plain"), unconditional=True)
    embedded(home / "o", tiny_model, rows[:5], output=str(home / "other"), subtract=False, **kept)
    return home


def brute(home, k, exclude=None):
    """(id, condition) -> ids and cosines of the k nearest under the same condition."""
    queries, found = read_output(str(home / "queries")).to_pylist(), read_output(str(home / "vectors"))
    theirs, all_vectors = found.to_pylist(), l2_normalize(vectors(found))
    answers = {}
    for row in queries:
        scores = all_vectors @ l2_normalize(np.array([row["embedding"]]))[0]
        kept = [i for i, r in enumerate(theirs) if r["condition"] == row["condition"]]
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


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 100)
    monkeypatch.setattr(module, "RANGE_ROWS", 400)


def test_a_join_gives_what_brute_force_gives(cluster, home, small, s3_server):
    uri = "s3://corpus/neighbours"
    result = join(JoinJob(queries=str(home / "queries"), vectors=str(home / "vectors"), output=uri, k=5))
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (300, 1500, 0)
    check(uri, brute(home, 5), 5)
    assert len((locate(uri) / "neighbours").list()) > 2
    assert not (locate(uri) / "parts").list()


def test_neighbours_with_the_querys_own_value_are_left_out(cluster, home, tmp_path):
    job = JoinJob(
        queries=str(home / "queries"),
        vectors=str(home / "vectors"),
        output=str(tmp_path / "n"),
        k=4,
        exclude_same="image",
    )
    join(job)
    check(job.output, brute(home, 4, "image"), 4)


def test_a_join_that_was_stopped_does_what_is_missing(cluster, home, tmp_path, small, monkeypatch):
    job = JoinJob(queries=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    run, tasks = module.run_tasks, []

    def stopped(todo, work, *, progress, **stage):
        run(todo[:3] if progress == "searched" else [], work, progress=progress, **stage)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_tasks", stopped)
    with pytest.raises(KeyboardInterrupt):
        join(job)
    assert len((locate(job.output) / "parts").list()) == 3
    with pytest.raises(RequestError, match="expected this very join"):
        join(JoinJob(queries=job.queries, vectors=job.vectors, output=job.output, k=4))

    def counted(todo, work, *, progress, **stage):
        tasks.append((progress, len(todo)))
        run(todo, work, progress=progress, **stage)

    monkeypatch.setattr(module, "run_tasks", counted)
    join(job)
    check(job.output, brute(home, 5), 5)
    ranges = len(json.loads((tmp_path / "n" / "join.json").read_text())["ranges"])
    groups = len(list((tmp_path / "n" / "neighbours").iterdir()))
    assert tasks == [("searched", groups * ranges - 3), ("merged", groups)]
    assert join(job)["neighbours"] == 1500
    assert len(tasks) == 2  # nothing was left to do


def test_ids_may_be_of_two_types_and_conditions_a_column(cluster, tmp_path, tiny_model, small):
    """Sorted by condition, so that some ranges have none of a group's."""
    texts = sentences(120, 4)
    vectors = [{"id": f"v{i}", "text": t, "about": "color" if i < 60 else "dogs"} for i, t in enumerate(texts)]
    queries = [{"id": i, "text": t, "about": "dogs" if i else "cats"} for i, t in enumerate(texts[:5])]
    named = {"condition_column": "about", "unit_rows": 20}
    v, q = (embedded(tmp_path / n, tiny_model, r, **named) for n, r in (("v", vectors), ("q", queries)))
    result = join(JoinJob(queries=q, vectors=v, output=str(tmp_path / "n"), k=3))
    assert (result["queries"], result["queries_without_neighbours"], result["neighbours"]) == (5, 1, 12)
    found = ds.dataset(tmp_path / "n" / "neighbours").to_table().to_pylist()
    assert {row["id"] for row in found} == {1, 2, 3, 4}
    assert all(int(row["neighbour"][1:]) >= 60 for row in found)
    with pytest.raises(RequestError, match="expected 'id' of one type in both, got int64 and string"):
        join(JoinJob(queries=q, vectors=v, output=str(tmp_path / "m"), exclude_same="id"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"queries": "nowhere"}, "--queries: expected an output of jobs/embed.py"),
        ({"vectors": "other"}, "--vectors: expected vectors of the queries' model"),
        ({"vectors": "plain"}, "expected both under conditions or both without"),
        ({"exclude_same": "embedding"}, "--exclude-same: expected one of id, text, image"),
    ],
)
def test_wrong_joins_are_refused(home, tmp_path, options, words):
    named = {name: str(home / options.get(name, name)) for name in ("queries", "vectors")}
    with pytest.raises(RequestError, match=words):
        join(JoinJob(output=str(tmp_path / "n"), **options | named))


def test_the_script_refuses_with_status_2(tmp_path):
    wrong = run_job("--queries", tmp_path, "--vectors", tmp_path, "--output", tmp_path / "n", "-k", 3, script="join.py")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --queries:") and wrong.stderr.count("\n") == 1
