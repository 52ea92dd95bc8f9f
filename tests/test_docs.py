"""The pages: their commands parse, tutorials run and print what they say, errors that they quote are in the code."""

import ast
import io
import re
import shlex
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from functools import cache

import pytest
from helpers import ROOT

from raycase.cli import main, parse
from raycase.commands import COMMANDS

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TUTORIALS += [ROOT / "docs" / name for name in ("gpu.md", "choosing-conditions.md")]
REQUIRED = ("--train", "--validation", "--output")  # of `raycase train`
GERMAN = """id,text
1,"Mein Paket kam zwei Wochen zu spät und der Karton war zerrissen."
2,"Die Hose ist zu kurz, ich hatte Größe 34 bestellt."
3,"Sie haben meine Karte zweimal für eine Bestellung belastet."
"""
LONG = {"pairs"}  # tutorials that train
NOT_RUN = "not run by the tests"  # the title of a block of a tutorial
CALLS = re.compile(r"(?:^|[\s/])(?:raycase |python jobs/(\w+)\.py )")


def by_name(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


def blocks(page):
    """(number of the first line, what stands behind the fence, text) of each block of code, fenced or indented."""
    found, fence, before = [], False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("```"):
            fence = not fence
            found += [(number + 1, line.strip("` "), [])] if fence else []
        elif fence:
            found[-1][2].append(line)
        elif line.startswith("    ") and line.strip():
            if not before.startswith("    "):
                found.append((number, "", []))
            found[-1][2].append(line[4:])
        before = line
    return [(number, info, "\n".join(lines)) for number, info, lines in found]


def called(page):
    """(line, words) of each `raycase ...` and `python jobs/NAME.py ...` in a page's blocks of code."""
    for number, info, text in blocks(page):
        if info in ("python", "text", "json", "ini", "js"):
            continue
        for line in text.replace("\\\n", " ").split("\n"):
            line = re.split(r"(?:^|\s)#\s", line)[0]
            if call := CALLS.search(line):
                words = shlex.split(line[call.end() :])
                yield number, [call[1].replace("_", "-"), *words] if call[1] else words


def flags_of(words):
    """Every flag of a command, or of all its systems."""
    flags = COMMANDS[words[0]].flags
    several = [flags] if isinstance(flags, type) else flags.values()
    names = {field.name.replace("_", "-") for each in several for field in fields(each)}
    return {f"--{name}" for name in names} | {f"--no-{name}" for name in names} | {"--help", "--help-all"}


@by_name(PAGES)
def test_every_command_of_a_page_is_one_that_the_parser_takes(page, capsys):
    for number, words in called(page):
        said = f"{page.name}, block at {number}: raycase {shlex.join(words)}"
        assert words[0] in COMMANDS, said
        if "..." in words and COMMANDS[words[0]].over:  # flags that are left to the reader
            words.remove("...")
            words += [word for flag in REQUIRED if flag not in words for word in (flag, "a")]
        try:
            parse(words)
        except SystemExit:
            pytest.fail(f"{said}\n{capsys.readouterr().err}")


@by_name(PAGES)
def test_every_flag_beside_a_command_in_running_text_is_one_of_its_flags(page):
    for quoted in re.findall(r"`raycase ([^`]+)`", page.read_text(encoding="utf-8")):
        words = quoted.split()
        if words and words[0] in COMMANDS and not COMMANDS[words[0]].over:
            given = {re.split("[=/]", word)[0].strip(",") for word in words if re.match("--[a-z]", word)}
            assert given <= flags_of(words), f"{page.name}: raycase {quoted}"


@by_name(PAGES)
def test_every_file_of_the_repository_that_is_linked_or_named_is_there(page):
    text = page.read_text(encoding="utf-8")
    files = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    files += [ROOT / name for name in re.findall(r"(?<![\w/])(?:benchmarks|docs|jobs|results|tests)/[\w/]+\.\w+", text)]
    assert [str(file) for file in files if not file.exists()] == []


def test_every_benchmark_that_a_page_or_a_target_runs_is_there():
    for page in (*PAGES, *(ROOT / "results").glob("*.md"), ROOT / "Makefile"):
        for module in re.findall(r"-m (benchmarks(?:\.\w+)+)", page.read_text(encoding="utf-8")):
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), f"{page.name}: {module}"


