"""The join: against brute force, on Ray and in this process, a stop in the middle, the script."""

import json
from functools import partial

import pytest
from helpers import call_job
from joined import brute, check, written_to_join

from raycase.corpus.tasks import TasksHere, open_here
from raycase.data.storage import locate
from raycase.distributed.tasks import open_tasks
from raycase.errors import RequestError, WorkError
from raycase.search.join import JoinJob
from raycase.search.join import join as join_by

join = partial(join_by, open_tasks=open_here, group_rows=100, range_rows=400)


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    return written_to_join(tmp_path_factory.mktemp("joined"), tiny_model)


def test_a_join_gives_what_brute_force_gives(cluster, home, s3_server):
    uri = "s3://corpus/neighbours"
    job = JoinJob(
        query_vectors=str(home / "queries"), vectors=str(home / "vectors"), output=uri, k=5, exclude_same="image"
    )
    result = join(job, open_tasks=partial(open_tasks, stall_timeout=30))
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (300, 1500, 0)
    check(uri, brute(home, 5, "image"), 5)
    assert len((locate(uri) / "neighbours").list()) > 2
    assert not (locate(uri) / "parts").list()


def test_queries_under_one_condition_are_joined_with_vectors_under_another(home, tmp_path):
    under = ("number of people", "color")
    job = JoinJob(
        query_vectors=str(home / "queries"),
        vectors=str(home / "vectors"),
        output=str(tmp_path / "n"),
        k=5,
        query_condition=under[0],
        condition=under[1],
    )
    result = join(job)
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (150, 750, 0)
    check(job.output, brute(home, 5, under=under), 5)
    with pytest.raises(RequestError, match="or this very join"):
        join(JoinJob(query_vectors=job.query_vectors, vectors=job.vectors, output=job.output, k=5))


def test_a_join_whose_folder_another_took_over_ends_and_removes_nothing(home, tmp_path, monkeypatch):
    job = JoinJob(query_vectors=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    root = locate(job.output)

    def taken(*arguments):
        (root / "parts" / "000000-000000.parquet").put(b"of the other join")
        (root / "join.json").put_json({"fingerprint": "another"})

    monkeypatch.setattr(TasksHere, "run", taken)
    with pytest.raises(WorkError, match="another: a job with --overwrite took the folder over"):
        join(job)
    assert (root / "parts").list()


def test_a_missing_group_is_missed_and_its_parts_stay(home, tmp_path, monkeypatch):
    job = JoinJob(query_vectors=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    run = TasksHere.run
    some = {"searched": 100, "merged": 1}
    monkeypatch.setattr(TasksHere, "run", lambda here, work, todo, name: run(here, work, todo[: some[name]], name))
    with pytest.raises(WorkError, match="1 of 4 groups of queries are missing after 3 passes; run the same command"):
        join(job)
    assert (locate(job.output) / "parts").list()
    monkeypatch.undo()
    assert join(job)["neighbours"] == 1500


def test_a_join_that_was_stopped_resumes(home, tmp_path, monkeypatch):
    job = JoinJob(query_vectors=str(home / "queries"), vectors=str(home / "vectors"), output=str(tmp_path / "n"), k=5)
    run, tasks = TasksHere.run, []

    def stopped(here, work, todo, progress):
        run(here, work, todo[:3] if progress == "searched" else [], progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(TasksHere, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        join(job)
    assert len((locate(job.output) / "parts").list()) == 3
    with pytest.raises(RequestError, match="or this very join"):
        join(JoinJob(query_vectors=job.query_vectors, vectors=job.vectors, output=job.output, k=4))

    def counted(here, work, todo, progress):
        tasks.append((progress, len(todo)))
        run(here, work, todo, progress)

    monkeypatch.setattr(TasksHere, "run", counted)
    join(job)
    check(job.output, brute(home, 5), 5)
    ranges = len(json.loads((tmp_path / "n" / "join.json").read_text())["ranges"])
    groups = len(list((tmp_path / "n" / "neighbours").iterdir()))
    assert tasks == [("searched", groups * ranges - 3), ("merged", groups)]
    assert join(job)["neighbours"] == 1500
    assert len(tasks) == 2  # nothing was left to do


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"query_vectors": "nowhere"}, "--query-vectors: expected an output of `raycase embed`"),
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
    files = {"query_vectors": "queries", "vectors": "vectors"}
    named = {name: str(home / options.get(name, file)) for name, file in files.items()}
    with pytest.raises(RequestError, match=words):
        join(JoinJob(output=str(tmp_path / "n"), **options | named))


def test_the_script_refuses_with_status_2(tmp_path):
    wrong = call_job(
        "--query-vectors", tmp_path, "--vectors", tmp_path, "--output", tmp_path / "n", "-k", 3, script="join.py"
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --query-vectors:") and wrong.stderr.count("\n") == 1
