"""Write docs/flags.md, the tables of every subcommand's flags, from the dataclasses that they are read into.

python docs/flags.py            write it
python docs/flags.py --check    exit with 1 where it is out of date (`make lint`)
"""

import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from raycase.commands import COMMANDS
from raycase.flags import field_docs, grouped

PAGE = Path(__file__).with_name("flags.md")
POSITIONAL = get_args(tyro.conf.Positional[str])[1]
HEAD = """# Flags

<!-- Written by docs/flags.py from the dataclasses; do not edit. -->

`raycase SUBCOMMAND --help` prints the flags that people use, `--help-all` these and what few people change. A flag that
is on or off has two forms, `--flag` and `--no-flag`. The scripts in `jobs/` take the flags of the subcommand with their
name. `raycase --tyro-print-completion bash` (or `zsh`, `tcsh`) prints what makes a shell complete them all.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for name, command in COMMANDS.items():
        flags = command.load()
        if isinstance(flags, Mapping):
            parts.append(f"## raycase {name}\n\n{first_line(command.work)}\n")
            common = shared(list(flags.values()))
            said = f"Flags of each `raycase {name}`, which the sections below leave out."
            parts.append(table(f"### raycase {name} SYSTEM", said, next(iter(flags.values())), common))
            for system, kind in flags.items():
                own = [f for f in fields(kind) if f.name not in {f.name for f in common}]
                parts.append(table(f"### raycase {name} {system}", described(kind), kind, own))
        else:
            parts.append(section(f"## raycase {name}", flags))
    return "\n".join(parts)


def section(title: str, kind: type) -> str:
    """The table of a dataclass's flags under its own description."""
    return table(title, described(kind), kind, fields(kind))


def described(kind: type) -> str:
    """The description of a dataclass, its lines without indents."""
    return "\n".join(line.strip() for line in (inspect.getdoc(kind) or "").splitlines())


def shared(kinds: Sequence[type]) -> list[Field[Any]]:
    """The fields that all of these dataclasses have, with the same default and meaning."""
    first, *others = ({f.name: (f, default(f), field_docs(kind)[f.name]) for f in fields(kind)} for kind in kinds)
    return [f for name, (f, *same) in first.items() if all([*other.get(name, ())][1:] == same for other in others)]


def table(title: str, description: str, kind: type, chosen: Sequence[Field[Any]]) -> str:
    """A section with the tables of some flags of a dataclass: the usual ones, and the advanced ones."""
    docs, hints = field_docs(kind), get_type_hints(kind, include_extras=True)
    lines, names = [title, "", description, ""], {f.name for f in chosen}
    for head, group in zip(("flag", "advanced flag"), grouped(kind), strict=True):
        rows = [f"| {flag(f, hints[f.name])} | {default(f)} | {cell(docs[f.name])} |" for f in group if f.name in names]
        lines += [f"| {head} | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
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
    if value is None or value == ():
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


def main() -> int:
    """Write the page, or compare it with --check."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/flags.md: expected the flags of the code, got others; run `python docs/flags.py`", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
