"""JSON that was read from a file, checked against type hints: a dataclass or a TypedDict defines what a file holds."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from typing_extensions import is_typeddict

from raycase.errors import visible

T = TypeVar("T")
UNDEFINED = "undefined"  # a figure that is no number, as the correlation of equal cosines


@dataclass(frozen=True, repr=False)
class Several:
    """The values of a name that an object has twice: no type has it, so that whoever reads the name refuses it."""

    name: str

    def __repr__(self) -> str:
        return f"several values of the name {self.name!r}"


def loads(text: str | bytes, *, once: bool = False) -> Any:
    """JSON of a stranger's bytes; of a name that an object has twice the last value, or with `once` `Several`."""
    try:
        return json.loads(text, object_pairs_hook=_each_once if once else None)
    except RecursionError as error:
        raise ValueError("objects nested too deeply") from error


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        found |= {name: Several(name) for name, count in Counter(name for name, _ in pairs).items() if count > 1}
    return found


def not_json(value: object) -> Any:
    """`default` of json.dumps for values that `loads` gave."""
    raise TypeError(f"expected each name of an object once, got {value!r}")


def from_json(of: type[T], values: Any) -> T:
    """Values of a JSON file in the expected type: of a dataclass no other fields; a TypedDict may have more."""
    from pydantic import ValidationError  # slow to import

    hashable: Any = of
    try:
        found: T = _reader(hashable).validate_json(json.dumps([values], default=not_json))[0]
    except ValidationError as error:
        raise ValueError(_first(error.errors()[0])) from error
    return found


@cache
def _reader(of: Any) -> Any:
    """Of a list with one value of this type."""
    from pydantic import TypeAdapter

    extra = "allow" if is_typeddict(of) else "forbid"
    config: Any = {"strict": True, "extra": extra, "allow_inf_nan": False}
    return TypeAdapter(list[of], config=config)


def _first(error: Any) -> str:
    """What is wrong at which place."""
    place = error["loc"][1:]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".") or "the file"
    if error["type"] == "missing":
        return f"{where}: expected it, got none"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: expected no such name, got one"
    if error["type"] == "value_error":  # of a dataclass's own check
        return str(error["ctx"]["error"])
    return f"{where}: {error['msg'].replace('Input should be', 'expected')}, got {visible(repr(error['input']), 80)}"


def finite(value: Any) -> Any:
    """A value as JSON can hold it: None for a number that is NaN or infinite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def figure(value: float | None) -> str:
    """A figure for people."""
    return UNDEFINED if finite(value) is None else f"{value:.2f}"
