"""An index in shards: the answers of its parts, merged, are those of the whole."""

import pytest
import storing
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
from raycase.index.topk import merge_top_k

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


def test_shards_have_about_as_many_rows_of_each_kind(uri):
    assert rows_of(uri) == [(168, 84, 84), (166, 82, 84), (166, 84, 82)]
    assert Index.open(uri).metadata.shards == SHARDS


def test_a_shard_may_have_no_rows_or_none_of_a_kind(uri):
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
    one, merged = Index.open(uri), merged_index(uri)
    alike(merged.search(QUERIES, "dog", 300), one.search(QUERIES, "dog", 300))
    before = one.dataset.count_rows()
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
