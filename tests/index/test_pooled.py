"""Searching an index under conditions that nobody named before: from stored tokens, in whatever pieces."""

import numpy as np
import pyarrow.dataset as ds
import pytest
import storing
import torch
from helpers import cosines, in_threads, read_output, vectors
from indexed import alike, brute, refuse

import raycase
from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError, WorkError
from raycase.index import index as of_index
from raycase.index import rows as index_rows
from raycase.index.answers import POOLED
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.options import Limits
from raycase.job.verify import verify

ASKED = "what they wear on their heads"
QUERIES = ["a woman in a red dress", "two people play with a dog"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model; `words`: its output with stored tokens; `out`: the same rows embedded under two conditions."""
    home = tmp_path_factory.mktemp("pooled")
    model = storing.model_folder(home)
    rows = storing.texts(250)
    storing.stored(home / "a", model, rows, output=str(home / "words"))
    storing.stored_under(home / "b", model, rows, ASKED, "number of people", output=str(home / "out"))
    storing.indexed(home / "i.lance", home / "words")
    return home


@pytest.fixture(scope="module")
def index(home):
    return Index.open(str(home / "i.lance"))


@pytest.fixture(scope="module")
def model(home):
    return raycase.load(str(home / "model"), dtype=torch.float32, device="cpu")


def test_eight_threads_get_what_one_gets(home, index):
    shared = Index.open(str(home / "i.lance"), limits=Limits(memory_bytes=60_000))  # room for two conditions
    pool = raycase.Pool(tokens=str(home / "words"), conditions=[ASKED])
    rows = ds.dataset(home / "words" / "embeddings").to_table()

    def ask(index, query, condition, where):
        blocks = index.blocks(condition, where)[1]()
        pooled = pool(rows.slice(len(condition), 20))["embedding"].to_pylist()
        return index.search([query], condition, 5, where).to_pylist(), sorted(n for of, _ in blocks for n in of), pooled

    under = (ASKED, "color", "the animal", "number of people")
    asked = [(query, each, where) for query in QUERIES for each in under for where in (None, "year > 2005")] * 2
    found = in_threads(lambda each: ask(shared, *each), asked)
    assert found == [ask(index, *each) for each in asked]


def test_rows_that_two_readers_pool_at_once_answer_once(home, tmp_path):
    """Of two outputs, whose rows are pooled in two blocks: the lock is free between these."""
    storing.stored(tmp_path / "b", str(home / "model"), storing.texts(40, first=1000), output=str(tmp_path / "later"))
    index = Index.open(storing.indexed(tmp_path / "i.lance", home / "words", tmp_path / "later"))
    where = "id IN (1, 2, 1001, 1002)"
    first, second = (index.blocks(ASKED, where)[1]() for _ in range(2))
    offsets = [next(first)[0], *(block[0] for block in second), *(block[0] for block in first)]
    assert len(np.concatenate(offsets)) == 8
    assert sorted(index.search(QUERIES[0], ASKED, 9, where)["id"].to_pylist()) == [1, 2, 1001, 1002]


def test_stated_leaves_out_rows_that_say_nothing(home, index, model):
    texts = [row["text"] for row in storing.texts(250)]
    states = model.stated(texts, ASKED)
    assert 25 < (states < 0.5).sum() < 225
    whole, found = index.search(QUERIES, ASKED, 250), index.search(QUERIES, ASKED, 20, stated=True)
    said = dict(enumerate(index.stated_at(ASKED, np.arange(250)).tolist()))
    whole = whole.append_column("stated", [[said[row] for row in whole["id"].to_pylist()]])
    np.testing.assert_allclose(whole["stated"], states[whole["id"].to_numpy()], atol=0.02)
    for query in range(2):
        best = [row["id"] for row in whole.to_pylist() if row["query"] == query and row["stated"] >= 0.5]
        answers = [row for row in found.to_pylist() if row["query"] == query]
        assert [row["id"] for row in answers] == best[:20] and [row["rank"] for row in answers] == list(range(1, 21))
    few = index.search(QUERIES, ASKED, 20, "id < 30", stated=True)
    assert 0 < len(few) == sum(row["id"] < 30 and row["stated"] >= 0.5 for row in whole.to_pylist())
    every = index.search(QUERIES, ASKED, 250, stated=True)["id"].to_pylist()
    assert sorted(every) == sorted(row["id"] for row in whole.to_pylist() if row["stated"] >= 0.5)
    with pytest.raises(RequestError, match=r"^stated: .* pooled .* \(embed with --any-condition"):
        index.search(QUERIES, None, 3, unconditional=True, stated=True)


def test_pooled_answers_are_those_of_the_vectors(index, home, model, capsys):
    """Within the rounding, stated here: cosines to 0.01, and nine of ten neighbours."""
    answers = index.search(QUERIES, ASKED, k=10)
    assert answers[POOLED].to_pylist() == [True] * 20
    assert set(answers["condition"].to_pylist()) == set(answers["asked"].to_pylist()) == {ASKED}
    search(SearchFlags(index=str(home / "i.lance"), query=(QUERIES[0],), condition=(ASKED,), k=3))
    printed = capsys.readouterr()
    assert "pooled" not in printed.err and f'under "{ASKED}"' in printed.out
    for query, sentence in enumerate(QUERIES):
        found = answers.slice(query * 10, 10)
        ids, scores = brute(home / "out", model, sentence, ASKED, 10)
        assert len(set(found["id"].to_pylist()) & set(ids)) >= 9
        np.testing.assert_allclose(found["score"].to_numpy(), scores, atol=0.01)


def test_cached_equals_fresh_and_read_again(home, index, monkeypatch):
    """In memory, by batches that end within the rows, and where neither words nor vectors fit."""
    fresh = index.search(QUERIES, ASKED, k=20)
    assert index.search(QUERIES, ASKED, k=20) == fresh
    small = Index.open(str(home / "i.lance"), limits=Limits(memory_bytes=1, token_memory=10**6))
    for _ in range(2):
        assert small.search(QUERIES, ASKED, k=20) == fresh and not small.vectors.cached
    monkeypatch.setattr(index_rows, "TOKEN_ROWS", 33)
    found = Index.open(str(home / "i.lance")).search(QUERIES, ASKED, k=20)
    assert found["id"] == fresh["id"]
    np.testing.assert_allclose(found["score"].to_numpy(), fresh["score"].to_numpy(), atol=1e-6)


def test_a_filter_that_leaves_few_rows_reads_these_alone(home, index):
    wanted = {row["id"]: row for row in index.search(QUERIES[:1], ASKED, k=250).to_pylist()}
    where = "id < 20"
    for fresh in (Index.open(str(home / "i.lance")), large_index(home)):
        found = fresh.search(QUERIES[:1], ASKED, 10, where).to_pylist()
        sketched = fresh.all_rows.sketched
        assert fresh.pooled.cached is None and sketched.cached is None and not fresh.vectors.cached
        best = sorted((wanted[i] for i in range(20)), key=lambda row: -row["score"])[:10]
        assert [row["id"] for row in found] == [row["id"] for row in best]
        assert [row["score"] for row in found] == pytest.approx([row["score"] for row in best], abs=1e-5)
        assert len(fresh.search(QUERIES[:1], ASKED, 10, "id = -1")) == 0


def test_phrases_that_answer_the_condition(home, index, model):
    """All of their words weigh the same; the condition gates their values."""
    with torch.inference_mode():
        gate = model.questions([ASKED]).gate
        [words] = model.keys_values(["red dress"])
        wanted = (words.values[0].mean(0) * gate[0]).numpy()
    found = model.embed_phrases(["red dress", "a", "red dress"], ASKED)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-6)
    assert np.array_equal(found[0], found[2]) and not np.allclose(found[0], found[1])
    answers = index.search(["red dress"], ASKED, 250, phrases=True)
    rows = {row["id"]: row["score"] for row in answers.to_pylist()}
    output = read_output(str(home / "out"))
    near = cosines(vectors(output), np.tile(wanted, (len(output), 1)))
    same = [r == ASKED for r in output["condition"].to_pylist()]
    off = np.abs(np.array([rows[i] for i in np.array(output["id"])[same]]) - near[same])
    assert off.max() < 0.025 and off.mean() < 0.003
    with pytest.raises(ValueError, match="empty text"):
        model.embed_phrases(["dog", " "], ASKED)


def test_beside_conditions_that_were_embedded(home, model, tmp_path, capsys):
    """Those are used as they are; others are pooled, which is said; --exact-condition refuses."""
    both = storing.indexed(tmp_path / "i.lance", str(home / "words"), str(home / "out"))
    index = Index.open(both)
    answers = index.search(QUERIES[:1] * 2, [ASKED, "dog"], k=5)
    assert answers[POOLED].to_pylist() == [False] * 5 + [True] * 5
    scores = brute(home / "out", model, QUERIES[0], ASKED, 5)[1]
    np.testing.assert_allclose(answers["score"].to_numpy()[:5], scores, atol=2e-3)  # the query in bf16
    search(SearchFlags(index=both, query=(QUERIES[0],), condition=(ASKED, "dog")))
    assert "no 'dog' in the index; pooled from its stored tokens" in capsys.readouterr().err
    with pytest.raises(RequestError, match=r"^condition: expected one of the index's"):
        index.search(QUERIES, "dog", exact_condition=True)
    assert index.metadata.with_tokens == 250 and index.metadata.unconditional == 250


def test_a_condition_that_weighs_tokens_alike_is_noted(home, index, model, capsys, monkeypatch):
    texts = [row["text"] for row in storing.texts(250)][: of_index.LOOKED_AT]
    weights = model.token_weights(model.config.prepare(texts, [ASKED] * len(texts)))
    heaviest = index.heaviest(ASKED)
    assert heaviest == pytest.approx(np.mean([of.max() for of in weights]), abs=0.01)
    for least, count in ((heaviest + 0.01, 1), (heaviest - 0.01, 0)):
        monkeypatch.setattr(of_index, "LEAST_HEAVIEST", least)
        search(SearchFlags(index=str(home / "i.lance"), query=(QUERIES[0],), condition=(ASKED,)))
        assert capsys.readouterr().err.count("weighs the tokens of these texts nearly alike") == count


def test_candidates_by_sketches(home, index, monkeypatch):
    """Exact scores of most of the best rows; a filter holds; the words of all rows are not read."""
    two_stages = large_index(home)
    for where in (None, "year < 2012"):
        wanted = index.search(QUERIES, ASKED, 10, where)
        found = two_stages.search(QUERIES, ASKED, 10, where, refine=3)
        assert two_stages.pooled.cached is None and not two_stages.vectors.cached
        score_of = {(row["query"], row["id"]): row["score"] for row in index.search(QUERIES, ASKED, 250).to_pylist()}
        for row in found.to_pylist():
            assert row["score"] == pytest.approx(score_of[row["query"], row["id"]], abs=1e-5)
        ours, theirs = ({(r["query"], r["id"]) for r in rows.to_pylist()} for rows in (found, wanted))
        assert len(found) == 20 and len(ours & theirs) >= 16
    again = two_stages.search(QUERIES, ASKED, 10, "year < 2012", refine=3)
    assert again.equals(found), "expected the same from the cache"
    monkeypatch.setattr(index_rows, "SKETCHED_ROWS", 33)
    assert large_index(home).search(QUERIES, ASKED, 10, "year < 2012", refine=3)["id"].equals(found["id"])


def large_index(home, **options):
    """The same index, as if its rows were many."""
    index = Index.open(str(home / "i.lance"), **options)
    index.metadata.exact_below = 100
    return index


@pytest.mark.parametrize("memory", [1, 60 * 11 * 4, 10**6])
def test_what_is_remembered_is_bounded(home, memory):
    """No more than the limit; with room for nothing the answers are the same."""
    wanted = large_index(home).search(QUERIES[1:], ASKED, 10, refine=3)
    index = large_index(home, limits=Limits(memory_bytes=memory))
    for condition in ("dog", ASKED, "number of people", ASKED):
        for query in QUERIES:
            found = index.search([query], condition, 10, refine=3)
            assert held(index) <= memory
        if condition == ASKED:
            alike(found, wanted)
    assert (held(index) > 0) == (memory > 1)


def held(index):
    return sum(vectors.nbytes for blocks in index.vectors.remembered.values() for _, vectors in blocks)


def test_outputs_with_bases_of_their_own(home, tmp_path, index):
    """A corpus that grows: its new rows were coded by another basis, and are found by it, and by their sketches."""
    later = storing.stored(tmp_path, str(home / "model"), storing.texts(250, first=1000))
    grown = storing.indexed(tmp_path / "i.lance", str(home / "words"), later)
    exact = Index.open(grown).search(QUERIES, ASKED, 500)
    of_first = {row["id"]: row["score"] for row in exact.slice(0, 500).to_pylist()}
    assert sorted(of_first) == [*range(250), *range(1000, 1250)]
    wanted = {row["id"]: row["score"] for row in index.search(QUERIES[:1], ASKED, k=250).to_pylist()}
    assert {i: s for i, s in of_first.items() if i < 250} == pytest.approx(wanted, abs=1e-5)
    sketched = Index.open(grown)
    sketched.metadata.exact_below = 100
    found = sketched.search(QUERIES, ASKED, 10, refine=6)
    assert not sketched.vectors.cached
    best = {(r["query"], r["id"]) for r in exact.to_pylist() if r["rank"] <= 10}
    assert len(best & {(r["query"], r["id"]) for r in found.to_pylist()}) >= 16
    assert min(found["id"].to_pylist()) < 250 <= 1000 <= max(found["id"].to_pylist())


def test_a_condition_that_is_kept(home, tmp_path, index):
    """It is searched as if it were embedded in advance, and grows with the index; without words it is refused."""
    uri = storing.indexed(tmp_path / "i.lance", str(home / "words"))
    result = build(output=uri, keep_condition=(ASKED,))
    assert (result["rows"], result["rows_added"], result["conditions"]) == (500, 250, 1)
    kept = Index.open(uri)
    found, wanted = (i.search(QUERIES, ASKED, k=10, where="year > 2003") for i in (kept, index))
    assert not any(found[POOLED].to_pylist())
    np.testing.assert_allclose(found["score"].to_numpy(), wanted["score"].to_numpy(), atol=1e-5)
    assert kept.search(QUERIES, "dog", exact_condition=False)[POOLED].to_pylist() == [True] * 20
    assert build(output=uri, keep_condition=(f" {ASKED}\n",))["rows_added"] == 0
    refuse({"output": uri, "keep_condition": ("\U0001f642",)}, "--keep-condition .*: expected words, of which")
    later = storing.stored(tmp_path, str(home / "model"), storing.texts(50, first=1000))
    assert build(embeddings=(later,), output=uri)["rows"] == 600
    answers = Index.open(uri).search(QUERIES[:1], ASKED, k=300)
    assert sorted(answers["id"].to_pylist()) == [*range(250), *range(1000, 1050)]
    assert build(output=uri, delete="id >= 1000")["rows"] == 500
    same = storing.stored_under(tmp_path / "e", str(home / "model"), storing.texts(9, first=2000), ASKED)
    refuse({"embeddings": (same,), "output": uri}, "expected no vectors under")
    assert Index.open(uri).metadata.rows == 500
    both = storing.indexed(tmp_path / "j.lance", str(home / "out"))
    refuse({"output": both, "keep_condition": ("dog",)}, "--keep-condition: expected stored tokens")
    refuse({"output": both, "keep_condition": (ASKED,)}, "--keep-condition: expected a condition that is new")


def test_what_cannot_be_searched(home, index, tmp_path):
    uri = str(home / "i.lance")
    refuse(SearchFlags(index=uri, query=(QUERIES[0],), condition=(" ",)), "^--condition: expected words", search)
    long = ("dog " * 600,)
    refuse(SearchFlags(index=uri, query=(QUERIES[0],), condition=long), "leaves no room for the sentence", search)
    refuse(
        SearchFlags(index=uri, query=(QUERIES[0],), condition=("\u200b",)), "can read, .*, got .* condition$", search
    )
    output = storing.stored_under(tmp_path, str(home / "model"), storing.texts(30), unconditional=True)
    without = storing.indexed(tmp_path / "i.lance", output)
    refuse(SearchFlags(index=without, query=("a",), condition=("dog",)), "expected one of the index.s .none.", search)


def test_a_basis_that_is_gone_or_another(home, tmp_path):
    output = storing.stored(tmp_path, str(home / "model"), storing.texts(30))
    uri = storing.indexed(tmp_path / "i.lance", output)
    sketch, file = sorted((tmp_path / "i.lance" / "_word_bases").iterdir(), key=lambda path: -len(path.name))
    centroids = sketch.read_bytes()
    large = Index.open(uri)
    large.metadata.exact_below = 1
    for wrong, words in ((b"nonsense", "the codes of stored tokens"), (None, "expected the codes .* got none")):
        sketch.unlink()
        if wrong:
            sketch.write_bytes(wrong)
        with pytest.raises(RequestError, match=words):
            large.search(QUERIES[:1], "dog", 1, refine=2)
    sketch.write_bytes(centroids)
    file.write_bytes((home / "words" / "word_basis.safetensors").read_bytes())
    job = SearchFlags(index=uri, query=(QUERIES[0],), condition=("dog",))
    refuse(job, "got others", search)
    file.unlink()
    refuse(job, "got none", search)
    basis = tmp_path / "out" / "word_basis.safetensors"
    basis.unlink()
    with pytest.raises(WorkError, match=r"word_basis\.safetensors: missing"):
        verify(output)
    refuse({"embeddings": (output,), "output": str(tmp_path / "j.lance")}, "the basis of the stored tokens")
