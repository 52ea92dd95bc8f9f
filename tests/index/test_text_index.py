"""Words beside vectors, ranked by BM25 and fused; several conditions with weights, by brute force."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import QUERIES, refuse

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


@pytest.mark.parametrize("condition", [KNOWN, None, {KNOWN: 1, ASKED: -1}])
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


@pytest.mark.parametrize("condition", [ASKED, {KNOWN: 1, ASKED: -1}])
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


KNOWN, ASKED = "number of people", "what they wear on their heads"
WEIGHTS = {KNOWN: 2, ASKED: -0.5, "dog": ("red", 1.25)}


@pytest.fixture(scope="module")
def outputs(tokens):
    """250 rows with stored tokens; all but ten of them, and ten more, under `KNOWN`."""
    under = storing.stored_under(tokens / "ten", str(tokens / "model"), storing.texts(250, first=10), KNOWN)
    return tokens / "words", under


@pytest.fixture(scope="module")
def uri(tokens, outputs):
    return storing.indexed(tokens / "weighted.lance", *outputs)


@pytest.mark.parametrize("weights", [WEIGHTS, {ASKED: 1, "dog": 3e-300, "bar": 1e300}, {KNOWN: -1, "dog": 0}])
@pytest.mark.parametrize("where", [None, "year < 2003"])
def test_a_score_is_the_mean_of_the_cosines_of_each_condition_alone(uri, weights, where):
    index, cosines = Index.open(uri), {}
    pairs = {name: value if isinstance(value, tuple) else (None, value) for name, value in weights.items()}
    for name, (phrase, _) in pairs.items():
        alone = index.search([phrase] * 2 if phrase else QUERIES, name, 1000, where, phrases=phrase is not None)
        for row in alone.to_pylist():
            cosines.setdefault((row["query"], row["id"]), {})[name] = row["score"]
    wanted = {}
    for key, parts in cosines.items():
        if total := sum(abs(pairs[name][1]) for name in parts):
            wanted[key] = sum(pairs[name][1] * cosine for name, cosine in parts.items()) / total
    found = index.search(QUERIES, weights, 1000, where).to_pylist()
    assert {(row["query"], row["id"]): row["score"] for row in found} == pytest.approx(wanted, abs=2e-6)
    for row in found:
        parts = {part["condition"]: part["cosine"] for part in row["parts"] if part["cosine"] is not None}
        assert parts == pytest.approx(cosines[row["query"], row["id"]], abs=2e-6)
        assert [(part["asked"], part["weight"]) for part in row["parts"]] == [(n, w) for n, (_, w) in pairs.items()]
    few = index.search(QUERIES, weights, 4, where).to_pylist()
    best = [row["score"] for query in range(2) for row in found if row["query"] == query and row["rank"] <= 4]
    assert [row["score"] for row in few] == pytest.approx(best, abs=2e-6)


def test_two_stages_find_nearly_all_and_score_exactly(outputs, tmp_path):
    """Without and with vectors under one of the conditions that have an approximate index; and few rows alone."""
    coded = storing.indexed(tmp_path / "i.lance", *outputs, vector_index="ivf-rq", exact_below=100)
    index = Index.open(coded)
    for weights in ({ASKED: 1, "dog": -0.5}, {ASKED: 1, "dog": 0.5, "bar": ("red dress", 2)}, {KNOWN: 1, ASKED: 2}):
        wanted = {row["id"]: row["score"] for row in index.search(QUERIES[0], weights, 300, exact=True).to_pylist()}
        index.vectors.cached.clear()
        found = index.search(QUERIES[0], weights, 10, refine=5).to_pylist()
        assert all(wanted[row["id"]] == pytest.approx(row["score"], abs=2e-6) for row in found)
        assert len({row["id"] for row in found} & set(list(wanted)[:10])) >= 8
        assert not index.vectors.cached or KNOWN in weights
        assert not len(index.search(QUERIES[0], weights, 300, "year > 3000"))
        few = index.search(QUERIES[0], weights, 300, "id IN (12, 13)", refine=1)
        assert sorted(few["id"].to_pylist()) == [12, 13]


def test_the_command_gives_one_list_with_the_cosines(uri, tmp_path, capsys):
    weights = ("color of the clothes=2", "dog", f"{KNOWN} = -.5")
    parsed = {"color of the clothes": 2, "dog": 1, KNOWN: -0.5}
    job = SearchFlags(index=uri, query=tuple(QUERIES), condition=weights, k=3, output=str(tmp_path / "a.parquet"))
    assert search(job)["answers"] == 6
    wanted = Index.open(uri).search(QUERIES, parsed, 3)
    assert pq.read_table(job.output).equals(wanted)
    (tmp_path / "q.csv").write_text("text\n" + "\n".join(QUERIES) + "\n")
    from_file = SearchFlags(index=uri, queries=str(tmp_path / "q.csv"), condition=weights, k=3, output=job.output)
    assert search(from_file)["queries"] == 2 and pq.read_table(job.output).equals(wanted)
    search(SearchFlags(index=uri, query=(QUERIES[0],), condition=weights, k=3))
    printed = capsys.readouterr().out
    assert f'"{QUERIES[0]}" under "color of the clothes=2, dog=1, {KNOWN}=-0.5"' in printed
    first = wanted.to_pylist()[0]
    cosines = "  ".join("-" if part["cosine"] is None else f"{part['cosine']:.3f}" for part in first["parts"])
    assert f"{first['score']:.3f}  ({cosines})  " in printed


def test_wrong_weights_are_refused(uri):
    def ask(words, *conditions, **options):
        refuse(SearchFlags(index=uri, query=("a",), condition=conditions, **options), words, search)

    for wrong in ("dog=two", "dog=", "dog=2=x"):
        ask("^--condition: expected a number after '=', .*, got: could not convert string to float", wrong, ASKED)
    for wrong in ("dog=nan", "dog=1e999"):
        ask("^conditions: expected finite numbers as weights", wrong, ASKED)
    ask("^--condition: expected each condition once, got 'dog' twice", "dog=1", "dog =2")
    ask("^conditions: expected a weight other than 0, got only zeros", "dog=0", "bar=-0")
    ask("expected --condition, --unconditional or conditions in --queries", "dog=2", unconditional=True)
    ask("^stated: expected conditions that are pooled .*, got weights", "dog=2", stated=True)
    ask("^--explain: expected one condition for each query, got conditions with weights", "dog=2", explain=True)
    ask("^condition: expected one, or no more than the 64 that are combined, got 65", *(f"c{i}=1" for i in range(65)))
    finite = "^conditions: expected finite numbers as weights, or phrases with them"
    wrong = [({"dog": weight}, finite) for weight in ("2", True, 10**400, (1, "red"), ("red", 1, 2))]
    wrong += [({}, "^conditions: expected a weight other than 0, got none")]
    wrong += [({"dog": (" ", 1)}, "^phrase: expected a text that .* can embed")]
    for weights, words in wrong:
        with pytest.raises(RequestError, match=words):
            Index.open(uri).search(QUERIES, weights)


def test_ranks_are_fused_as_by_hand():
    ranks = pa.array([1, 2, 3, None], pa.int32())
    answers = pa.table({"id": list("abcd"), "rank": ranks, "score": pa.nulls(4, pa.float32())})
    found = _fused(answers, {"c": 1, "d": 2}, 9).to_pylist()
    ranks = [(row["id"], row["rank"], row["vector_rank"], row["text_rank"]) for row in found]
    assert ranks == [("c", 1, 3, 1), ("a", 2, 1, None), ("b", 3, 2, None), ("d", 4, None, 2)]
    assert [row["score"] for row in found] == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62])
    assert [fused_ranks(k) for k in (1, 20, 100)] == [10, 20, 100]


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
