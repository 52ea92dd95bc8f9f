"""An index built by tasks on Ray: on object storage; a worker killed in the middle of a fragment; what is refused."""

from dataclasses import replace

import pytest
from helpers import embedded, sentences

from raycase.data.storage import locate
from raycase.distributed import tasks as module
from raycase.distributed.index import index
from raycase.errors import RequestError, WorkError
from raycase.search.build import IndexJob, build
from raycase.search.build_parts import BUILD, PartSizes
from raycase.search.index import Index, Options

SMALL = PartSizes(part_rows=100, graph_rows=200, vectors_apart=256, values_apart=256)


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """`out`: 400 rows in four units; `one.lance`: their index, by one process."""
    home = tmp_path_factory.mktemp("to-index")
    rows = [{"id": i, "text": text} for i, text in enumerate(sentences(400))]
    embedded(home, tiny_model, rows, conditions=("color",))
    build(IndexJob(embeddings=(str(home / "out"),), output=str(home / "one.lance")))
    return home


def same(home, uri):
    """The index has the rows and the exact answers of the one by one process."""
    found, one = (Index.open(str(place)) for place in (uri, home / "one.lance"))
    assert found.dataset.to_table().equals(one.dataset.to_table())
    asked = (sentences(3), "color", 10)
    exact = Options(exact=True)
    assert found.search(*asked, options=exact).equals(one.search(*asked))
    assert not (locate(uri) / BUILD).exists()


def test_it_is_the_index_of_one_process(cluster, home, s3_server):
    """On object storage, with graphs of its own for each half."""
    job = IndexJob(embeddings=(str(home / "out"),), output="s3://corpus/many.lance", kind="hnsw", workers=2)
    assert index(job, SMALL)["rows"] == 400
    same(home, job.output)
    found = Index.open(job.output).search(sentences(3), "color", 10, options=Options(ef=200, refine=20))
    exact = Index.open(job.output).search(sentences(3), "color", 10, options=Options(exact=True))
    assert len(set(found["id"].to_pylist()) & set(exact["id"].to_pylist())) >= 0.9 * len(set(exact["id"].to_pylist()))


@pytest.mark.cluster
def test_a_killed_worker_s_rows_are_written_again_and_once(cluster, home, tmp_path, monkeypatch):
    """It dies when half a fragment is written; the file that it leaves is no part of the index."""
    run, mark = module.run_tasks, tmp_path / "killed"

    def killing(tasks, work, **stage):
        def killed(task):
            import os
            import signal

            from raycase.search import index_rows

            batches = index_rows._batches

            def half(*arguments):
                rows = list(batches(*arguments))
                yield rows[0].slice(0, 50)
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

            if '"part": 2' in task["task"][0].as_py() and not mark.exists():
                index_rows._batches = half
            return work(task)

        run(tasks, killed, **stage)

    monkeypatch.setattr(module, "run_tasks", killing)
    job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "many.lance"), workers=2)
    assert index(job, replace(SMALL, vectors_apart=1000, values_apart=1000))["rows"] == 400
    assert mark.exists()
    same(home, job.output)
    assert len(Index.open(job.output).dataset.get_fragments()) == 4


@pytest.mark.cluster
def test_one_that_was_stopped_writes_no_fragment_twice(cluster, home, tmp_path, monkeypatch):
    run = module.run_tasks

    def stopped(tasks, *arguments, **stage):
        run(tasks[:2], *arguments, **stage)
        raise WorkError("stopped")

    monkeypatch.setattr(module, "run_tasks", stopped)
    job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "many.lance"), workers=2)
    with pytest.raises(WorkError, match="stopped"):
        index(job, SMALL)
    before = {path.name for path in (tmp_path / "many.lance" / "data").iterdir()}
    assert len(before) == 2
    monkeypatch.undo()
    index(job, SMALL)
    after = {path.name for path in (tmp_path / "many.lance" / "data").iterdir()}
    assert before < after and len(after) == 4
    same(home, job.output)


def test_without_new_rows_ray_is_not_asked(home, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "join_cluster", None)
    assert index(IndexJob(embeddings=(str(home / "out"),), output=str(home / "one.lance"), workers=2))["rows"] == 400
    for changes, words in (
        ({"workers": -1}, "--workers: expected at least 0"),
        ({"workers": 2, "stall_timeout": 0}, "--stall-timeout"),
    ):
        with pytest.raises(RequestError, match=words):
            index(IndexJob(output=str(home / "one.lance"), **changes))
