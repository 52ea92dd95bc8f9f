"""Words beside vectors: what must hold, ranks by BM25, and both ranks fused; kept up to date with the rows."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import refuse

from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.text_index import _fused, fused_ranks

KNOWN, ASKED = "number of people", "what they wear on their heads"
QUERY = "a woman with two dogs in a red dress"


@pytest.fixture(scope="module")
def index(tokens):
    """250 rows with stored tokens, the same under `KNOWN`, and the texts' words."""
    return Index.open(storing.indexed(tokens / "text.lance", tokens / "words", tokens / "out", text_index=True))


def having(words, rows):
    """The ids of rows whose texts have all these words; the texts have a plural nowhere."""
    stems = {word.removesuffix("s") for word in words.lower().split()}
    return {row["id"] for row in rows if stems <= set(row["text"].split())}


@pytest.mark.parametrize("condition", [KNOWN, ASKED, None, {KNOWN: 1, ASKED: -1}, {ASKED: 2}])
@pytest.mark.parametrize("where", [None, "year < 2010"])
def test_every_word_must_hold(index, condition, where):
    rows = [row for row in storing.texts(250) if where is None or row["year"] < 2010]
    for words in ("RED dogs", "a", "with a", "red zebra", "17"):
        found = index.search([QUERY, "dog"], condition, 300, where, match=words)
        expected = having(words, rows)
        every = index.search([QUERY, "dog"], condition, 300, where).to_pylist()
        wanted = {(row["query"], row["id"]): row["score"] for row in every if row["id"] in expected}
        got = {(row["query"], row["id"]): row["score"] for row in found.to_pylist()}
        assert got == pytest.approx(wanted, abs=2e-6)
        assert found["rank"].to_pylist() == [*range(1, len(expected) + 1)] * 2
    assert len(index.search(QUERY, condition, 300, where, match="red dogs")) > 0


def test_ranks_are_fused_as_by_hand():
    ranks = pa.array([1, 2, 3, None], pa.int32())
    answers = pa.table({"id": list("abcd"), "rank": ranks, "score": pa.nulls(4, pa.float32())})
    found = _fused(answers, {"c": 1, "d": 2}, 9).to_pylist()
    ranks = [(row["id"], row["rank"], row["vector_rank"], row["text_rank"]) for row in found]
    assert ranks == [("c", 1, 3, 1), ("a", 2, 1, None), ("b", 3, 2, None), ("d", 4, None, 2)]
    assert [row["score"] for row in found] == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62])
    assert [fused_ranks(k) for k in (1, 20, 100)] == [10, 20, 100]


@pytest.mark.parametrize("condition", [KNOWN, ASKED, None, {KNOWN: 1, ASKED: -1}])
def test_hybrid_answers_have_both_ranks(index, condition):
    where = "year >= 2003"
    found = index.search([QUERY, "dog"], condition, 30, where, hybrid=True)
    by_vector = index.search([QUERY, "dog"], condition, 30, where).to_pylist()
    vector_rank = {(row["query"], row["id"]): row["rank"] for row in by_vector}
    assert found["rank"].to_pylist() == [*range(1, 31)] * 2
    best = {}
    for row in found.to_pylist():
        ranks = [rank for rank in (row["vector_rank"], row["text_rank"]) if rank]
        assert row["score"] == pytest.approx(sum(1 / (60 + rank) for rank in ranks)) and row["year"] >= 2003
        assert row["vector_rank"] == vector_rank.get((row["query"], row["id"]))
        assert row["text"] == storing.texts(1, first=row["id"])[0]["text"]
        best.setdefault(row["query"], []).append(row["score"])
    assert all(scores == sorted(scores, reverse=True) for scores in best.values())
    dogs = {row["id"] for row in found.to_pylist() if row["query"] == 1 and row["text_rank"]}
    assert dogs and dogs <= having("dog", storing.texts(250))
    both = index.search("dog", condition, 30, where, hybrid=True, match="red")
    assert {*both["id"].to_pylist()} <= having("red", storing.texts(250)) and len(both) == 30


