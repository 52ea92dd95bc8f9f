"""JSON of a file in the types that it is expected to have."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest
from typing_extensions import TypedDict

from raycase.io.json_values import from_json


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    share: float = 0.5


class Needed(TypedDict):
    count: int


class Entry(Needed, total=False):
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Record:
    name: str
    shape: Shape | None
    color: Color
    sizes: tuple[int, ...]
    kind: Literal["a", "b"] = "a"
    rows: dict[str, int]
    ranges: Sequence[float] = ()
    entry: Entry
    other: Any = None
    switched: bool = False


VALID = {"name": "x", "shape": {"width": 3}, "color": "red", "sizes": [1, 2]}
VALID |= {"rows": {"a": 1}, "ranges": [1, 2.5], "entry": {"count": 1}}


def test_values_become_the_types_of_their_fields():
    found = from_json(Record, VALID)
    assert found.shape == Shape(width=3) and found.color is Color.RED
    assert (found.sizes, found.ranges, found.kind) == ((1, 2), [1, 2.5], "a")
    assert found.entry == VALID["entry"]
    assert from_json(Entry, {"count": 1, "more": [None]}) == {"count": 1, "more": [None]}
    assert from_json(Record, VALID | {"shape": None}).shape is None
    assert from_json(dict[str, int], {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 7}, "name: expected a valid string, got 7"),
        ({"name": "\ud800"}, "the file: Invalid JSON: .*"),
        ({"shape": {"width": "3"}}, "shape.width: expected a valid integer, got '3'"),
        ({"shape": {"width": 3, "share": float("nan")}}, "shape.share: expected a finite number, got nan"),
        ({"shape": {"width": 3, "x": 1}}, "shape.x: expected no such name, got one"),
        ({"color": "blue"}, "color: expected 'red', got 'blue'"),
        ({"sizes": [1, None]}, r"sizes\[1\]: expected a valid integer, got None"),
        ({"kind": "c"}, "kind: expected 'a' or 'b', got 'c'"),
        ({"entry": {}}, "entry.count: expected it, got none"),
    ],
)
def test_other_values_are_refused_by_their_place(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        from_json(Record, json.loads(json.dumps(VALID | change)))
