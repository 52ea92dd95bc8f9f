"""An index in shards: the answers of its parts, merged, are those of the whole; nearest neighbours block by block."""

import numpy as np
import pytest
import storing
import torch
from indexed import alike, refuse

from raycase.commands import place as placement
from raycase.commands.index import IndexFlags
from raycase.commands.index import index as index_command
from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.lance_files import shard_fragments
from raycase.index.options import Limits
from raycase.index.rows import IndexRows
from raycase.index.topk import merge_top_k, nearest_rows, top_k
from raycase.io.vectors import l2_normalize

ASKED, KNOWN = "what they wear on their heads", "number of people"
QUERIES = ["a woman in a red dress", "two people play with a dog", "color"]
SHARDS = 3


@pytest.fixture
def uri(tokens, tmp_path):
    """An index in three shards."""
    return storing.indexed(tmp_path / "i.lance", tokens / "words", tokens / "out", shards=SHARDS)


def merged_index(uri, fragments=None):
    """An index whose shards are asked in this process."""
    index = Index.open(uri)
    own = index.opened, index.limits, index.query_encoder.ask
    shards = [IndexRows(*own, part) for part in fragments or shard_fragments(index.dataset, SHARDS) if part]
    index.compare = lambda terms, k, *how: merge_top_k([shard.nearest(terms, k, *how) for shard in shards], k)
    return index


def rows_of(uri, shards=SHARDS):
    """The rows of each shard: all, those under `KNOWN`, those with words."""
    index = Index.open(uri)
    counts = []
    for part in shard_fragments(index.dataset, shards):
        own = IndexRows(index.opened, Limits(), index.query_encoder.ask, part).vectors.metadata
        counts.append((own.rows, own.rows_under(KNOWN), own.with_tokens))
    return counts


def check_same(uri, fragments=None):
    """Every exact search by shards gives the answers of one index."""
    one, merged = Index.open(uri), merged_index(uri, fragments)
    queries = [*QUERIES, *(row["text"] for row in storing.texts(9))]  # with their own texts, which stand many times
    for condition in (KNOWN, ASKED, None):
        for where in (None, "year < 2007", "id = 3", "id = -3"):
            wanted = one.search(queries, condition, 10_000, where, exact=True)
            alike(merged.search(queries, condition, 10_000, where, exact=True), wanted)
            few = one.search(queries[:1], condition, 10_000, where, exact=True).slice(0, 7)
            alike(merged.search(queries[:1], condition, 7, where, exact=True), few)
    for weights in ({ASKED: 2, "dog": -1}, {ASKED: 1, KNOWN: ("red", -0.5)} if one.rows(KNOWN) else {ASKED: -3}):
        for where in (None, "year < 2007", "id = -3"):
            alike(merged.search(queries, weights, 50, where), one.search(queries, weights, 50, where))
    assert len(wanted) == 0 and len(one.search(queries, ASKED, 10_000)) == len(queries) * one.rows(ASKED) > 0


def test_shards_have_about_as_many_rows_and_may_have_none(uri):
    assert rows_of(uri) == [(168, 84, 84), (166, 82, 84), (166, 84, 82)]
    assert Index.open(uri).metadata.shards == SHARDS
    ids = [fragment.fragment_id for fragment in Index.open(uri).dataset.get_fragments()]
    check_same(uri, [ids[:3], [], ids[3:4], ids[4:]])
    assert shard_fragments(Index.open(uri).dataset, 26)[24:] == [[], []]


def test_rows_that_come_change_and_go(uri, tokens):
    """The shards have about as many rows again, and the answers of one index."""
    job = {"output": uri}
    assert build(**dict(job, embeddings=(str(tokens / "later"),)))["shards"] == SHARDS
    check_same(uri)
    assert max(count[0] for count in rows_of(uri)) - min(count[0] for count in rows_of(uri)) <= 40
    build(**dict(job, delete="id % 7 = 0 OR id < 60"))
    check_same(uri)
    build(**dict(job, keep_condition=("dog",)))
    rows = rows_of(uri)
    assert max(all_rows for all_rows, *_ in rows) < 1.15 * sum(all_rows for all_rows, *_ in rows) / SHARDS
    before = Index.open(uri).dataset.count_rows()
    build(**dict(job, delete="id % 3 > 0"))  # most rows: files are written anew
    assert Index.open(uri).dataset.stats.dataset_stats()["num_deleted_rows"] == 0 < before
    rows = rows_of(uri)
    assert min(all_rows for all_rows, *_ in rows) > 0.6 * sum(all_rows for all_rows, *_ in rows) / SHARDS
    check_same(uri)


def test_another_number_of_shards_takes_an_overwrite(uri, tokens):
    job = {"output": uri, "shards": 5}
    refuse(job, r"^--shards: expected 3, as .* has, or --overwrite beside another number, got 5$")
    refuse(IndexFlags(output=uri, shards=0), "^--shards: expected 1 to 1,024, got 0", index_command)
    version = Index.open(uri).dataset.version
    assert build(**dict(job, shards=3))["shards"] == 3 and Index.open(uri).dataset.version == version
    assert build(**dict(job, embeddings=(str(tokens / "words"),), overwrite=True))["shards"] == 5
    assert max(all_rows for all_rows, *_ in rows_of(uri, 5)) <= 1.25 * 50


