"""Write docs/flags.md, the tables of every subcommand's flags, from the dataclasses that they are read into; and what
--help prints into raycase/help, since loading the flags takes seconds.

python docs/flags.py            write it
python docs/flags.py --check    exit with 1 where it is out of date (`make lint`)
"""

import inspect
import io
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, Field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from raycase import cli
from raycase.commands import COMMANDS
from raycase.commands.reading import field_docs, grouped

Row = tuple[str, str, str, bool]  # flag, default, meaning; whether it is advanced
PAGE = Path(__file__).with_name("flags.md")
POSITIONAL = get_args(tyro.conf.Positional[str])[1]
HEAD = """# Flags

<!-- Written by docs/flags.py from the dataclasses; do not edit. -->

`raycase SUBCOMMAND --help` prints the flags that people use, `--help-all` these and what few people change. A flag that
is on or off has two forms, `--flag` and `--no-flag`. The scripts in `jobs/` take the flags of the subcommand with their
name. `--config FILE` reads flags of any command from a YAML file (`conditions: [place, people]`); flags given beside it
win. `--quiet` leaves out notes and progress. `raycase --tyro-print-completion bash` (or `zsh`, `tcsh`) prints what
makes a shell complete them all.

A flag of several commands or systems stands once, in a table before them, whose last column says which have it.
"""


def page() -> str:
    """The whole page as Markdown."""
    kinds, rows = all_kinds(), rows_by_kind()
    systems = [kind for kind in kinds if " " in kind]
    parts = [
        HEAD,
        several("## Flags of several commands", rows, lambda shared: len({k.split()[0] for k in shared}) > 1),
    ]
    for name, command in COMMANDS.items():
        if name in kinds:
            parts.append(section(f"## raycase {name}", kinds[name], name, rows, f"    {command.example}\n"))
            continue
        example = command.example.replace("SYSTEM", "condition-pooling")
        parts.append(f"## raycase {name}\n\n{first_line(command.work)}\n\n    {example}\n")
        title = f"### Flags of several systems of raycase {name}"
        parts.append(several(title, rows, lambda shared: len(shared) > 1 and {*shared} <= {*systems}))
        parts += [section(f"### raycase {kind}", kinds[kind], kind, rows) for kind in systems]
    return "\n".join(parts)


def all_kinds() -> dict[str, type]:
    """The dataclass of each command, and of each system that a command is for, as `train case`."""
    kinds: dict[str, type] = {}
    for name, command in COMMANDS.items():
        flags = command.flags
        kinds |= {f"{name} {s}": kind for s, kind in flags.items()} if isinstance(flags, Mapping) else {name: flags}
    return kinds


def rows_by_kind() -> dict[Row, list[str]]:
    """Every row, and the commands and systems that have it."""
    rows: dict[Row, list[str]] = {}
    for name, kind in all_kinds().items():
        docs, hints = field_docs(kind), get_type_hints(kind, include_extras=True)
        for advanced, group in enumerate(grouped(kind)):
            for field in group:
                row = (flag(field, hints[field.name]), default(field), cell(docs[field.name]), bool(advanced))
                rows.setdefault(row, []).append(name)
    return rows


def several(title: str, rows: Mapping[Row, list[str]], chosen: Callable[[list[str]], bool]) -> str:
    """The flags that several commands or systems have, those of most first, and which have them."""
    found = sorted((item for item in rows.items() if chosen(item[1])), key=lambda item: -len(item[1]))
    lines = [title, "", "| flag | default | meaning | of |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row[:3])} | {named(shared)} |" for row, shared in found]
    return "\n".join([*lines, ""])


def named(kinds: Sequence[str]) -> str:
    """Commands and systems in a cell: `train` alone for all systems, and without the command where all are of it."""
    systems = [kind for kind in all_kinds() if " " in kind]
    if {*systems} <= {*kinds}:
        kinds = [kind for kind in kinds if kind not in systems] + (["train"] if {*kinds} > {*systems} else ["all"])
    elif {*kinds} <= {*systems}:
        lacking = [kind.split()[1] for kind in systems if kind not in kinds]
        kinds = [kind.split()[1] for kind in kinds]
        return f"all but {', '.join(lacking)}" if len(lacking) < len(kinds) else ", ".join(kinds)
    return ", ".join(kinds)


def section(title: str, kind: type, name: str, rows: Mapping[Row, list[str]], example: str = "") -> str:
    """A command's or a system's own flags, usual and advanced; the tables before have those it shares."""
    described = [line.strip() for line in (inspect.getdoc(kind) or "").splitlines()]
    lines = [title, "", *described, "", *([example] if example else [])]
    for head, wanted in (("flag", False), ("advanced flag", True)):
        if own := [row for row, of in rows.items() if of == [name] and row[3] == wanted]:
            lines += [f"| {head} | default | meaning |", "|---|---|---|"]
            lines += [*(f"| {' | '.join(row[:3])} |" for row in own), ""]
    return "\n".join(lines)


def flag(field: Field[Any], hint: Any) -> str:
    """How it is given: the flag, its aliases and its choices; a positional argument in capitals."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    hint = get_args(hint)[0] if extras else hint
    if POSITIONAL in extras:
        return f"`{field.name.upper()}`"
    name = field.name.replace("_", "-")
    types_of = {t for t in alternatives(hint) if t is not type(None)}
    if types_of == {bool}:
        return f"`--{name}`, `--no-{name}`"
    aliases = [alias for extra in extras for alias in getattr(extra, "aliases", None) or ()]
    return ", ".join(f"`{word}{choices(hint)}`" for word in (f"--{name}", *aliases))


def alternatives(hint: Any) -> Iterator[Any]:
    """The members of a union, or the type itself."""
    yield from get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def choices(hint: Any) -> str:
    """The values to choose from, as in the help; nothing where any value will do."""
    for kind in alternatives(hint):
        inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
        many = "..." if inner is not kind else ""
        if get_origin(inner) is Literal:
            return f" {{{','.join(map(str, get_args(inner)))}}}{many}"
        if isinstance(inner, type) and issubclass(inner, Enum):
            return f" {{{','.join(member.value for member in inner)}}}{many}"
    return ""


def default(field: Field[Any]) -> str:
    """The default; empty where the meaning says what an unset flag does."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "required"
    if value in (None, (), ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def cell(text: str) -> str:
    """One line, in which a bar does not end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def first_line(function: Any) -> str:
    """Of its docstring."""
    return (inspect.getdoc(function) or "").splitlines()[0]


def help_pages() -> Iterator[tuple[Path, str]]:
    """Each page of help and what it holds."""
    os.environ["COLUMNS"] = "100"
    cli.help_page = lambda arguments: None
    for name in {*COMMANDS, *all_kinds()}:
        with redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
            cli.parse([*name.split(), "--help"])
        yield cli.HELP / f"{name.replace(' ', '-')}.txt", re.sub(r" +\n", "\n", said.getvalue())


def main() -> int:
    """Write the pages, or compare them with --check."""
    pages = {PAGE: page(), **dict(help_pages())}
    if sys.argv[1:] == ["--check"]:
        if wrong := [p.name for p, text in pages.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]:
            print(f"{wrong[0]}: expected the flags of the code, got others; run `make docs`", file=sys.stderr)
        return int(bool(wrong))
    cli.HELP.mkdir(exist_ok=True)
    for file in {*cli.HELP.glob("*.txt")} - {*pages}:
        file.unlink()
    for file, text in pages.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
