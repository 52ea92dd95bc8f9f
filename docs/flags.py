"""Write docs/flags.md, the tables of every command's flags, from the dataclasses that they are read into.

python docs/flags.py            write it
python docs/flags.py --check    exit with 1 where it is out of date (`make lint`)
"""

import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from raycase.commands import COMMANDS
from raycase.commands.reading import field_docs, grouped

Row = tuple[bool, str, str, str]  # whether it is advanced; flag, default, meaning
PAGE = Path(__file__).with_name("flags.md")
POSITIONAL = get_args(tyro.conf.Positional[str])[1]
HEAD = """# Flags

<!-- Written by docs/flags.py from the dataclasses; do not edit. -->

`raycase SUBCOMMAND --help` prints the flags that people use, `--help-all` these and what few people change. A flag that
is on or off has two forms, `--flag` and `--no-flag`. The scripts in `jobs/` take the flags of the subcommand with their
name. `--config FILE` reads flags of any command from a YAML file (`conditions: [place, people]`); flags given beside it
win. `--quiet` leaves out notes and progress, and `--verbose` turns on Ray's logs, progress bars and dashboard.
`raycase --tyro-print-completion bash` (or `zsh`, `tcsh`) prints what makes a shell complete them all.

A flag of several commands or systems stands once, in a table before them, whose last column names those that have it.
"""


def page() -> str:
    """The whole page as Markdown."""
    flags: dict[str, type] = {}  # by the words of a command, as `embed` and `train case`
    for name, command in COMMANDS.items():
        several = command.flags
        flags |= (
            {f"{name} {s}": each for s, each in several.items()} if isinstance(several, Mapping) else {name: several}
        )
    words_of: dict[Row, list[str]] = {}
    for words, each in flags.items():
        for row in rows_of(each):
            words_of.setdefault(row, []).append(words)
    shared = sorted((row for row, of in words_of.items() if len(of) > 1), key=lambda row: -len(words_of[row]))
    across = [row for row in shared if len({words.split()[0] for words in words_of[row]}) > 1]
    of = {row: named(words_of[row], flags) for row in shared}
    lines = [HEAD, "## Flags of several commands", "", *table("flag", across, of)]
    for name, command in COMMANDS.items():
        example = ["", f"    {command.file.EXAMPLE.replace('SYSTEM', 'condition-pooling')}", ""]
        if name not in flags:
            lines += [f"## raycase {name}", "", command.line, *example]
            lines += [f"### Flags of several systems of raycase {name}", ""]
            lines += table("flag", [row for row in shared if row not in across], of)
        for words in [words for words in flags if words.split()[0] == name]:
            is_system = words != name
            lines += [f"##{'#' * is_system} raycase {words}", "", *inspect.getdoc(flags[words]).splitlines()]
            lines += [""] if is_system else example
            own = [row for row, of in words_of.items() if of == [words]]
            lines += table("flag", [row for row in own if not row[0]])
            lines += table("advanced flag", [row for row in own if row[0]])
    return "\n".join(lines)


def named(of: Sequence[str], flags: Iterable[str]) -> str:
    """The commands of a flag, in a cell: `train` for all its systems, `all` in their own table, where others stand
    without the command."""
    systems = [words for words in flags if " " in words]
    if {*systems} <= {*of}:
        of = [words for words in of if words not in systems] + ["train"]
    if of == ["train"]:
        return "all"
    is_of_one = len({words.split()[0] for words in of}) == 1
    return ", ".join(words.split()[-1] if is_of_one else words for words in of)


def table(head: str, rows: Sequence[Row], of: Mapping[Row, str] | None = None) -> Iterator[str]:
    """The lines of a table, if it has rows. of: what the last column names."""
    if rows:
        yield f"| {head} | default | meaning |{' of |' if of else ''}"
        yield "|---" * (4 if of else 3) + "|"
        yield from (f"| {' | '.join(row[1:])} |" + (f" {of[row]} |" if of else "") for row in rows)
        yield ""


def rows_of(flags: type) -> Iterator[Row]:
    """A row for each flag of a dataclass."""
    docs, hints = field_docs(flags), get_type_hints(flags, include_extras=True)
    for is_advanced, group in enumerate(grouped(flags)):
        for field in group:
            meaning = " ".join(docs[field.name].split()).replace("|", "\\|")  # a bar would end the cell
            yield bool(is_advanced), flag(field, hints[field.name]), default(field), meaning


def flag(field: Field[Any], hint: Any) -> str:
    """How it is given: the flag, its aliases and its choices; a positional argument in capitals."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    types_of = [t for t in members(get_args(hint)[0] if extras else hint) if t is not type(None)]
    if POSITIONAL in extras:
        return f"`{field.name.upper()}`"
    name = field.name.replace("_", "-")
    if types_of == [bool]:
        return f"`--{name}`, `--no-{name}`"
    aliases = [alias for extra in extras for alias in getattr(extra, "aliases", None) or ()]
    return ", ".join(f"`{word}{''.join(map(choices, types_of))}`" for word in (f"--{name}", *aliases))


def members(hint: Any) -> Sequence[Any]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def choices(hint: Any) -> str:
    """The values to choose from, as in the help; nothing where any value will do."""
    if get_origin(hint) is tuple and (one := choices(get_args(hint)[0])):
        return f"{one}..."
    if get_origin(hint) is Literal:
        return f" {{{','.join(map(str, get_args(hint)))}}}"
    return f" {{{','.join(hint)}}}" if isinstance(hint, type) and issubclass(hint, Enum) else ""


def default(field: Field[Any]) -> str:
    """The default; empty where the meaning has what an unset flag does."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "required"
    if value in (None, (), ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def main() -> int:
    """Write the page, or compare it with --check."""
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        print("docs/flags.md: expected the flags of the code, got others; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
