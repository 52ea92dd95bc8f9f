"""The command facets: its table, its files and that they reconcile; filters; indexes without texts or words."""

import re
from unittest import mock

import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import refuse

import raycase
from raycase.commands.facets import FacetsFlags, facets
from raycase.index.answers import BOLD
from raycase.tokens import words as module

KINDS = {"dog": "dog " * 9, "dress": "red dress " * 5, "ball": "people play ball " * 3}
KIND = {i: list(KINDS)[(i >= 30) + (i >= 50)] for i in range(60)}  # 30, 20 and 10 rows


@pytest.fixture(scope="module")
def grouped(tmp_path_factory, tiny_model):
    """URI of an index of 60 texts of three kinds by condition pooling."""
    home = tmp_path_factory.mktemp("grouped")
    words = ["man", "woman", "cat", "shirt", "run", "sit"]
    texts = {i: f"A {KINDS[kind]}and {words[i % 6]}" for i, kind in KIND.items()}
    rows = [{"id": i, "text": text, "kind": KIND[i], "label": f"row {i}"} for i, text in texts.items()]
    settings = {"prompt": None, "pooling": None, "keep_columns": ("text", "kind", "label")}
    name = f"condition-pooling:{tiny_model}"
    output = embedded(home, name, rows, conditions=("color", "number of people"), **settings)
    return storing.indexed(home / "i.lance", output)


def asked(uri, **options):
    return FacetsFlags(**{"index": uri, "condition": "color"} | options)


def test_the_files_reconcile_with_the_rows_and_with_each_other(grouped, tmp_path):
    files = {"output": str(tmp_path / "facets"), "assignments": str(tmp_path / "rows")}
    result = facets(asked(grouped, clusters=3, **files))
    found, rows = pq.read_table(files["output"]).to_pylist(), pq.read_table(files["assignments"]).to_pylist()
    assert (result["rows"], result["clusters"], result["asked"], result["condition"]) == (60, 3, "color", "color")
    assert {name: result[name] for name in files} == files
    assert [facet["cluster"] for facet in found] == [1, 2, 3]
    assert [facet["rows"] for facet in found] == [30, 20, 10]
    assert [facet["share"] for facet in found] == pytest.approx([30 / 60, 20 / 60, 10 / 60])
    assert sorted(row["id"] for row in rows) == list(range(60))
    assert {(row["cluster"], KIND[row["id"]]) for row in rows} == {(1, "dog"), (2, "dress"), (3, "ball")}
    for facet, kind in zip(found, KINDS, strict=True):
        assert kind in [word["word"] for word in facet["words"]] and len(facet["words"]) <= 5
        scores = [word["score"] for word in facet["words"]]
        assert all(score > 0 for score in scores)
        of_cluster = {row["id"]: row["cosine"] for row in rows if row["cluster"] == facet["cluster"]}
        cosines = [example["cosine"] for example in facet["examples"]]
        assert len({example["text"] for example in facet["examples"]}) == len(cosines) == 3
        assert cosines == sorted(cosines, reverse=True) and cosines[0] == max(of_cluster.values())
        assert all(of_cluster[example["id"]] == example["cosine"] for example in facet["examples"])


def test_rows_that_say_nothing_are_a_group_of_their_own(tmp_path, capsys):
    model = storing.model_folder(tmp_path)
    rows = storing.texts(90)
    words = storing.stored(tmp_path / "a", model, rows)
    uri, files = storing.indexed(tmp_path / "i.lance", words), {n: str(tmp_path / n) for n in ("output", "assignments")}
    condition = "what they wear on their heads"
    result = facets(asked(uri, condition=condition, clusters=4, stated=True, **files))
    states = raycase.load(model, device="cpu").stated([row["text"] for row in rows], condition)
    found, of_rows = (pq.read_table(files[name]).to_pylist() for name in files)
    assert result["rows"] == 90 == sum(facet["rows"] for facet in found) == len(of_rows)
    assert [facet["cluster"] for facet in found] == [1, 2, 3, 4, 0] and result["clusters"] == 4
    assert found[-1]["rows"] == result["not_stated"] > 9 and sum(facet["share"] for facet in found) == pytest.approx(1)
    for row, state in zip(of_rows, states, strict=True):
        assert (row["cosine"] is None) == (row["cluster"] == 0)
        assert row["cluster"] == 0 or state > 0.45
        assert row["cluster"] > 0 or state < 0.55
    assert f"{result['not_stated'] / 90:.1%}  not stated" in capsys.readouterr().out
    assert facets(asked(uri, condition=condition, clusters=4))["not_stated"] == 0


