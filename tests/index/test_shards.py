"""An index in shards: the answers of its parts, merged, are those of the whole to the last bit."""

from dataclasses import replace

import pytest
import storing
from indexed import refuse

from raycase.commands import place as placement
from raycase.errors import RequestError
from raycase.index.approximate import Options
from raycase.index.build import IndexFlags, build
from raycase.index.index import Index
from raycase.index.lance_files import shard_fragments
from raycase.index.search_job import SearchFlags
from raycase.index.shard import Limits, Shard
from raycase.index.topk import merge_top_k

ASKED, KNOWN = "what they wear on their heads", "number of people"
QUERIES = ["a woman in a red dress", "two people play with a dog", "color"]
SHARDS = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model; outputs `words` and `later` with stored tokens, `out` of the same rows as `words` under a condition."""
    home = tmp_path_factory.mktemp("shards")
    storing.words_later_and_out(home, KNOWN)
    return home


@pytest.fixture
def uri(home, tmp_path):
    """An index in three shards."""
    return storing.indexed(tmp_path / "i.lance", home / "words", home / "out", shards=SHARDS)


class Merged(Index):
    """An index that asks shards in this process."""

    fragments, shards = None, None

    def _compare(self, *asked):
        if self.shards is None:
            own = (self.root, self.dataset, self.metadata, self.limits, self.query_encoder.ask)
            parts = self.fragments or shard_fragments(self.dataset, SHARDS)
            self.shards = [Shard(*own, part) for part in parts if part]
        return merge_top_k([shard.nearest(*asked) for shard in self.shards])


def rows_of(uri, shards=SHARDS):
    """The rows of each shard: all, those under `KNOWN`, those with words."""
    index = Index.open(uri)
    counts = []
    for part in shard_fragments(index.dataset, shards):
        own = Shard(index.root, index.dataset, index.metadata, Limits(), index.query_encoder.ask, part).vectors.metadata
        counts.append((own.rows, own.rows_under(KNOWN), own.with_tokens))
    return counts


def check_same(uri, fragments=None):
    """Every exact search by shards gives the very answers of one index, scores to the last bit."""
    one, merged = Index.open(uri), Merged.open(uri)
    merged.fragments = fragments
    queries = [*QUERIES, *(row["text"] for row in storing.texts(9))]  # with their own texts, which stand many times
    for condition in (KNOWN, ASKED, None):
        search = {"unconditional": condition is None, "options": Options(exact=True)}
        for where in (None, "year < 2007", "id = 3", "id = -3"):
            wanted = one.search(queries, condition, 10_000, where, **search)
            assert merged.search(queries, condition, 10_000, where, **search).equals(wanted)
            few = one.search(queries[:1], condition, 10_000, where, **search).slice(0, 7)
            assert merged.search(queries[:1], condition, 7, where, **search).equals(few)
    for weights in ({ASKED: 2, "dog": -1}, {ASKED: 1, KNOWN: ("red", -0.5)} if one.rows(KNOWN) else {ASKED: -3}):
        for where in (None, "year < 2007", "id = -3"):
            assert merged.search(queries, weights, 50, where).equals(one.search(queries, weights, 50, where))
    assert len(wanted) == 0 and len(one.search(queries, ASKED, 10_000)) == len(queries) * one.rows(ASKED) > 0
    plain = {"unconditional": not one.metadata.conditions}
    assert merged.search(QUERIES, None, 7, **plain).equals(one.search(QUERIES, None, 7, **plain))


def test_shards_have_about_as_many_rows_of_each_kind(uri):
    assert rows_of(uri) == [(168, 84, 84), (166, 82, 84), (166, 84, 82)]
    assert Index.open(uri).metadata.shards == SHARDS


def test_a_shard_may_have_no_rows_or_none_of_a_kind(uri):
    ids = [fragment.fragment_id for fragment in Index.open(uri).dataset.get_fragments()]
    check_same(uri, [ids[:3], [], ids[3:4], ids[4:]])
    assert shard_fragments(Index.open(uri).dataset, 26)[24:] == [[], []]


def test_rows_that_come_change_and_go(uri, home):
    """The shards have about as many rows again, and the answers of one index."""
    job = IndexFlags(output=uri)
    assert build(replace(job, embeddings=(str(home / "later"),)))["shards"] == SHARDS
    check_same(uri)
    assert max(count[0] for count in rows_of(uri)) - min(count[0] for count in rows_of(uri)) <= 40
    build(replace(job, delete="id % 7 = 0 OR id < 60"))
    check_same(uri)
    build(replace(job, keep_condition=("dog",)))
    rows = rows_of(uri)
    assert max(all_rows for all_rows, *_ in rows) < 1.15 * sum(all_rows for all_rows, *_ in rows) / SHARDS
    one, merged = Index.open(uri), Merged.open(uri)
    assert merged.search(QUERIES, "dog", 300).equals(one.search(QUERIES, "dog", 300))
    before = one.dataset.count_rows()
    build(replace(job, delete="id % 3 > 0"))  # most rows: files are written anew
    assert Index.open(uri).dataset.stats.dataset_stats()["num_deleted_rows"] == 0 < before
    rows = rows_of(uri)
    assert min(all_rows for all_rows, *_ in rows) > 0.6 * sum(all_rows for all_rows, *_ in rows) / SHARDS
    check_same(uri)


def test_another_number_of_shards_takes_an_overwrite(uri, home):
    job = IndexFlags(output=uri, shards=5)
    refuse(job, r"^--shards: expected 3, as .* has, or --overwrite beside another number, got 5$")
    refuse(replace(job, shards=0), "^--shards: expected 1 to 1,024, got 0")
    version = Index.open(uri).dataset.version
    assert build(replace(job, shards=3))["shards"] == 3 and Index.open(uri).dataset.version == version
    assert build(replace(job, embeddings=(str(home / "words"),), overwrite=True))["shards"] == 5
    assert max(all_rows for all_rows, *_ in rows_of(uri, 5)) <= 1.25 * 50


def test_flags_of_shards_without_shards_or_a_cluster_are_refused(uri, home, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    whole = storing.indexed(f"{uri}.one", home / "words")
    for flags in ({"shard_timeout": 30.0}, {"replicas": 2}):
        flag = f"--{next(iter(flags)).replace('_', '-')}"
        for ray in (None, True):
            job = SearchFlags(index=whole, query=("a",), ray=ray, **flags)
            with pytest.raises(RequestError, match=f"^{flag}.*: expected an index in shards .*, got 1 of "):
                placement.search(job)
        kind = "one process, got --replicas 2" if "replicas" in flags else "an index in shards .* in this process"
        with pytest.raises(RequestError, match=f"^--.*: expected {kind}"):
            placement.search(SearchFlags(index=uri, query=("a",), ray=False, **flags))


def test_an_index_of_one_shard_is_searched_here_and_says_so(home, tmp_path, capsys):
    placement._note_once.cache_clear()
    whole = storing.indexed(tmp_path / "i.lance", home / "words")
    why = f"Running in this process: --ray searches an index in shards, and {whole} has one\n"
    for ray, said in ((True, why), (None, "")):
        assert placement.search(SearchFlags(index=whole, query=("a",), unconditional=True, ray=ray))["answers"] == 10
        assert capsys.readouterr().err.partition("ids are")[0] == said


def test_two_stages_refine_by_shard(uri):
    """Each shard pools as many as one index would: no fewer of the best are found, and their scores are exact."""
    one, merged = Index.open(uri), Merged.open(uri)
    best = one.search(QUERIES, ASKED, 10).to_pylist()
    score_of = {(row["query"], row["id"]): row["score"] for row in one.search(QUERIES, ASKED, 250).to_pylist()}
    shares = {}
    for name, index in (("one", Index.open(uri)), ("merged", merged)):
        index.metadata.exact_below = 100
        found = index.search(QUERIES, ASKED, 10, options=Options(refine=2)).to_pylist()
        assert not index.vectors.cached
        assert all(row["score"] == score_of[row["query"], row["id"]] for row in found)
        shares[name] = len({(row["query"], row["id"]) for row in best} & {(row["query"], row["id"]) for row in found})
    assert 24 <= shares["one"] <= shares["merged"]
    filtered = merged.search(QUERIES[:1], ASKED, 10, "year < 2012", options=Options(refine=2))
    assert all(year < 2012 for year in filtered["year"].to_pylist()) and len(filtered) == 10
