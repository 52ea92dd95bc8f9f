"""An index of outputs of several kinds: rows that have tokens and lack a condition that others have are pooled, every
id answers once, and what cannot be looked at is counted."""

import numpy as np
import pytest
import storing
from helpers import read_output, vectors

from raycase.commands.classify import ClassifyFlags, classify
from raycase.commands.dedup import DedupFlags, dedup
from raycase.commands.facets import FacetsFlags, facets
from raycase.commands.index import IndexFlags
from raycase.commands.index import index as index_command
from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError
from raycase.explore.condition_map import choose_rows
from raycase.index.index import Index
from raycase.index.options import Limits
from raycase.io.vectors import l2_normalize

PLACE, QUERY = "what they wear on their heads", "a woman in a red dress"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Outputs: `words`, tokens of ids 0 to 59; `out`, 40 to 99 under `PLACE`; `plain`, 100 to 109 without a condition.
    An index of the three, and the vectors of 0 to 99 under `PLACE`."""
    home = tmp_path_factory.mktemp("kinds")
    model = storing.model_folder(home)
    plain = {"any_condition": False, "token_bytes": None, "unconditional": True}
    storing.stored(home / "a", model, storing.texts(60), output=str(home / "words"))
    storing.stored_under(home / "b", model, storing.texts(60, first=40), PLACE, output=str(home / "out"))
    storing.stored(home / "c", model, storing.texts(10, first=100), output=str(home / "plain"), **plain)
    storing.stored_under(home / "d", model, storing.texts(100), PLACE, output=str(home / "every"))
    indexed(home, home / "i.lance")
    return home


def indexed(home, folder, **settings):
    return storing.indexed(folder, *(home / name for name in ("words", "out", "plain")), text_index=True, **settings)


@pytest.mark.parametrize("settings", [{}, {"vector_index": "ivf-rq"}, {"exact_below": 80}, {"shards": 2}])
@pytest.mark.parametrize("memory", [2**20, 1])
def test_every_id_answers_once_by_its_own_vector(home, tmp_path, settings, memory):
    index = Index.open(indexed(home, tmp_path / "i.lance", **settings), limits=Limits(memory_bytes=memory))
    every = read_output(str(home / "every"))
    cosines = l2_normalize(vectors(every)) @ index.embed([QUERY], PLACE)[0]
    wanted = dict(zip(every["id"].to_pylist(), cosines.tolist(), strict=True))
    for _ in range(2):  # read, and from the cache
        for condition in (PLACE, {PLACE: 2}):
            found = index.search(QUERY, condition, 1000)
            score_of = dict(zip(found["id"].to_pylist(), found["score"].to_pylist(), strict=True))
            assert len(found) == len(score_of) == 100 and score_of == pytest.approx(wanted, abs=0.02)
            assert found["pooled"].to_pylist() == [row < 40 for row in found["id"].to_pylist()]
        for where, ids in (("id < 45", range(45)), ("id < 3", range(3)), ("id > 50", range(51, 100))):
            assert sorted(index.search(QUERY, PLACE, 100, where)["id"].to_pylist()) == [*ids]
        few = index.search(QUERY, PLACE, 5, refine=1).to_pylist()  # of what is pooled, by sketches
        assert all(row["score"] == pytest.approx(score_of[row["id"]], abs=2e-6) for row in few)
    for asked in ({PLACE: 1, "dog": -0.5}, PLACE):
        for more in ({}, {"hybrid": True}):
            ids = index.search(QUERY, asked, 300, exact=True, **more)["id"].to_pylist()
            assert sorted(ids) == [*range(100)]
    offsets = np.concatenate([offsets_B for offsets_B, _ in index.blocks(PLACE)[1]()])
    of = {row["id"]: row["_rowoffset"] for row in index.ids([PLACE]).to_pylist() if row["_rowoffset"] in offsets}
    assert sorted(of) == [*range(100)] and index.rows(PLACE) == len(offsets) == 100
    found = index.vectors_at(PLACE, np.array([of[row] for row in every["id"].to_pylist()]))
    assert (found * l2_normalize(vectors(every))).sum(1).min() > 0.99


def test_an_answer_that_words_alone_found_says_whether_it_is_pooled(home):
    index = Index.open(str(home / "i.lance"))
    for asked, pooled in ((PLACE, 40), ({PLACE: 1}, 40), ({PLACE: 1, "dog": 1}, 60), ("dog", 60)):
        found = index.search("dress", asked, 20, hybrid=True).to_pylist()
        alone = [row for row in found if row["vector_rank"] is None]
        assert alone and [row["pooled"] for row in alone] == [row["id"] < pooled for row in alone]


def test_commands_look_at_all_that_can_be_pooled_and_count_the_rest(home, tmp_path, capsys):
    out, of = str(tmp_path / "a.parquet"), {"index": str(home / "i.lance")}
    labels = {"labels": ("red dress", "two people"), "output": out}

    def check(result, rows, left, under):
        said = capsys.readouterr().err
        line = f"{left} of {rows + left} rows are left out: the index has no vector of theirs {under}"
        assert result.get("rows", rows) == rows
        assert said.count("left out") == said.count(line) == (left > 0)

    def answered(**asked):
        return {"rows": search(SearchFlags(query=(QUERY,), k=500, **of, **asked))["answers"]}

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
            cosines = index.vectors_at(condition, offsets) @ index.embed([QUERY], condition)[0]
            found = index.search(QUERY, condition, 500, unconditional=condition is None).to_pylist()
            score_of = {str(row["id"]): row["score"] for row in found}
            assert cosines == pytest.approx([score_of[row] for row in rows.ids], abs=1e-3)


def test_the_build_says_how_many_rows_answer_any_condition(home, tmp_path, capsys):
    for names, words in (
        (("words", "plain"), "70 rows, 60 of them for any condition, "),
        (("words",), "60 rows for any condition, "),
        (("words", "out"), "120 rows under 1 conditions, 60 of them for any condition, "),
        (("out",), "60 rows under 1 conditions, searched"),
    ):
        outputs = tuple(str(home / name) for name in names)
        index_command(IndexFlags(embeddings=outputs, output=str(tmp_path / "i.lance"), overwrite=True))
        assert capsys.readouterr().out.startswith(words)


def test_what_has_no_token_that_the_encoder_knows_asks_nothing(home, tmp_path):
    """The vectors of all such queries, conditions, phrases and labels are the same."""
    uri = indexed(home, tmp_path / "i.lance")
    index, odd = Index.open(uri), "\U0001f642"
    refused = r": expected words, of which .* knows a token, got '\U0001f642'$"
    labels = ClassifyFlags(index=uri, condition=PLACE, labels=("a dog", odd), output=str(tmp_path / "o.parquet"))
    for named, ask in (
        ("query", lambda: index.search([QUERY, odd], PLACE)),
        ("condition", lambda: index.search(QUERY, odd)),
        ("phrase", lambda: index.search(QUERY, {PLACE: (odd, 1)})),
        ("--labels", lambda: classify(labels)),
    ):
        with pytest.raises(RequestError, match=f"^{named}{refused}"):
            ask()
