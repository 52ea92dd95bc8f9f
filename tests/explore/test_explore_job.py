"""The command explore: its page has what the index has; rows stand by their neighbours, and move little."""

import json
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import storing
from helpers import embedded
from indexed import refuse
from mapped import unpacked

from raycase.commands.explore import ExploreFlags, explore
from raycase.explore.condition_map import make_map, nearest_in_cells, place
from raycase.index.answers import looked_at
from raycase.index.index import Index
from raycase.index.topk import nearest_others
from raycase.io.vectors import l2_normalize
from raycase.tokens.words import Word

# not imported here: it takes seconds, in each of pytest's workers
NO_UMAP = pytest.mark.skipif(find_spec("umap") is None, reason="pip install 'raycase[explore]'")
pytestmark = [pytest.mark.cluster, NO_UMAP]
CONDITIONS = ("color", "what they wear")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An index of stored tokens, `words.lance`, and one of vectors under two conditions, one of fewer rows."""
    home = tmp_path_factory.mktemp("mapped")
    model = storing.model_folder(home)
    storing.indexed(home / "words.lance", storing.stored(home / "a", model, storing.texts(60)))
    settings = {"prompt": None, "pooling": None, "keep_columns": ("text", "year")}
    two = embedded(home / "b", model, storing.texts(40), conditions=("color",), **settings)
    fewer = embedded(home / "c", model, storing.texts(40, 10), conditions=("number of people",), **settings)
    storing.indexed(home / "vectors.lance", two, fewer)
    return home


def asked(home, index="words.lance", **options):
    settings = {"index": str(home / index), "output": str(home / "map.html"), "conditions": CONDITIONS, "clusters": 3}
    return ExploreFlags(**settings | options)


def page_of(home):
    page = (home / "map.html").read_text()
    return unpacked(
        json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    )


def test_the_page_has_what_a_search_and_the_model_give(home, capsys):
    result = explore(asked(home))
    data, index = page_of(home), Index.open(str(home / "words.lance"))
    texts = [row["text"] for row in storing.texts(60)]
    assert data["texts"] == texts and data["ids"] == [str(i) for i in range(60)]
    assert (result["rows"], result["rows_left_out"], result["rows_shown"], result["texts_cut"]) == (60, 0, 60, 0)
    assert result["conditions"] == [each["condition"] for each in data["maps"]] == [None, *CONDITIONS]
    assert result["bytes"] == (home / "map.html").stat().st_size and data["summary"] == "60 rows"
    assert "60 rows: " in capsys.readouterr().out
    for each in data["maps"]:
        rows, cosines = each["rows"], each["cosines"]
        vectors = index.vectors_at(each["condition"], np.arange(60))
        every = vectors @ vectors.T
        np.fill_diagonal(every, -np.inf)
        best = -np.sort(-every, axis=1)[:, :8]
        np.testing.assert_allclose(np.take_along_axis(every, rows.astype(int), 1), best, atol=1e-5)
        np.testing.assert_allclose(cosines / 100, best, atol=0.0051)
        facet = each["facet"]
        assert [facet_of["rows"] for facet_of in each["facets"]] == np.bincount(facet).tolist()
        assert all(facet_of["words"] for facet_of in each["facets"])
        assert np.ptp(each["positions"].astype(int), axis=0).max() > 60_000
        if each["condition"] is None:
            assert each["words"] is None
            continue
        weighed = index.encoder.word_weights(texts, each["condition"])
        ends = [[end for word in looked_at(*pair) for end in word[:2]] for pair in zip(texts, weighed, strict=True)]
        assert each["words"] == ends


def test_of_many_rows_a_sample_is_shown(home, capsys):
    pages = []
    for _ in range(2):
        result = explore(asked(home, most_rows=20, conditions=("color",)))
        assert (result["rows"], result["rows_shown"]) == (60, 20)
        pages.append((home / "map.html").read_bytes())
    data = page_of(home)
    assert data["summary"] == "20 of 60 rows, a sample" and data["summary"] in capsys.readouterr().out
    assert len(data["texts"]) == 20 and [int(each) for each in data["ids"]] == sorted(map(int, data["ids"]))
    assert pages[0] == pages[1]


def test_rows_are_those_under_all_conditions_whatever_their_order(home):
    result = explore(asked(home, "vectors.lance", conditions=()))
    assert result["conditions"] == ["color", "number of people"]
    assert (result["rows"], result["rows_shown"], result["rows_left_out"]) == (30, 30, 20)
    data, index = page_of(home), Index.open(str(home / "vectors.lance"))
    assert data["summary"] == "30 rows; rows left out because they lack one of the conditions: 20"
    assert sorted(map(int, data["ids"])) == list(range(10, 40))
    for each in data["maps"]:
        near = each["rows"][:, 0]
        for row in (0, 17):
            found = index.search([data["texts"][row]], each["condition"], 40, where="id >= 10 AND id < 40")
            ids = [str(i) for i in found["id"].to_pylist() if str(i) != data["ids"][row]]
            assert data["ids"][near[row]] == ids[0]


def test_conditions_of_a_file(home, tmp_path):
    (tmp_path / "conditions.txt").write_text("\n".join(CONDITIONS))
    assert explore(asked(home, conditions=(str(tmp_path / "conditions.txt"),)))["conditions"] == [None, *CONDITIONS]


def test_a_filter_and_an_index_without_texts(home, tmp_path, capsys):
    explore(asked(home, where="year = 2003 OR year = 2004"))
    data = page_of(home)
    assert len(data["texts"]) == 6 and data["neighbours"] == 5
    assert data["summary"] == "6 rows; where year = 2003 OR year = 2004"
    output = storing.stored(tmp_path / "a", str(home / "model"), storing.texts(12), keep_columns=())
    storing.indexed(tmp_path / "i.lance", output)
    explore(asked(tmp_path, "i.lance"))
    data = page_of(tmp_path)
    assert data["texts"] == data["ids"] == [str(i) for i in range(12)]
    assert "no weighed words: expected the texts in a column that the index keeps (id)" in capsys.readouterr().err


def test_wrong_requests_are_refused(home, tmp_path, monkeypatch):
    def ask(words, **options):
        refuse(asked(home, **options), words, explore)

    ask("got no finished one", index="none.lance")
    ask("--output: expected a file that ends with .html", output=str(tmp_path / "a.parquet"))
    ask("--most-rows: expected 3 to 200,000, got 2", most_rows=2)
    ask("--clusters: expected 2 to 24, got 25", clusters=25)
    ask("--conditions: expected at least one, got none; the index has only unconditional vectors", conditions=())
    ask("--conditions: expected at most 11, got 12", conditions=tuple(f"color {i}" for i in range(12)))
    ask("expected at least 3 rows under all conditions, the filter leaves 0", where="year = 1")
    ask("--text-column: expected a column of texts", text_column="year")
    ask("^condition: expected words", index="vectors.lance", conditions=(" ",))
    monkeypatch.setitem(sys.modules, "umap", None)
    ask(r"umap-learn for explore, got none; install it with: pip install 'raycase\[explore\]'")
    assert not list(tmp_path.iterdir())


def groups(seed, noise=0.3, count=120, dim=16):
    """Unit vectors around three directions, and the direction of each."""
    draw = np.random.default_rng(seed)
    group = np.arange(count) % 3
    vectors = np.eye(3, dim)[group] + noise * draw.normal(size=(count, dim)) / np.sqrt(dim)
    return l2_normalize(vectors.astype(np.float32)), group


def placed(vectors, start=None):
    cosines, rows = nearest_others(vectors, 14)
    return place(vectors, cosines, rows, start)


def test_alike_rows_stand_together_and_again_at_the_same_places():
    vectors, group = groups(0)
    positions = placed(vectors)
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (group[apart.argmin(axis=1)] == group).mean() > 0.95
    assert np.abs(positions).max() <= 1 and positions.shape == (120, 2)
    assert (placed(vectors) == positions).all()


def test_points_start_from_the_map_before_and_lie_as_it_does():
    positions, others = placed(groups(0)[0]), groups(1)[0]
    for mirror in ([1, 1], [-1, 1]):
        before = positions * mirror
        moved = placed(others, before)
        assert np.linalg.norm(moved - before) < 0.8 * np.linalg.norm(moved - before * [-1, 1])


def test_of_many_rows_a_sample_is_placed_and_the_others_among_their_like():
    (vectors, group), sampled = groups(0, count=1300), np.arange(0, 1300, 4)
    texts, weighed = [f"dog {i}" for i in range(1300)], [[Word(0, 3, 1.0)]] * len(sampled)
    made, again = (make_map(vectors, sampled, "animal", texts, weighed, None, 3) for _ in range(2))
    assert (made.rows == nearest_others(vectors, 8)[1]).all() and made.words[:2] == [[Word(0, 3, 1.0)], []]
    alone = placed(vectors[sampled])
    assert (made.positions[sampled] == alone).all() and (made.positions == again.positions).all()
    others = np.setdiff1d(np.arange(1300), sampled)
    apart = np.linalg.norm(made.positions[others, None] - alone[None], axis=2)
    assert (group[sampled][apart.argmin(axis=1)] == group[others]).mean() > 0.95


def test_neighbours_in_few_cells_are_nearly_those_of_all():
    vectors, _ = groups(0, count=3000)
    exact, sampled = nearest_others(vectors, 8), np.arange(0, 3000, 3)
    (cosines, rows), (_, of_sample) = nearest_in_cells(vectors, 8, sampled, looked=1500)
    np.testing.assert_allclose(cosines, (vectors[:, None] * vectors[rows]).sum(axis=2), atol=1e-5)
    assert np.mean([len({*a} & {*b}) / 8 for a, b in zip(rows, exact[1], strict=True)]) > 0.8
    assert np.isin(of_sample, sampled).all() and (of_sample != np.arange(3000)[:, None]).all()


@pytest.mark.parametrize("count", [3, 4, 20])
def test_few_rows_and_equal_rows_have_places(count):
    for vectors in (groups(0, count=count)[0], np.tile(np.eye(1, 8, dtype=np.float32), (count, 1))):
        assert np.isfinite(placed(vectors)).all()
