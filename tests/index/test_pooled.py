"""An index of stored tokens: searched under conditions that nobody named before, and beside outputs of other forms."""

import numpy as np
import pyarrow.dataset as ds
import pytest
import storing
import torch
from helpers import cosines, in_threads, read_output, vectors
from indexed import alike, brute, refuse

import raycase
from raycase.commands.classify import ClassifyFlags, classify
from raycase.commands.dedup import DedupFlags, dedup
from raycase.commands.facets import FacetsFlags, facets
from raycase.commands.index import IndexFlags
from raycase.commands.index import index as index_command
from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError, WorkError
from raycase.explore.condition_map import choose_rows
from raycase.index import rows as index_rows
from raycase.index.answers import POOLED
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.options import Limits
from raycase.io.vectors import l2_normalize
from raycase.job.verify import verify

ASKED = "number of people"
QUERIES = ["a woman in a red dress", "two people play with a dog"]


@pytest.fixture(scope="module")
def home(tokens):
    """`words`: an output with stored tokens; `out`: the same rows embedded under `ASKED`; `i.lance`: of `words`."""
    storing.indexed(tokens / "i.lance", tokens / "words")
    return tokens


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

    under = (ASKED, "color", "the animal", "a place")
    asked = [(query, each, where) for query in QUERIES for each in under for where in (None, "year > 2005")] * 2
    found = in_threads(lambda each: ask(shared, *each), asked)
    assert found == [ask(index, *each) for each in asked]


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
    every = index.search(QUERIES, ASKED, 250, stated=True)["id"].to_pylist()
    assert sorted(every) == sorted(row["id"] for row in whole.to_pylist() if row["stated"] >= 0.5)
    with pytest.raises(RequestError, match=r"^stated: .* pooled .* \(embed with --any-condition"):
        index.search(QUERIES, None, 3, unconditional=True, stated=True)


def test_pooled_answers_are_those_of_the_vectors(index, home, model, capsys):
    """Within the rounding, stated here: cosines to 0.01, and eight of ten neighbours."""
    answers = index.search(QUERIES, ASKED, k=10)
    assert answers[POOLED].to_pylist() == [True] * 20
    assert set(answers["condition"].to_pylist()) == set(answers["asked"].to_pylist()) == {ASKED}
    search(SearchFlags(index=str(home / "i.lance"), query=(QUERIES[0],), condition=(ASKED,), k=3))
    printed = capsys.readouterr()
    assert "pooled" not in printed.err and f'under "{ASKED}"' in printed.out
    for query, sentence in enumerate(QUERIES):
        found = answers.slice(query * 10, 10)
        ids, scores = brute(home / "out", model, sentence, ASKED, 10)
        assert len(set(found["id"].to_pylist()) & set(ids)) >= 8
        np.testing.assert_allclose(found["score"].to_numpy(), scores, atol=0.01)


def test_phrases_that_answer_the_condition(home, index, model):
    """All of their words weigh the same; the condition gates their values."""
    with torch.inference_mode():
        [words] = model.keys_values(["red dress"])
        wanted = (words.values[0].mean(0) * model.questions([ASKED]).gate[0]).numpy()
    found = model.embed_phrases(["red dress", "a", "red dress"], ASKED)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-6)
    assert np.array_equal(found[0], found[2]) and not np.allclose(found[0], found[1])
    answers = index.search(["red dress"], ASKED, 250, phrases=True)
    rows = {row["id"]: row["score"] for row in answers.to_pylist()}
    output = read_output(str(home / "out"))
    near = cosines(vectors(output), np.tile(wanted, (len(output), 1)))
    off = np.abs(np.array([rows[i] for i in output["id"].to_pylist()]) - near)
    assert off.max() < 0.04 and off.mean() < 0.008
    with pytest.raises(ValueError, match="empty text"):
        model.embed_phrases(["dog", " "], ASKED)


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
    for condition in ("dog", ASKED, "a place", ASKED):
        for query in QUERIES:
            found = index.search([query], condition, 10, refine=3)
            assert held(index) <= memory
        if condition == ASKED:
            alike(found, wanted)
    assert (held(index) > 0) == (memory > 1)


def held(index):
    return sum(vectors.nbytes for blocks in index.vectors.remembered.values() for _, vectors in blocks)