@cache
def messages():
    """Every text of the package, with … for what is put into it."""
    found = set()
    for file in (ROOT / "raycase").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_every_error_that_is_explained_is_one_of_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [either[0] or either[1] for either in re.findall("^### (?:`` (.+) ``|`([^`]+)`)$", page, re.MULTILINE)]
    assert len(quoted) == page.count("\n### ") > 25
    assert [words for words in quoted if not any(words in text for text in messages())] == []


@pytest.mark.cluster
def test_each_mistake_of_the_first_hour_prints_the_line_that_is_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "tickets.csv").write_text("ticket,message\n7,My parcel came two weeks late.\n8,Left in the rain.\n")
    (tmp_path / "more.csv").write_text("ticket,message\n9,Nobody answers the phone.\n")
    (tmp_path / "semicolons.csv").write_text("id;text\n7;My parcel came late\n")
    (tmp_path / "german.csv").write_text(GERMAN)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(raycase .+?)` \| `(.+?)` \|", page, re.MULTILINE)
    assert len(rows) == page.count("\n| `raycase ") > 10
    for line, wanted in rows:
        said = run(line, tmp_path)
        assert printed(wanted.replace("…", "..."), said), f"{line}: expected {wanted}, got {said}"
        for note in ("hardly English", "no letters", "reads as a sentence"):
            assert (note in said) == (note in wanted), f"{line}: {said}"


def shell(text):
    """Each command of a block, with its continued lines, and each file that it writes: (name, text)."""
    for part in re.split(r"^(cat > \S+ <<'END'\n.*?\nEND)$", text.replace("\\\n", " "), flags=re.MULTILINE | re.DOTALL):
        if written := re.fullmatch(r"cat > (\S+) <<'END'\n(.*\n)END", part, re.DOTALL):
            yield written[1], written[2]
        else:
            yield from ((None, line) for line in part.split("\n") if line.strip() and not line.startswith("#"))


def run(text, folder):
    """Run the commands of a block: those of raycase in this process. Gives what they print, errors too."""
    said = io.StringIO()
    for name, line in shell(text):
        if name:
            (folder / name).write_text(line, encoding="utf-8")
        elif line.startswith("raycase "):
            with redirect_stdout(said), redirect_stderr(said):
                try:
                    main(shlex.split(line, comments=True)[1:])
                except SystemExit as stop:
                    print(f"status {stop.code}")
        else:
            said.write(subprocess.check_output(["bash", "-c", line], text=True, cwd=folder))
    return said.getvalue()


def printed(wanted, said):
    """Whether the lines that are wanted were said, in their order: `...` stands for anything, and decimals are near."""
    lines = iter(said.split("\n"))
    for line in filter(None, (line.strip() for line in wanted.split("\n"))):
        if line != "..." and not any(alike(line, other.strip()) for other in lines):
            return False
    return True


def alike(wanted, line):
    decimal = r"-?\d+\.\d+"
    parts = [re.escape(part).replace(r"\.", ".") for part in wanted.split("...")]
    found = re.fullmatch(".*?".join(re.sub(decimal, lambda _: f"({decimal})", part) for part in parts), line)
    numbers = [float(number) for number in re.findall(decimal, wanted)]
    return found and all(abs(float(n) - m) < 0.02 + 0.02 * abs(m) for n, m in zip(found.groups(), numbers, strict=True))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.long] * (page.stem in LONG)) for page in TUTORIALS]
)
def test_a_tutorial_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said, names, ran = "", {}, 0
    for number, info, text in blocks(page):
        language, _, options = info.partition(" ")
        assert language in ("bash", "python", "text"), f"{page.name}:{number}: {info}"
        if NOT_RUN in options:
            said = None
        elif language == "text":
            assert said is None or printed(text, said), f"{page.name}:{number}: expected\n{text}\ngot\n{said}"
        elif language == "bash":
            said, ran = run(text, tmp_path), ran + 1
            assert "status" in text or "\nstatus " not in f"\n{said}", f"{page.name}:{number}: {said}"
        else:
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(text, f"{page.name}:{number}", "exec"), names)
            said, ran = out.getvalue(), ran + 1
    assert ran or NOT_RUN in page.read_text()
