"""A dataclass of flags as the help shows it: the required ones first, and those that few people need at the end."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import tyro

from raycase.names import ADVANCED, HIDDEN


def grouped(flags: type) -> tuple[list[Field[Any]], list[Field[Any]]]:
    """The usual fields of a dataclass, the required first, and the advanced ones; its own stand before its bases'."""
    order = [name for each in flags.__mro__ for name in inspect.get_annotations(each)]
    usual: list[Field[Any]] = []
    advanced: list[Field[Any]] = []
    hints = get_type_hints(flags, include_extras=True)
    for flag in sorted(fields(flags), key=lambda flag: order.index(flag.name)):
        marks = getattr(hints[flag.name], "__metadata__", ())
        if HIDDEN not in marks:
            (advanced if ADVANCED in marks else usual).append(flag)
    return sorted(usual, key=lambda flag: flag.default is not MISSING), advanced


def read_in_groups(flags: type, *, short: str = "", **more_fields: Any) -> Callable[..., Any]:
    """A function for tyro, from two groups of flags to the dataclass. short: the command whose help has the first."""
    usual, advanced = (_group(flags, chosen) for chosen in grouped(flags))
    more = len(fields(advanced)) if short else 0
    suppressed: Any = tyro.conf.Suppress

    def made(usual: Any, advanced: Any) -> Any:
        return flags(**vars(usual), **vars(advanced), **more_fields)

    made.__annotations__ = {
        "usual": Annotated[usual, tyro.conf.arg(name="")],
        "advanced": suppressed[advanced] if more else advanced,
    }
    made.__doc__ = flags.__doc__
    if more:
        made.__doc__ = f"{inspect.getdoc(flags)}\n\n`{short} --help-all` shows {more} more flags."
    return made


def _group(flags: type, chosen: Sequence[Field[Any]]) -> type:
    """A dataclass of some flags of another one; their names have no prefix."""
    hints, docs = get_type_hints(flags, include_extras=True), field_docs(flags)
    group = []
    for flag in chosen:
        hint = "" if flag.default is False or flag.default in (None, (), "") else None  # where the help has the default
        shown = tyro.conf.arg(help=" ".join(docs[flag.name].split()), prefix_name=False, help_behavior_hint=hint)
        default: Any = field() if flag.default is MISSING else field(default=flag.default)
        group.append((flag.name, Annotated[hints[flag.name], shown], default))
    made = make_dataclass(flags.__name__, group, kw_only=True)
    made.__doc__ = ""  # else its signature would stand above the flags
    return made


@cache
def field_docs(flags: type) -> dict[str, str]:
    """The docstring under each field, of the class or the one that it is inherited from."""
    bases = [base for base in reversed(flags.__bases__) if base is not object]
    docs = {name: text for base in bases for name, text in field_docs(base).items()}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(flags))).body
    assert isinstance(tree, ast.ClassDef)
    for named, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(named, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(named.target, ast.Name)
            docs[named.target.id] = ast.literal_eval(below.value)
    for name, more in vars(flags).get("MORE_DOCS", {}).items():
        docs[name] += f" {more}"
    return docs
