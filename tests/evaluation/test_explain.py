"""`raycase explain` shows the words that a condition looks at: in a terminal, as figures, as a picture."""

import io
import json
import re
from contextlib import redirect_stdout
from xml.etree import ElementTree

import pytest
import tiny

import raycase
from raycase.cli import main
from raycase.encoder.words import Word
from raycase.errors import RequestError
from raycase.evaluation.explain import ExplainJob, explain, shaded
from raycase.evaluation.explain_picture import COLUMNS, draw, lines, width
from raycase.search.marks import BOLD, PLAIN

TEXTS = ("A woman in a red dress", "{x} <b>café</b> & 😀 [SEP] dogs")
CONDITIONS = ("color of the dress", "number of <people>")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "simcse-roberta-large")
    return f"condition-pooling:{folder}"


def job(name, **options):
    return ExplainJob(**{"text": TEXTS, "condition": CONDITIONS, "model": name} | options)


def elements(svg, name):
    return ElementTree.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{name}")


def test_words_are_printed_with_their_weights(model, capsys):
    result = explain(job(model))
    printed = capsys.readouterr().out
    assert "\033" not in printed and result["output"] is None
    pairs = [(t, c) for t in TEXTS for c in CONDITIONS]
    weighed = raycase.load(model).word_weights(*map(list, zip(*pairs, strict=True)))
    assert [(e["text"], e["condition"]) for e in result["weights"]] == pairs
    for (text, condition), words, each in zip(pairs, weighed, result["weights"], strict=True):
        figures = ", ".join(f"{text[w.start : w.end]} {w.weight:.2f}" for w in words)
        assert f"  {condition}: {figures}\n" in printed
        assert [Word(**word) for word in each["words"]] == [pytest.approx(word, abs=1e-4) for word in words]


def test_csr_shows_what_its_router_and_a_sentences_own_cls_look_at(model, capsys, tmp_path):
    """Figures 5 to 7: without a condition first, then under each; the same words as `word_weights` gives."""
    name = model.replace("condition-pooling:", "csr:")
    result = explain(job(name, unconditional=True, output=str(tmp_path / "a.svg")))
    assert [(e["text"], e["condition"]) for e in result["weights"]] == [
        (text, condition) for text in TEXTS for condition in (None, *CONDITIONS)
    ]
    system = raycase.load(name)
    for each in result["weights"]:
        (words,) = system.word_weights([each["text"]], each["condition"])
        assert [Word(**word) for word in each["words"]] == [pytest.approx(word, abs=5e-3) for word in words]
    assert capsys.readouterr().out.count("  without a condition: ") == len(TEXTS)
    labels = [e.text for e in elements((tmp_path / "a.svg").read_text(), "text") if e.get("class") == "label"]
    assert labels == ["without a condition", *CONDITIONS] * len(TEXTS)
    assert [e["condition"] for e in explain(job(name, unconditional=True, condition=()))["weights"]] == [None, None]


def test_in_a_terminal_the_text_is_shaded(model, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with redirect_stdout(Terminal()) as stream:
        explain(job(model))
    plain = re.sub("\033" + r"\[[\d;]*m", "", stream.getvalue())
    assert stream.getvalue().count(BOLD) >= len(TEXTS) * len(CONDITIONS)
    assert all(f"  {condition}: {text}\n" in plain for text in TEXTS for condition in CONDITIONS)


def test_more_weight_is_a_stronger_shade():
    text = "a red  dress ,"
    words = [Word(0, 1, 0.01), Word(2, 5, 0.3), Word(7, 12, 0.6), Word(13, 14, 0.09)]
    assert shaded(text, words) == (
        f"a \033[38;5;16;48;5;228mred{PLAIN} {BOLD}\033[38;5;16;48;5;214mdress{PLAIN} \033[38;5;16;48;5;230m,{PLAIN}"
    )
    assert shaded("", []) == "" and shaded("a b", []) == "a b"
    assert shaded("a", [Word(0, 1, 0.0)]) == "a"


def test_the_picture_holds_every_word_escaped(model, tmp_path, capsys):
    file = tmp_path / "picture.svg"
    main(["explain", "--text", *TEXTS, "--condition", *CONDITIONS, "--model", model, "--output", str(file)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["output"] == str(file)
    texts = elements(file.read_text(encoding="utf-8"), "text")
    labels = [e.text for e in texts if e.get("class") == "label"]
    assert labels == [c for _ in TEXTS for c in CONDITIONS]
    shown = "".join(e.text for e in texts if e.get("class") != "label")
    assert shown == "".join("".join(text.split()) * len(CONDITIONS) for text in TEXTS)
    assert any(e.get("class") == "marked" for e in texts)


def test_the_background_is_the_share_of_the_largest_weight():
    svg = draw([("a red dress", "color", [Word(0, 1, 0.0), Word(2, 5, 0.2), Word(6, 11, 0.8)])])
    page, red, dress = elements(svg, "rect")
    assert page.get("class") == "page" and (red.get("fill-opacity"), dress.get("fill-opacity")) == ("0.25", "1.00")
    assert int(dress.get("x")) == int(red.get("x")) + int(red.get("width")) * 4 // 3


def test_long_texts_are_broken_between_words():
    text = " ".join(f"word{n}," for n in range(60))
    words = [Word(m.start(), m.end(), 1 / 60) for m in re.finditer(r"word\d+", text)]
    placed = lines(text, words)
    assert len(placed) > 4
    assert all(column + width(piece) <= COLUMNS for line in placed for column, piece, _ in line)
    assert all(line[0][0] == 0 and line[-1][1] == "," for line in placed)
    assert "".join(piece for line in placed for _, piece, _ in line) == "".join(text.split())
    long = "x" * 200
    assert int(ElementTree.fromstring(draw([(long, "c", [])])).get("width")) > 9 * 200


@pytest.mark.parametrize("text", ["", " \n", "\x00\x1b[1m\ufffe", "\u200b", "東京 é e\u0301 👩‍👩‍👧"])
def test_a_picture_of_any_text_is_valid(text):
    svg = draw([(text, text, [Word(0, 1, 1.0)] if text.strip() else [])])
    assert all(float(e.get("textLength", 1)) > 0 for e in elements(svg, "text"))


def test_columns_of_a_font_of_equal_widths():
    assert [width(text) for text in ("abc", "東京", "e\u0301", "\u200b", "")] == [3, 4, 1, 0, 0]


def test_wrong_requests_are_refused(model, tmp_path):
    encoder = model.removeprefix("condition-pooling:")
    for wrong, words in [
        ({"model": "minilm"}, r"--model: expected a model that weighs words .*, got minilm$"),
        ({"model": "nowhere/at/all"}, r"--model: expected a model that weighs words .*, got nowhere/at/all: "),
        ({"model": f"tri-encoder:{encoder}"}, r"--model: expected a model that weighs words .*, got tri-encoder:"),
        ({"unconditional": True}, "--unconditional: expected csr, got condition-pooling:"),
        ({"unconditional": True, "model": f"csr:{encoder}", "text": (" ",)}, "--text: expected words, got ' ': empty"),
        ({"text": ()}, "--text: expected at least one, got none"),
        ({"condition": ()}, "--condition: expected at least one, got none"),
        ({"text": ("dog", " ")}, "--text: expected words, got ' ' under 'color of the dress': empty text"),
        ({"condition": ("",)}, "--text: expected words, .* under '': empty condition"),
        ({"output": str(tmp_path / "a.png")}, "--output: expected a file that ends with .svg, got"),
    ]:
        with pytest.raises(RequestError, match=words):
            explain(job(model, **wrong))
