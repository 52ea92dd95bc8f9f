"""What is shown of answers and groups of them: facets in tables and files, and the words that weigh."""

import io
import re
from contextlib import redirect_stdout
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import index_of_thirty, refuse
from small import no_signs
from storing import indexed

import raycase
from raycase.commands.facets import FacetsFlags, facets
from raycase.commands.search import SearchFlags, print_answers, search
from raycase.index.answers import BOLD, REGULAR, in_bold, in_words, looked_at
from raycase.index.index import Index, weigh_answers
from raycase.tokens import words as module
from raycase.tokens.words import Word

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


def test_the_files_reconcile_with_the_rows_and_the_table_shows_them(grouped, tmp_path, capsys, monkeypatch):
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
        assert any(kind in word["word"].split() for word in facet["words"]) and len(facet["words"]) <= 5
        scores = [word["score"] for word in facet["words"]]
        assert all(score > 0 for score in scores)
        of_cluster = {row["id"]: row["cosine"] for row in rows if row["cluster"] == facet["cluster"]}
        cosines = [example["cosine"] for example in facet["examples"]]
        assert len({example["text"] for example in facet["examples"]}) == len(cosines) == 3
        assert cosines == sorted(cosines, reverse=True) and cosines[0] == max(of_cluster.values())
        assert all(of_cluster[example["id"]] == example["cosine"] for example in facet["examples"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == '60 rows under "color" in 3 clusters'
    sizes = [re.match(r" +(\d) +(\d+) +(\d+\.\d%)  (\w.*)", line) for line in lines]
    assert [m.group(1, 2, 3) for m in sizes if m] == [("1", "30", "50.0%"), ("2", "20", "33.3%"), ("3", "10", "16.7%")]
    assert "dog" in sizes[3].group(4).split(", ")
    monkeypatch.setattr("raycase.index.answers.has_styles", lambda stream: True)
    facets(asked(grouped, clusters=3))  # in a terminal the words that the condition looked at are bold
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" " * 26)]
    assert len(examples) == 9 and all(BOLD in line for line in examples)


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


def test_wrong_requests_are_refused(grouped, home, tmp_path, capsys):
    def ask(words, **options):
        refuse(asked(**{"uri": grouped} | options), words, facets)

    assert facets(asked(grouped, condition="colors", clusters=2))["condition"] in ("color", "number of people")
    assert "no 'colors' in the index; answered under" in capsys.readouterr().err
    ask("^condition: expected one of the index's .*got 'colors'", condition="colors", exact_condition=True)
    ask("^condition: expected words, got ' '", condition=" ")
    ask("--clusters: expected at least 2, got 1", clusters=1)
    ask("--clusters: expected at most the 10 rows", clusters=11, where="kind = 'ball'")
    ask("--where: expected a filter that leaves rows, got one", where="kind = 'cat'")
    ask(r"^condition: expected one of the index's \(none\)", uri=storing.indexed(tmp_path / "plain", home / "plain"))


TEXTS = ["A woman in a red dress", "A man in a blue dress", "two dogs"]
TEXTS += ["  two people <b>play</b> with a dog", "café & {x} 😀 [SEP] a dog"]
CONDITIONS = ("color", "number of people")