def test_a_cluster_of_function_words_alone_is_named_by_its_nearest_text(grouped, capsys, monkeypatch):
    monkeypatch.setattr(module, "FUNCTION_WORDS", mock.MagicMock(__contains__=lambda words, word: True))
    facets(asked(grouped, clusters=3))
    assert len(re.findall(r"^ .*%  like: A (?:dog|red|people) ", capsys.readouterr().out, re.M)) == 3


def test_the_table_shows_size_share_words_and_texts(grouped, capsys, monkeypatch):
    facets(asked(grouped, clusters=3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == '60 rows under "color" in 3 clusters'
    sizes = [re.match(r" +(\d) +(\d+) +(\d+\.\d%)  (\w.*)", line) for line in lines]
    assert [m.group(1, 2, 3) for m in sizes if m] == [("1", "30", "50.0%"), ("2", "20", "33.3%"), ("3", "10", "16.7%")]
    assert "dog" in sizes[3].group(4).split(", ")
    assert sum(line.startswith(" " * 26 + "A ") for line in lines) == 9
    monkeypatch.setattr("raycase.index.answers.has_styles", lambda stream: True)
    facets(asked(grouped, clusters=3))  # in a terminal the words that the condition looked at are bold
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" " * 26)]
    assert len(examples) == 9 and all(BOLD in line for line in examples)


def test_a_condition_that_the_index_does_not_have(grouped, capsys):
    result = facets(asked(grouped, condition="colors", clusters=2))
    assert result["asked"] == "colors" and result["condition"] in ("color", "number of people")
    assert "no 'colors' in the index; answered under" in capsys.readouterr().err
    words = "^condition: expected one of the index's .*got 'colors'"
    refuse(asked(grouped, condition="colors", exact_condition=True), words, facets)


def test_an_index_without_texts_shows_ids(grouped, tmp_path, tiny_model, capsys):
    rows = [{"id": i, "text": text, "year": 2000} for i, text in enumerate(KINDS.values())]
    rows += [{"id": 3 + i, "text": f"cat {i}", "year": 2001} for i in range(9)]
    output = embedded(tmp_path, tiny_model, rows, conditions=("color",), keep_columns=("year",))
    uri = storing.indexed(tmp_path / "i.lance", output)
    facets(asked(uri, clusters=2, output=str(tmp_path / "facets")))
    printed = capsys.readouterr()
    words = "expected the texts in a column that the index keeps (id, year), got 'text'"
    assert printed.err == f"no weighed words: {words}\n"
    found = pq.read_table(tmp_path / "facets").to_pylist()
    assert [facet["words"] for facet in found] == [None, None]
    assert all(example["text"] is None for facet in found for example in facet["examples"])
    ids = [example["id"] for facet in found for example in facet["examples"]]
    assert len(set(ids)) == len(ids) >= 4 and all(re.search(rf"^ {{26}}{i}$", printed.out, re.MULTILINE) for i in ids)

    refuse(asked(uri, text_column="title"), "--text-column: expected a column of texts .*id.*, got 'title'", facets)
    facets(asked(grouped, clusters=2, text_column="label"))
    assert re.search(r"^ {26}row \d+$", capsys.readouterr().out, re.MULTILINE)


def test_wrong_requests_are_refused(grouped, home, tmp_path):
    def ask(words, **options):
        refuse(asked(**{"uri": grouped} | options), words, facets)

    ask("^condition: expected words, got ' '", condition=" ")
    ask("--clusters: expected at least 2, got 1", clusters=1)
    ask("--clusters: expected at most the 10 rows", clusters=11, where="kind = 'ball'")
    ask("--where: expected a filter that leaves rows to group, got one", where="kind = 'cat'")
    ask(r"^condition: expected one of the index's \(none\)", uri=storing.indexed(tmp_path / "plain", home / "plain"))