def test_flags_of_shards_without_shards_or_a_cluster_are_refused(uri, tokens, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    whole = storing.indexed(f"{uri}.one", tokens / "words")
    for flags in ({"shard_timeout": 30.0}, {"replicas": 2}):
        flag = f"--{next(iter(flags)).replace('_', '-')}"
        for ray in (None, True):
            job = SearchFlags(index=whole, query=("a",), ray=ray, **flags)
            with pytest.raises(RequestError, match=f"^{flag}.*: expected an index in shards .*, got 1 of "):
                search(job)
        kind = "one process, got --replicas 2" if "replicas" in flags else "an index in shards .* in this process"
        with pytest.raises(RequestError, match=f"^--.*: expected {kind}"):
            search(SearchFlags(index=uri, query=("a",), ray=False, **flags))


def test_an_index_of_one_shard_is_searched_here_and_says_so(tokens, tmp_path, capsys):
    placement.note_once.cache_clear()
    whole = storing.indexed(tmp_path / "i.lance", tokens / "words")
    why = f"Running in this process: --ray searches an index in shards, and {whole} has one\n"
    for ray, said in ((True, why), (None, "")):
        assert search(SearchFlags(index=whole, query=("a",), unconditional=True, ray=ray))["answers"] == 10
        assert capsys.readouterr().err.partition("ids are")[0] == said


def brute(queries, vectors, k):
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def test_of_equal_scores_the_earlier_row_wins():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 5)
    assert top_k(vectors[:1], [vectors], 4, block_rows=3)[1].tolist() == [[0, 2, 4, 6]]
    assert top_k(vectors[:1], [vectors], 7, block_rows=3)[1].tolist() == [[0, 2, 4, 6, 8, 1, 3]]


def test_vectors_of_the_same_group_are_left_out():
    random = np.random.default_rng(0)
    queries, vectors = (l2_normalize(random.standard_normal((n, 8))) for n in (7, 100))
    groups, query_groups = np.arange(100) % 10, np.arange(7)
    scores = queries @ vectors.T
    scores[query_groups[:, None] == groups[None, :]] = -np.inf
    blocks = [torch.from_numpy(vectors[:30]), torch.from_numpy(vectors[30:])]
    of = {"query_groups": torch.from_numpy(query_groups), "groups": torch.from_numpy(groups)}
    _, rows = top_k(torch.from_numpy(queries), blocks, 5, **of)
    assert np.array_equal(rows, np.argsort(-scores, axis=1, kind="stable")[:, :5])
    alone = torch.zeros(100, dtype=torch.int64)
    every = top_k(torch.from_numpy(queries), [torch.from_numpy(vectors)], 5, query_groups=alone[:7], groups=alone)
    assert (every[1] == -1).all()


@pytest.mark.parametrize("same", [11, 900])
def test_nearest_rows_and_scores_do_not_depend_on_blocks_order_or_other_queries(same):
    random = np.random.default_rng(0)
    queries, vectors = (l2_normalize(random.standard_normal((n, 384))).astype(np.float32) for n in (9, 3000))
    vectors[100 : 99 + same] = vectors[7]
    queries[0] = vectors[7]
    numbers = np.arange(3000)

    def found(some=slice(0, 9), cuts=(), order=numbers):
        blocks = zip(np.split(order, cuts), map(torch.from_numpy, np.split(vectors[order], cuts)), strict=True)
        return nearest_rows(queries[some], blocks, 20)

    scores, rows = found()
    wanted_scores, wanted = brute(queries.astype(np.float64), vectors, 20)
    assert np.array_equal(rows[1:], wanted[1:]) and np.allclose(scores, wanted_scores, atol=1e-6)
    assert rows[0, :11].tolist() == [7, *range(100, 110)] and scores[0, 0] == 1
    for given in ({"cuts": [1, 50, 999]}, {"cuts": range(0, 3000, 7)}, {"some": slice(3, 5)}, {"cuts": [1000]}):
        some = given.get("some", slice(0, 9))
        again = found(**given)
        assert np.array_equal(again[1], rows[some]) and np.allclose(again[0], scores[some], atol=1.1e-6)
    for cuts in ((), [1, 50, 999]):  # of equal scores the smaller number wins, whichever is read first
        shuffled = found(order=random.permutation(3000), cuts=cuts)
        assert np.array_equal(shuffled[1], rows) and np.allclose(shuffled[0], scores, atol=1.1e-6)
    few = nearest_rows(queries, [(numbers[:3], torch.from_numpy(vectors[:3]))], 5)
    assert (few[1][:, 3:] == -1).all() and (nearest_rows(queries, [], 2)[1] == -1).all()


def test_two_stages_refine_by_shard(uri):
    """Each shard pools as many as one index would: no fewer of the best are found, and their scores are exact."""
    one, merged = Index.open(uri), merged_index(uri)
    best = one.search(QUERIES, ASKED, 10).to_pylist()
    score_of = {(row["query"], row["id"]): row["score"] for row in one.search(QUERIES, ASKED, 250).to_pylist()}
    shares = {}
    for name, index in (("one", Index.open(uri)), ("merged", merged)):
        index.metadata.exact_below = 100
        found = index.search(QUERIES, ASKED, 10, refine=2).to_pylist()
        assert not index.vectors.cached
        assert all(row["score"] == pytest.approx(score_of[row["query"], row["id"]], abs=2e-6) for row in found)
        shares[name] = len({(row["query"], row["id"]) for row in best} & {(row["query"], row["id"]) for row in found})
    assert 24 <= shares["one"] <= shares["merged"]
    filtered = merged.search(QUERIES[:1], ASKED, 10, "year < 2012", refine=2)
    assert all(year < 2012 for year in filtered["year"].to_pylist()) and len(filtered) == 10