def test_outputs_with_bases_of_their_own(home, tmp_path, index):
    """A corpus that grows: its new rows were coded by another basis, and are found by it."""
    grown = storing.indexed(tmp_path / "i.lance", home / "words", home / "later")
    found = Index.open(grown).search(QUERIES[:1], ASKED, 500)
    of_first = {row["id"]: row["score"] for row in found.to_pylist()}
    assert sorted(of_first) == [*range(250), *range(1000, 1040)]
    wanted = {row["id"]: row["score"] for row in index.search(QUERIES[:1], ASKED, k=250).to_pylist()}
    assert {i: s for i, s in of_first.items() if i < 250} == pytest.approx(wanted, abs=1e-5)


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
    assert build(embeddings=(str(home / "later"),), output=uri)["rows"] == 580
    answers = Index.open(uri).search(QUERIES[:1], ASKED, k=300)
    assert sorted(answers["id"].to_pylist()) == [*range(250), *range(1000, 1040)]
    assert build(output=uri, delete="id >= 1000")["rows"] == 500
    same = storing.stored_under(tmp_path / "e", str(home / "model"), storing.texts(9, first=2000), ASKED)
    refuse({"embeddings": (same,), "output": uri}, "expected no vectors under")
    assert Index.open(uri).metadata.rows == 500
    both = storing.indexed(tmp_path / "j.lance", str(home / "out"))
    refuse({"output": both, "keep_condition": ("dog",)}, "--keep-condition: expected stored tokens")
    refuse({"output": both, "keep_condition": (ASKED,)}, "--keep-condition: expected a condition that is new")


def test_what_cannot_be_searched(home):
    uri = str(home / "i.lance")
    refuse(SearchFlags(index=uri, query=(QUERIES[0],), condition=(" ",)), "^--condition: expected words", search)
    long = ("dog " * 600,)
    refuse(SearchFlags(index=uri, query=(QUERIES[0],), condition=long), "leaves no room for the sentence", search)
    unseen = SearchFlags(index=uri, query=(QUERIES[0],), condition=("\u200b",))
    refuse(unseen, "can read, .*, got .* condition$", search)


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


