"""JSON that was read from a file, checked against type hints: a dataclass or a TypedDict says what a file holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from raycase.errors import MOST, is_utf8, visible

T = TypeVar("T")
UNDEFINED = "undefined"  # a figure that is no number, as the correlation of equal cosines
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", NoneType: "null"}


def loads(text: str | bytes, *, once: bool = False) -> Any:
    """JSON of a stranger's bytes. Raises ValueError for what is none, for nesting without end and, if each is to be
    there `once`, for a name that an object has twice."""
    try:
        return json.loads(text, object_pairs_hook=object_of_once if once else None)
    except RecursionError as error:
        raise ValueError("objects nested too deeply") from error


def object_of_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's pairs as `json.loads` has them. Raises ValueError for a name that it has twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"expected each name once, got {visible(repr(twice), 80)} twice")
    return values


def from_json(kind: type[T], values: Any, **given: Any) -> T:
    """Values of a JSON file in the type that is expected; `given`: fields of a dataclass that are not among them.

    A dataclass has no other fields; a TypedDict may have more. Raises ValueError, with the field, for one that is
    missing, unknown or of another type, for numbers that are not finite or beyond 64 bits, and text that is not UTF-8.
    """
    return _object(kind, values, "", given) if given else _typed(kind, values, "")


def finite(value: Any) -> Any:
    """A value as JSON can hold it: None for a number that is NaN or infinite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def figure(value: float | None, digits: int = 2) -> str:
    """A figure for people."""
    return UNDEFINED if finite(value) is None else f"{value:.{digits}f}"


def _object(kind: Any, values: Any, where: str, given: dict[str, Any]) -> Any:
    if not isinstance(values, dict):
        raise _error(where, "an object", values)
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        hints = {field.name: hints[field.name] for field in fields(kind) if field.name not in given}
        needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING} - given.keys()
        unknown = values.keys() - hints.keys()
        if unknown:
            raise ValueError(f"{_path(where, min(unknown))}: expected no such name, got one")
    else:
        needed = kind.__required_keys__
    missing = sorted(needed - values.keys())
    if missing:
        raise ValueError(f"{_path(where, missing[0])}: expected it, got none")
    found = {name: _typed(hints[name], values[name], _path(where, name)) for name in hints if name in values}
    return values | found if is_typeddict(kind) else kind(**found, **given)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """A value as a hint asks. Raises ValueError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is UnionType:  # of one type and None
        [kind] = [argument for argument in arguments if argument is not NoneType]
        return None if value is None else _typed(kind, value, where)
    if origin is Literal:
        if value not in arguments:
            raise _error(where, f"one of {', '.join(map(str, arguments))}", value)
        return value
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list):
            raise _error(where, "a list", value)
        found = [_typed(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value)]
        return found if origin is list else tuple(found)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _error(where, "an object", value)
        return {name: _typed(arguments[1], each, _path(where, name)) for name, each in value.items()}
    if is_dataclass(hint) or is_typeddict(hint):
        return _object(hint, value, where, {})
    if issubclass(hint, StrEnum):
        if value not in list(hint):
            raise _error(where, f"one of {', '.join(hint)}", value)
        return hint(value)
    if not _is(hint, value):
        raise _error(where, KINDS[hint], value)
    return value


def _is(kind: type, value: Any) -> bool:
    """Whether a JSON value is one of these: whole numbers are numbers, too."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, kind) and kind is bool
    if isinstance(value, int):
        return kind in (int, float) and abs(value) <= MOST
    if isinstance(value, float):
        return kind is float and math.isfinite(value)
    return isinstance(value, kind) and (not isinstance(value, str) or is_utf8(value))


def _path(where: str, name: str) -> str:
    return f"{where}.{name}".lstrip(".")


def _error(where: str, expected: str, value: Any) -> ValueError:
    got = repr(value)
    return ValueError(f"{where or 'the file'}: expected {expected}, got {got if len(got) <= 80 else got[:80] + '...'}")
