"""Which words are marked, and texts of every kind with marks."""

import io

import pytest

from raycase.index.answers import BOLD, REGULAR, has_styles, in_bold, looked_at
from raycase.tokens.words import Word


def words(text, *weighed):
    """Words of a text by (string, weight)."""
    return [Word(text.index(part), text.index(part) + len(part), weight) for part, weight in weighed]


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        ([0.1, 0.6, 0.3], [1]),
        ([0.1, 0.4, 0.2, 0.3], [1, 3]),
        ([0.25, 0.25, 0.25, 0.25], [0, 1]),  # of equal ones the first
        ([0.1, 0.1, 0.3], [2]),  # half of their sum, which white space can keep below 1
        ([0.2] * 3 + [0.4], [0, 3]),
        ([0.1] * 10, [0, 1, 2, 3, 4]),  # half is half whatever the rounding
        ([], []),
    ],
)
def test_the_fewest_words_that_hold_half_of_the_weight(weights, chosen):
    given = [Word(2 * n, 2 * n + 1, weight) for n, weight in enumerate(weights)]
    assert looked_at("x " * 10, given) == [given[n] for n in chosen]


def test_bold_words_in_one_line():
    text = "A \t red\ndress, \x00 😀"
    marks = words(text, ("red", 0.4), ("dress", 0.4), ("😀", 0.2))
    assert in_bold(text, marks, 100) == f"A {BOLD}red{REGULAR} {BOLD}dress{REGULAR}, \\x00 {BOLD}😀{REGULAR}"
    assert in_bold(text, [], 100) == "A red dress, \\x00 😀"  # as a terminal may have it
    assert in_bold(text, marks[:2], 10) == f"A {BOLD}red{REGULAR} {BOLD}dr{REGULAR}…"
    for most in range(1, 22):
        line = in_bold(text, [], most)
        assert line.rstrip("…") == " ".join(text[:most].split()).replace("\0", "\\x00")
        assert line.endswith("…") == (most < len(text))


def test_a_long_text_is_cut_around_its_heaviest_word():
    text = "a red cat " + "and " * 30 + "a dress " + "and " * 30
    marks = words(text, ("red", 0.2), ("dress", 0.3))
    assert in_bold(text, marks, 20) == f"…and a {BOLD}dress{REGULAR} and and…"
    assert in_bold(text[:137], marks, 20) == f"…and and and a {BOLD}dress{REGULAR}"  # its end fills the line
    assert in_bold(text, marks[:1], 12) == f"a {BOLD}red{REGULAR} cat an…"
    assert in_bold("赤" * 30, [Word(25, 27, 1.0)], 10) == f"…{'赤' * 5}{BOLD}赤赤{REGULAR}{'赤' * 3}"  # without spaces
    assert in_bold("a" * 30, [Word(0, 30, 1.0)], 10) == f"{BOLD}{'a' * 10}{REGULAR}…"


@pytest.mark.parametrize(
    ("terminal", "variables", "styles"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_styles_are_for_terminals(terminal, variables, styles, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    assert has_styles(stream) is styles
