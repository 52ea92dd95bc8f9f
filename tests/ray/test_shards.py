"""An index in shards on Ray: the answers of one index; actors that die, stay away or open a new version; replicas."""

import os
import signal

import numpy as np
import pytest
import ray
import storing
from indexed import alike

from raycase.errors import RequestError, WorkError
from raycase.index.build import build
from raycase.index.index import Index, on_index
from raycase.ray import shards as module
from raycase.ray.shards import InShards, open_sharded

ASKED, KNOWN = "what they wear on their heads", "number of people"
QUERIES = ["a woman in a red dress", "two people play with a dog"]
SHARDS = 2


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: 250 rows with stored tokens; `out`: them under a condition; `later`: more; `i.lance`: in two shards."""
    home = tmp_path_factory.mktemp("shards")
    storing.words_later_and_out(home, KNOWN)
    storing.indexed(home / "i.lance", home / "words", home / "out", shards=SHARDS)
    return home


@pytest.fixture(scope="module")
def sharded(cluster, home):
    """Its processes end with the tests that ask it: they would hold CPUs that a training waits for."""
    index = open_sharded(str(home / "i.lance"), wait=60)
    yield index
    end(index)


def of(index):
    """The actors of its shards, one each."""
    return [actor for shard in actors_of(index) for actor in shard.actors]


def actors_of(index):
    return index.compare.args[0]


def end(index):
    for actor in of(index):
        ray.kill(actor)


def pid(actor):
    return ray.get(actor.__ray_call__.remote(lambda actor: os.getpid()))


def kill(actor):
    """Its process ends, at once; Ray starts another."""
    os.kill(pid(actor), signal.SIGKILL)


def test_answers_are_those_of_one_index(sharded, home):
    one = Index.open(str(home / "i.lance"))
    for condition in (KNOWN, ASKED, None):
        for where in (None, "year < 2007", "id = 3"):
            for k in (1, 10, 1000):
                alike(sharded.search(QUERIES, condition, k, where), one.search(QUERIES, condition, k, where))
    alike(sharded.search(QUERIES, {ASKED: 2, "dog": -1}, 7), one.search(QUERIES, {ASKED: 2, "dog": -1}, 7))
    assert not sharded.vectors.cached and sharded.pooled.cached is None
    with pytest.raises(RequestError, match="where: expected a filter"):
        sharded.search(QUERIES, ASKED, 3, "nothing = 1")
    many = np.repeat(one.embed(QUERIES, KNOWN), 1000, axis=0)  # are put into the object store
    assert np.allclose(sharded.nearest(many, KNOWN, 3)[0], one.nearest(many, KNOWN, 3)[0], atol=2e-6)


@pytest.mark.cluster
def test_a_shard_that_died_is_asked_again(sharded, home):
    """Killed between queries, and in the middle of one: its first attempt ends its process."""
    wanted = Index.open(str(home / "i.lance")).search(QUERIES, ASKED, 10)
    first, second = of(sharded)
    kill(first)
    alike(sharded.search(QUERIES, ASKED, 10), wanted)

    def die_at_the_next(actor):
        actor.rows.nearest = lambda *_: os._exit(1)

    before = pid(second)
    ray.get(second.__ray_call__.remote(die_at_the_next))
    alike(sharded.search(QUERIES, ASKED, 10), wanted)
    assert pid(second) != before and not any(actors_of(sharded)[1].under_way.values())


@pytest.mark.cluster
def test_one_that_stays_away_is_an_error(cluster, home):
    sharded = open_sharded(str(home / "i.lance"), wait=0.5)
    ray.kill(of(sharded)[1])
    with pytest.raises(WorkError, match=r"answers from all 2 shards, got none of shard 2 in 0\.5 s, or it kept dying"):
        sharded.search(QUERIES, ASKED, 10)
    end(sharded)


@pytest.mark.cluster
def test_a_new_version_is_opened_by_the_same_actors(cluster, home, tmp_path):
    """And an approximate index is searched as a whole, in this process."""
    uri = storing.indexed(tmp_path / "i.lance", home / "words", shards=2)
    in_shards = InShards()
    before = in_shards(Index.open(uri))
    first = before.search(QUERIES, ASKED, 300)
    storing.indexed(uri, home / "later", home / "out", delete="id < 20", vector_index="ivf-rq")
    one, after = Index.open(uri), in_shards(Index.open(uri))
    assert actors_of(after) is actors_of(before)
    alike(after.search(QUERIES, ASKED, 300, exact=True), one.search(QUERIES, ASKED, 300, exact=True))
    for where in (None, "year < 2012"):
        alike(after.search(QUERIES, KNOWN, 10, where), one.search(QUERIES, KNOWN, 10, where))
    two_stages = after.search(QUERIES, ASKED, 10, refine=2)
    scores = {(r["query"], r["id"]): r["score"] for r in one.search(QUERIES, ASKED, 300, exact=True).to_pylist()}
    assert len(two_stages) == 20
    for row in two_stages.to_pylist():
        assert row["score"] == pytest.approx(scores[row["query"], row["id"]], abs=2e-6)
    alike(before.search(QUERIES, ASKED, 300), first)  # who has the former version open keeps it
    for where in ("id > 1020", "id > 1010"):
        build(output=uri, delete=where)
    with pytest.raises((RequestError, WorkError)):
        after.search(QUERIES, ASKED, 300, exact=True)
    open_index = iter([after, in_shards(Index.open(uri))])
    _, found = on_index(lambda: next(open_index), lambda index: index.search(QUERIES, ASKED, 300, exact=True))
    alike(found, Index.open(uri).search(QUERIES, ASKED, 300, exact=True))
    assert len(found) == 2 * 241
    end(after)


def test_shards_that_do_not_start_are_an_error(cluster, home, monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 0.0)
    with pytest.raises(WorkError, match=r"expected 2 processes of 0.0625 CPUs for the shards of .*, got 0 within 0 s"):
        open_sharded(str(home / "i.lance"))
