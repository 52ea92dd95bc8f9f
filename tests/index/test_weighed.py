"""Answers whose words are weighed: in Parquet, in the terminal; and indexes whose words cannot be."""

import io
import re
from contextlib import redirect_stdout

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embedded
from indexed import index_of_thirty, refuse
from small import no_signs
from storing import indexed

import raycase
from raycase.commands.search import SearchFlags, print_answers, search
from raycase.index.answers import BOLD, REGULAR, in_words, looked_at
from raycase.index.index import Index, weigh_answers
from raycase.tokens.words import Word

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


def asked(uri, **options):
    return SearchFlags(**{"index": uri, "query": ("a red dress",), "condition": ("color",), "k": 5} | options)


def marked(uri):
    """Each text, and the words that "color" looked at: of the same texts together, for bf16 is not exact."""
    weights = weigh_answers(pa.table({"condition": ["color"] * len(TEXTS), "text": TEXTS}), Index.open(uri), "text")
    words = [looked_at(text, [Word(**w) for w in row]) for text, row in zip(TEXTS, weights.to_pylist(), strict=True)]
    return list(zip(TEXTS, words, strict=True))


def test_a_file_of_answers_has_the_weights_of_the_words(weighing, tmp_path):
    uri, model = weighing
    (tmp_path / "q.csv").write_text("text,condition\na red dress,color\ntwo people play,number of people\n")
    job = asked(uri, query=(), condition=(), queries=str(tmp_path / "q.csv"), output=str(tmp_path / "a"), explain=True)
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


def test_files_have_no_weights_unless_they_are_asked_for(weighing, tmp_path, in_terminal, monkeypatch):
    uri, model = weighing
    monkeypatch.setattr(type(model), "word_weights", lambda *_: pytest.fail("expected no words to be weighed"))
    in_terminal(asked(uri, output=str(tmp_path / "a")))
    assert "weights" not in pq.read_table(tmp_path / "a").column_names
    printed = in_terminal(asked(uri, explain=False))
    assert BOLD not in printed and "dress" in printed


def test_in_a_terminal_the_words_are_bold(weighing, in_terminal):
    uri, _ = weighing
    printed = in_terminal(asked(uri)).splitlines()
    for text, words in marked(uri):
        line = next(line for line in printed if unstyled(line).endswith(" ".join(text.split())))
        bold = re.findall(re.escape(BOLD) + "(.*?)" + re.escape(REGULAR), line)
        assert bold == [text[w.start : w.end] for w in words]


def unstyled(line):
    return re.sub("\033" + r"\[\d*m", "", line)


def test_without_a_terminal_the_words_are_listed_if_asked(weighing, capsys):
    uri, _ = weighing
    search(asked(uri))
    plain = capsys.readouterr().out
    assert "(" not in plain and BOLD not in plain
    search(asked(uri, explain=True))
    printed = capsys.readouterr().out
    for text, words in marked(uri):
        assert f"{' '.join(text.split())}  ({in_words(text, words)})" in printed
    assert BOLD not in printed
    search(asked(uri, explain=True, text_column="title"))
    assert re.search(r"title \d  \(\w+ \d\.\d\d", capsys.readouterr().out)
    search(asked(uri, text_column="title"))
    assert re.search(r"0\.\d+  title \d\n", capsys.readouterr().out)


def test_what_cannot_be_weighed_is_refused_or_left_alone(weighing, tmp_path, tiny_model, in_terminal):
    uri, _ = weighing
    for column in ("words", "year"):
        refuse(asked(uri, text_column=column), f"--text-column: expected a column of texts .*, got '{column}'", search)
    other, _ = index_of_thirty(tmp_path, tiny_model)
    words = r"--explain: expected an index of a model that weighs words \(as condition-pooling\), got one of .*bi"
    refuse(asked(other, explain=True), words, search)
    assert BOLD not in in_terminal(asked(other))


def test_an_answer_that_could_not_be_scored_again_is_shown_without_a_score(capsys):
    print_answers([{"query": 0, "rank": 1, "score": None, "id": 7}], "id", ["dog", "cat"], None)
    assert capsys.readouterr().out == '\n"dog"\n   1       -  7\n\n"cat"\n      no rows pass the filter\n\n'
