"""Lines for people: what raycase did not write itself goes to the terminal escaped, without secrets, and not at any
length."""

import ast
import re

import pytest
import storing
from helpers import ROOT
from test_cli import status_of

from raycase.cli import main
from raycase.errors import RequestError, note, visible, with_arguments

RAW = "\x1b]0;title\a\x1b[31mred \x9b1m gone\b\b\b\b \u202edlrow \u2066x \ud800"
FORGED = "a dog\r\nerror: forged"
UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_styles(text):
    """Without the styles that raycase itself writes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_what_no_terminal_should_read_is_an_escape():
    assert visible(RAW) == (r"\x1b]0;title\x07\x1b[31mred \x9b1m gone\x08\x08\x08\x08 \u202edlrow \u2066x \ud800")
    assert visible(FORGED) == "a dog error: forged"
    assert visible("a\tb\u2028c \n d") == "a b c d"
    assert visible("naïve 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 עברית العربية नमस्ते") == "naïve 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 עברית العربية नमस्ते"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("s3://key:secret@bucket/x", "s3://...@bucket/x"),
        ("at gs://secret@bucket/x, got", "at gs://...@bucket/x, got"),
        ("https://a.blob/x?sv=1&sig=secret&se=2 is", "https://a.blob/x?sv=1&sig=... is"),
        ("abfs://container@account/x", "abfs://container@account/x"),
    ],
)
def test_credentials_are_left_out(text, seen):
    assert visible(text) == seen


def test_flags_become_arguments_but_for_those_of_commands():
    said = (
        "--keep-columns: expected an output of `raycase embed --any-condition`; see `raycase verify OUT`, or --dry-run"
    )
    assert with_arguments(said) == said.replace("--keep-columns", "keep_columns").replace("--dry-run", "dry_run")


def test_nothing_but_note_prints_to_standard_error():
    """So that no line for people is forgotten."""
    allowed = {"errors.py": 1, "cli.py": 1}  # `note`, and a command to copy at any length
    for file in sorted((ROOT / "raycase").rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        found = [call for call in calls if any("stderr" in ast.unparse(k) for k in call.keywords)]
        found = [call for call in found if ast.unparse(call.func) == "print"]
        assert len(found) == (allowed.get(file.name, 0) if file.parent.name == "raycase" else 0), file


def test_errors_and_notes_are_one_short_line_without_secrets(capsys):
    def fail(job):
        note(f"left out {RAW} {FORGED}")
        raise RequestError(f"--x: expected this, got {RAW} s3://a:hunter2@b/ {'y' * 10**6}\n{FORGED}; do that")

    assert status_of("verify", "out", work=fail) == 2
    said = capsys.readouterr().err
    assert not UNSEEN.search(said) and "hunter2" not in said
    assert len(said.splitlines()) == 2 and len(said) < 5000
    assert said.splitlines()[-1].startswith("error: --x: expected this") and said.endswith("; do that\n")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index whose texts and labels are hostile."""
    home = tmp_path_factory.mktemp("hostile")
    model = storing.model_folder(home)
    rows = [row | {"text": f"{row['text']} {RAW[:-1]} {FORGED}"} for row in storing.texts(12)]
    return storing.indexed(home / "i.lance", storing.stored(home / "a", model, rows)), model


@pytest.mark.parametrize("terminal", [True, False])
def test_texts_conditions_and_labels_are_escaped(index, terminal, capsys, monkeypatch):
    folder, model = index
    monkeypatch.setattr("raycase.index.answers.has_styles", lambda stream: terminal)
    asked = RAW[:-1] + FORGED
    for words in (
        ("search", "--index", folder, "--query", asked, "--condition", asked),
        ("search", "--index", folder, "--query", "a dog", "--unconditional"),
        ("facets", "--index", folder, "--condition", asked, "--clusters", "2"),
        ("explain", "--model", model, "--text", asked, "--condition", asked),
    ):
        main(words)
        out, err = capsys.readouterr()
        seen = without_styles(out) if terminal else out
        assert not UNSEEN.search(seen) and not UNSEEN.search(err)
        assert not re.search("^error: forged", out + err, re.MULTILINE)
        assert r"\x1b" in seen