def test_rows_that_come_change_and_go_are_found_by_their_words(tokens, tmp_path):
    job = {"output": str(tmp_path / "i.lance"), "shards": 3, "text_language": "none"}
    build(**dict(job, embeddings=(str(tokens / "words"),)))
    assert having("bar", storing.texts(250)) == ids(job["output"], "bar") and not ids(job["output"], "bars")
    version = Index.open(job["output"]).dataset.version
    assert build(**dict(job, text_index=True))["rows"] == 250 and Index.open(job["output"]).dataset.version == version
    build(embeddings=(str(tokens / "later"),), output=job["output"])
    rows = [*storing.texts(250), *storing.texts(40, first=1000)]
    assert ids(job["output"], "bar") == having("bar", rows) != having("bar", rows[:250])
    [words] = [i for i in Index.open(job["output"]).dataset.describe_indices() if i.field_names == ["text"]]
    assert words.num_rows_indexed == 290
    build(output=job["output"], delete="id % 3 > 0")
    assert ids(job["output"], "bar") == {one for one in having("bar", rows) if one % 3 == 0}
    build(output=job["output"], text_language="English")
    assert ids(job["output"], "bars") == ids(job["output"], "bar")


def ids(uri, words):
    return set(Index.open(uri).search("dog", ASKED, 300, match=words)["id"].to_pylist())


def test_the_command_prints_and_writes_both_ranks(index, tmp_path, capsys):
    asked = {"query": (QUERY,), "condition": (KNOWN, ASKED), "match": "red", "k": 3}
    job = SearchFlags(index=index.root.path, hybrid=True, **asked)
    search(replace(job, output=str(tmp_path / "a.parquet")))
    written = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [(row["query"], row["rank"]) for row in written] == [(0, 1), (0, 2), (0, 3)] * 2
    search(job)
    first = written[0]
    shown = f"(vectors {first['vector_rank'] or '-'}, words {first['text_rank'] or '-'})"
    assert f"   1   {first['score']:.3f}  {shown}  {first['text']}" in capsys.readouterr().out


def test_what_is_wrong_is_said(index, tokens, tmp_path, tiny_model):
    asked = {"index": index.root.path, "query": ("dog",)}
    for none in (" .. ", "_"):
        refuse(SearchFlags(**asked, match=none), f"^match: expected words, got '{none}'", search)
    refuse(SearchFlags(**asked, hybrid=True, rerank="x"), "^--hybrid: expected no --rerank beside it, got both", search)
    plain = storing.indexed(tmp_path / "plain.lance", tokens / "words")
    for flags in ({"match": "dog"}, {"hybrid": True}):
        with pytest.raises(RequestError, match=f"^{next(iter(flags))}: expected an index of words, got none; add it"):
            Index.open(plain).search("dog", ASKED, **flags)
    rows = [{"id": i, "text": "a dog", "title": "red", "text_rank": 1} for i in range(5)]
    two = embedded(tmp_path / "t", tiny_model, rows, conditions=("color",), keep_columns=("title", "text_rank"))
    titled = Index.open(storing.indexed(tmp_path / "two.lance", two, text_index=True))
    assert len(titled.search("dog", "color", match="red")) == 5
    with pytest.raises(RequestError, match="expected an index that keeps no column 'text_rank'"):
        titled.search("dog", "color", hybrid=True)
    none = embedded(tmp_path / "n", tiny_model, rows, conditions=("color",), keep_columns=("text_rank",))
    job = {"embeddings": (none,), "output": str(tmp_path / "none.lance"), "text_index": True}
    refuse(job, "^--text-index: expected a kept column 'text', or only one of strings, got id, text_rank")


def test_words_rank_no_text_that_has_no_vector_under_what_is_asked(tiny_model, tmp_path):
    """Though the index has it under another condition."""
    rows = [{"id": i, "text": f"a dog {i}"} for i in range(20)]
    parts = {"color": rows[:10], "place": rows[10:]}
    outputs = tuple(embedded(tmp_path / name, tiny_model, part, conditions=(name,)) for name, part in parts.items())
    build(embeddings=outputs, output=str(tmp_path / "two.lance"), text_index=True)
    index = Index.open(str(tmp_path / "two.lance"))

    def found(condition):
        answers = index.search("a dog 15 or 5", condition, 2**62, hybrid=True)
        return answers.select(["id", "score", "vector_rank", "text_rank"]).to_pylist()

    wanted = found("color")
    assert {row["id"] for row in wanted} == set(range(10))
    assert found({"color": 1}) == found({"color": 3, "place": 0}) == wanted
    assert {row["id"] for row in found({"color": 1, "place": 1})} == set(range(20))