@pytest.fixture(scope="module")
def weighing(tmp_path_factory, tiny_model):
    """URI of an index of `TEXTS` by condition pooling, and the loaded model."""
    home = tmp_path_factory.mktemp("weighing")
    name = f"condition-pooling:{tiny_model}"
    rows = [{"id": i, "text": text, "title": f"title {i}", "year": 2000 + i} for i, text in enumerate(TEXTS)]
    settings = {"prompt": None, "pooling": None, "keep_columns": ("text", "title", "year")}
    out = embedded(home / "a", name, rows, conditions=CONDITIONS, **settings)
    plain = embedded(home / "b", name, rows, unconditional=True, **settings)
    return indexed(home / "i.lance", out, plain), raycase.load(name)


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def in_terminal(monkeypatch):
    """A function that runs a search in a terminal and gives what it prints."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(job):
        with redirect_stdout(Terminal()) as stream:
            search(job)
        return stream.getvalue()

    return run


def asked_for(uri, **options):
    return SearchFlags(**{"index": uri, "query": ("a red dress",), "condition": ("color",), "k": 5} | options)


def marked(uri):
    """Each text, and the words that "color" looked at: of the same texts together, for bf16 is not exact."""
    weights = weigh_answers(pa.table({"condition": ["color"] * len(TEXTS), "text": TEXTS}), Index.open(uri), "text")
    words = [looked_at(text, [Word(**w) for w in row]) for text, row in zip(TEXTS, weights.to_pylist(), strict=True)]
    return list(zip(TEXTS, words, strict=True))


def test_a_file_of_answers_has_the_weights_of_the_words(weighing, tmp_path):
    uri, model = weighing
    (tmp_path / "q.csv").write_text("text,condition\na red dress,color\ntwo people play,number of people\n")
    job = asked_for(
        uri, query=(), condition=(), queries=str(tmp_path / "q.csv"), output=str(tmp_path / "a"), explain=True
    )
    search(job)
    answers = pq.read_table(tmp_path / "a")
    assert str(answers.schema.field("weights").type) == "list<element: struct<start: int32, end: int32, weight: float>>"
    assert len(answers) == 10
    for row in answers.to_pylist():
        (words,) = model.word_weights([row["text"]], row["condition"])
        assert [(w["start"], w["end"]) for w in row["weights"]] == [w[:2] for w in words]
        assert [w["weight"] for w in row["weights"]] == pytest.approx([w.weight for w in words], abs=0.02)
        spans = [row["text"][w["start"] : w["end"]] for w in row["weights"]]
        assert no_signs("".join(spans)) == no_signs(row["text"])


def test_words_are_not_weighed_where_they_are_not_shown(weighing, tmp_path, in_terminal, monkeypatch):
    uri, model = weighing
    monkeypatch.setattr(type(model), "word_weights", lambda *_: pytest.fail("expected no words to be weighed"))
    in_terminal(asked_for(uri, output=str(tmp_path / "a")))
    assert "weights" not in pq.read_table(tmp_path / "a").column_names
    assert "dress" in in_terminal(asked_for(uri, explain=False))
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        assert "dress" in in_terminal(asked_for(uri))
        monkeypatch.delenv(name)


def test_in_a_terminal_the_words_are_bold(weighing, in_terminal, monkeypatch):
    uri, _ = weighing
    monkeypatch.setenv("NO_COLOR", "")  # as if it were not set
    printed = in_terminal(asked_for(uri)).splitlines()
    for text, words in marked(uri):
        line = next(line for line in printed if re.sub("\033" + r"\[\d*m", "", line).endswith(" ".join(text.split())))
        bold = re.findall(re.escape(BOLD) + "(.*?)" + re.escape(REGULAR), line)
        assert bold == [text[w.start : w.end] for w in words]


def words(text, *weighed):
    """Words of a text by (string, weight)."""
    return [Word(text.index(part), text.index(part) + len(part), weight) for part, weight in weighed]


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        ([0.1, 0.4, 0.2, 0.3], [1, 3]),
        ([0.25, 0.25, 0.25, 0.25], [0, 1]),  # of equal ones the first
        ([0.1, 0.1, 0.3], [2]),  # half of their sum, which white space can keep below 1
        ([0.1] * 10, [0, 1, 2, 3, 4]),  # half is half whatever the rounding
        ([], []),
    ],
)
def test_the_fewest_words_that_hold_half_of_the_weight(weights, chosen):
    given = [Word(2 * n, 2 * n + 1, weight) for n, weight in enumerate(weights)]
    assert looked_at("x " * 10, given) == [given[n] for n in chosen]


def test_bold_words_in_one_line_cut_around_the_heaviest():
    text = "A \t red\ndress, \x00 😀"
    marks = words(text, ("red", 0.4), ("dress", 0.4), ("😀", 0.2))
    assert in_bold(text, marks, 100) == f"A {BOLD}red{REGULAR} {BOLD}dress{REGULAR}, \\x00 {BOLD}😀{REGULAR}"
    assert in_bold(text, [], 100) == "A red dress, \\x00 😀"  # as a terminal may have it
    assert in_bold(text, marks[:2], 10) == f"A {BOLD}red{REGULAR} {BOLD}dr{REGULAR}…"
    text = "a red cat " + "and " * 30 + "a dress " + "and " * 30
    marks = words(text, ("red", 0.2), ("dress", 0.3))
    assert in_bold(text, marks, 20) == f"…and a {BOLD}dress{REGULAR} and and…"
    assert in_bold(text[:137], marks, 20) == f"…and and and a {BOLD}dress{REGULAR}"  # its end fills the line
    assert in_bold("赤" * 30, [Word(25, 27, 1.0)], 10) == f"…{'赤' * 5}{BOLD}赤赤{REGULAR}{'赤' * 3}"  # without spaces
    assert in_bold("a" * 30, [Word(0, 30, 1.0)], 10) == f"{BOLD}{'a' * 10}{REGULAR}…"


def test_without_a_terminal_the_words_are_listed_if_asked(weighing, capsys):
    uri, _ = weighing
    search(asked_for(uri))
    plain = capsys.readouterr().out
    assert "(" not in plain and BOLD not in plain
    search(asked_for(uri, explain=True))
    printed = capsys.readouterr().out
    for text, words in marked(uri):
        assert f"{' '.join(text.split())}  ({in_words(text, words)})" in printed
    assert BOLD not in printed
    search(asked_for(uri, explain=True, text_column="title"))
    assert re.search(r"title \d  \(\w+ \d\.\d\d", capsys.readouterr().out)
    search(asked_for(uri, text_column="title"))
    assert re.search(r"0\.\d+  title \d\n", capsys.readouterr().out)


def test_what_cannot_be_weighed_is_refused_or_left_alone(weighing, tmp_path, tiny_model, in_terminal):
    uri, _ = weighing
    for column in ("words", "year"):
        refuse(
            asked_for(uri, text_column=column), f"--text-column: expected a column of texts .*, got '{column}'", search
        )
    other, _ = index_of_thirty(tmp_path, tiny_model)
    words = r"--explain: expected an index of a model that weighs words \(as condition-pooling\), got one of .*bi"
    refuse(asked_for(other, explain=True), words, search)
    assert BOLD not in in_terminal(asked_for(other))


def test_an_answer_that_could_not_be_scored_again_is_shown_without_a_score(capsys):
    print_answers([{"query": 0, "rank": 1, "score": None, "id": 7}], "id", ["dog", "cat"], None)
    assert capsys.readouterr().out == '\n"dog"\n   1       -  7\n\n"cat"\n      no rows pass the filter\n\n'
