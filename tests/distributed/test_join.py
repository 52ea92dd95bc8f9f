"""The join on Ray: against brute force, a stop in the middle, the script."""

import json

import pytest
from helpers import call_job
from joined import brute, check, written_to_join

from raycase.data.storage import locate
from raycase.distributed import join as module
from raycase.distributed.join import JoinJob, join
from raycase.errors import RequestError, WorkError

SMALL = {"group_rows": 100, "range_rows": 400}


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    return written_to_join(tmp_path_factory.mktemp("joined"), tiny_model)


def test_a_join_gives_what_brute_force_gives(cluster, home, s3_server):
    uri = "s3://corpus/neighbours"
    job = JoinJob(queries=str(home / "queries"), vectors=str(home / "vectors"), output=uri, k=5, exclude_same="image")
    result = join(job, **SMALL)
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (300, 1500, 0)
    check(uri, brute(home, 5, "image"), 5)
    assert len((locate(uri) / "neighbours").list()) > 2
    assert not (locate(uri) / "parts").list()


def test_queries_under_one_condition_are_joined_with_vectors_under_another(cluster, home, tmp_path):
    under = ("number of people", "color")
    job = JoinJob(
        queries=str(home / "queries"),
        vectors=str(home / "vectors"),
        output=str(tmp_path / "n"),
        k=5,
        query_condition=under[0],
        condition=under[1],
    )
    result = join(job, **SMALL)
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (150, 750, 0)
    check(job.output, brute(home, 5, under=under), 5)
    with pytest.raises(RequestError, match="or this very join"):
        join(JoinJob(queries=job.queries, vectors=job.vectors, output=job.output, k=5), **SMALL)


def test_a_join_whose_folder_another_took_over_ends_and_removes_nothing(cluster, home, tmp_path, monkeypatch):
    job = JoinJob(queries=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    root = locate(job.output)

    def taken(*arguments, **stage):
        (root / "parts" / "000000-000000.parquet").put(b"of the other join")
        (root / "join.json").put_json({"fingerprint": "another"})

    monkeypatch.setattr(module, "run_tasks", taken)
    with pytest.raises(WorkError, match="another: a job with --overwrite took the folder over"):
        join(job, **SMALL)
    assert (root / "parts").list()


def test_a_join_that_was_stopped_resumes(cluster, home, tmp_path, monkeypatch):
    job = JoinJob(queries=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    run, tasks = module.run_tasks, []

    def stopped(todo, work, *, progress, **stage):
        run(todo[:3] if progress == "searched" else [], work, progress=progress, **stage)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_tasks", stopped)
    with pytest.raises(KeyboardInterrupt):
        join(job, **SMALL)
    assert len((locate(job.output) / "parts").list()) == 3
    with pytest.raises(RequestError, match="or this very join"):
        join(JoinJob(queries=job.queries, vectors=job.vectors, output=job.output, k=4), **SMALL)

    def counted(todo, work, *, progress, **stage):
        tasks.append((progress, len(todo)))
        run(todo, work, progress=progress, **stage)

    monkeypatch.setattr(module, "run_tasks", counted)
    join(job, **SMALL)
    check(job.output, brute(home, 5), 5)
    ranges = len(json.loads((tmp_path / "n" / "join.json").read_text())["ranges"])
    groups = len(list((tmp_path / "n" / "neighbours").iterdir()))
    assert tasks == [("searched", groups * ranges - 3), ("merged", groups)]
    assert join(job, **SMALL)["neighbours"] == 1500
    assert len(tasks) == 2  # nothing was left to do


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"queries": "nowhere"}, "--queries: expected an output of `raycase embed`"),
        ({"vectors": "other"}, "--vectors: expected vectors of the queries' model"),
        ({"vectors": "plain"}, "expected both under conditions or both without"),
        ({"query_condition": "color"}, "--query-condition: expected --condition beside it"),
        ({"query_condition": "weather", "condition": "color"}, "--query-condition: expected one of .*, got 'weather'"),
        ({"query_condition": "color", "condition": ""}, "--condition: expected one of .*, got ''"),
        ({"query_condition": "a", "condition": "a", "conditions": ("a",)}, "got --conditions to pool under"),
        ({"exclude_same": "embedding"}, "--exclude-same: expected one of id, text, image"),
    ],
)
def test_wrong_joins_are_refused(home, tmp_path, options, words):
    named = {name: str(home / options.get(name, name)) for name in ("queries", "vectors")}
    with pytest.raises(RequestError, match=words):
        join(JoinJob(output=str(tmp_path / "n"), **options | named))


def test_the_script_refuses_with_status_2(tmp_path):
    wrong = call_job(
        "--queries", tmp_path, "--vectors", tmp_path, "--output", tmp_path / "n", "-k", 3, script="join.py"
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --queries:") and wrong.stderr.count("\n") == 1