PLACE = "what they wear on their heads"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Outputs: `words`, tokens of ids 0 to 59; `out`, 40 to 99 under `PLACE`; `plain`, 100 to 109 without a condition.
    An index of the three, and the vectors of 0 to 99 under `PLACE`."""
    kinds = tmp_path_factory.mktemp("kinds")
    model = storing.model_folder(kinds)
    plain = {"any_condition": False, "token_bytes": None, "unconditional": True}
    storing.stored(kinds / "a", model, storing.texts(60), output=str(kinds / "words"))
    storing.stored_under(kinds / "b", model, storing.texts(60, first=40), PLACE, output=str(kinds / "out"))
    storing.stored(kinds / "c", model, storing.texts(10, first=100), output=str(kinds / "plain"), **plain)
    storing.stored_under(kinds / "d", model, storing.texts(100), PLACE, output=str(kinds / "every"))
    index_of_kinds(kinds, kinds / "i.lance")
    return kinds


def index_of_kinds(kinds, folder, **settings):
    return storing.indexed(folder, *(kinds / name for name in ("words", "out", "plain")), text_index=True, **settings)


@pytest.mark.parametrize(("settings", "memory"), [({}, 1), ({"vector_index": "ivf-rq"}, 2**20), ({"shards": 2}, 1)])
def test_every_id_answers_once_by_its_own_vector(kinds, tmp_path, settings, memory, monkeypatch):
    monkeypatch.setattr(index_rows, "TOKEN_ROWS", 33)  # batches end within the rows
    index = Index.open(index_of_kinds(kinds, tmp_path / "i.lance", **settings), limits=Limits(memory_bytes=memory))
    every = read_output(str(kinds / "every"))
    cosines = l2_normalize(vectors(every)) @ index.embed(QUERIES[:1], PLACE)[0]
    wanted = dict(zip(every["id"].to_pylist(), cosines.tolist(), strict=True))
    for _ in range(2):  # read, and from the cache
        for condition in (PLACE, {PLACE: 2}):
            found = index.search(QUERIES[0], condition, 1000)
            score_of = dict(zip(found["id"].to_pylist(), found["score"].to_pylist(), strict=True))
            assert len(found) == len(score_of) == 100 and score_of == pytest.approx(wanted, abs=0.02)
            assert found["pooled"].to_pylist() == [row < 40 for row in found["id"].to_pylist()]
        for where, ids in (("id < 45", range(45)), ("id < 3", range(3)), ("id > 50", range(51, 100))):
            assert sorted(index.search(QUERIES[0], PLACE, 100, where)["id"].to_pylist()) == [*ids]
        few = index.search(QUERIES[0], PLACE, 5, refine=1).to_pylist()  # of what is pooled, by sketches
        assert all(row["score"] == pytest.approx(score_of[row["id"]], abs=2e-6) for row in few)
    for asked in (PLACE, {PLACE: 1, "dog": -0.5}):  # words rank no text without a vector under what is asked
        ids = index.search("1 5 105", asked, 300, exact=True, hybrid=True)["id"].to_pylist()
        assert sorted(ids) == [*range(100)]
    offsets = np.concatenate([offsets_B for offsets_B, _ in index.blocks(PLACE)[1]()])
    of = {row["id"]: row["_rowoffset"] for row in index.ids([PLACE]).to_pylist() if row["_rowoffset"] in offsets}
    assert sorted(of) == [*range(100)] and index.rows(PLACE) == len(offsets) == 100
    found = index.vectors_at(PLACE, np.array([of[row] for row in every["id"].to_pylist()]))
    assert (found * l2_normalize(vectors(every))).sum(1).min() > 0.99


def test_an_answer_that_words_alone_found_says_whether_it_is_pooled(kinds):
    index = Index.open(str(kinds / "i.lance"))
    for asked, pooled in ((PLACE, 40), ({PLACE: 1}, 40), ({PLACE: 1, "dog": 1}, 60), ("dog", 60)):
        found = index.search("dress", asked, 20, hybrid=True).to_pylist()
        alone = [row for row in found if row["vector_rank"] is None]
        assert alone and [row["pooled"] for row in alone] == [row["id"] < pooled for row in alone]


def test_commands_look_at_all_that_can_be_pooled_and_count_the_rest(kinds, tmp_path, capsys):
    out, of = str(tmp_path / "a.parquet"), {"index": str(kinds / "i.lance")}
    labels = {"labels": ("red dress", "two people"), "output": out}

    def check(result, rows, left, under):
        said = capsys.readouterr().err
        line = f"{left} of {rows + left} rows are left out: the index has no vector of theirs {under}"
        assert result.get("rows", rows) == rows
        assert said.count("left out") == said.count(line) == (left > 0)

    def answered(**asked):
        return {"rows": search(SearchFlags(query=(QUERIES[0],), k=500, **of, **asked))["answers"]}

    for condition, rows, left in ((PLACE, 100, 10), ("dog", 60, 50)):
        under = f"under {condition!r}"
        check(classify(ClassifyFlags(condition=condition, **labels, **of)), rows, left, under)
        check(facets(FacetsFlags(condition=condition, clusters=2, **of)), rows, left, under)
        check(dedup(DedupFlags(condition=condition, threshold=1, output=out, **of)), rows, left, under)
        check(answered(condition=(condition,)), rows, left, under)
        check(classify(ClassifyFlags(condition=condition, where="id < 50", **labels, **of)), 50, 0, "")
    check(dedup(DedupFlags(threshold=1, output=out, **of)), 70, 40, "without a condition")
    check(answered(unconditional=True), 70, 40, "without")
    check(answered(condition=(f"{PLACE}=2", "dog")), 100, 10, f"under {PLACE!r}")
    index = Index.open(of["index"])
    for conditions, ids in (([PLACE], 100), ([None, PLACE], 60), (["dog", PLACE], 60)):
        rows = choose_rows(index, conditions, None, most=1000)
        assert sorted(map(int, rows.ids)) == [*range(ids)] and (rows.of, rows.left_out) == (ids, 110 - ids)
        for condition, offsets in zip(conditions, rows.offsets, strict=True):
            cosines = index.vectors_at(condition, offsets) @ index.embed(QUERIES[:1], condition)[0]
            found = index.search(QUERIES[0], condition, 500, unconditional=condition is None).to_pylist()
            score_of = {str(row["id"]): row["score"] for row in found}
            assert cosines == pytest.approx([score_of[row] for row in rows.ids], abs=1e-3)


def test_a_condition_that_is_pooled_is_named_or_refused(kinds, capsys):
    uri = str(kinds / "i.lance")
    search(SearchFlags(index=uri, query=(QUERIES[0],), condition=(PLACE, "dog")))
    assert "no 'dog' in the index; pooled from its stored tokens" in capsys.readouterr().err
    with pytest.raises(RequestError, match=r"^condition: expected one of the index's"):
        Index.open(uri).search(QUERIES, "dog", exact_condition=True)


def test_the_build_says_how_many_rows_answer_any_condition(kinds, tmp_path, capsys):
    for names, words in (
        (("words", "plain"), "70 rows, 60 of them for any condition, "),
        (("words",), "60 rows for any condition, "),
        (("words", "out"), "120 rows under 1 conditions, 60 of them for any condition, "),
        (("out",), "60 rows under 1 conditions, searched"),
    ):
        outputs = tuple(str(kinds / name) for name in names)
        index_command(IndexFlags(embeddings=outputs, output=str(tmp_path / "i.lance"), overwrite=True))
        assert capsys.readouterr().out.startswith(words)


def test_what_has_no_token_that_the_encoder_knows_asks_nothing(kinds, tmp_path):
    """The vectors of all such queries, conditions, phrases and labels are the same."""
    uri = index_of_kinds(kinds, tmp_path / "i.lance")
    index, odd = Index.open(uri), "\U0001f642"
    refused = r": expected words, of which .* knows a token, got '\U0001f642'$"
    labels = ClassifyFlags(index=uri, condition=PLACE, labels=("a dog", odd), output=str(tmp_path / "o.parquet"))
    for named, ask in (
        ("condition", lambda: index.search(QUERIES[0], odd)),
        ("phrase", lambda: index.search(QUERIES[0], {PLACE: (odd, 1)})),
        ("--labels", lambda: classify(labels)),
    ):
        with pytest.raises(RequestError, match=f"^{named}{refused}"):
            ask()
