"""JSON of a file in the types that it is expected to have."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import pytest
from typing_extensions import TypedDict

from raycase.io.json_values import from_json


class Color(StrEnum):
    RED = "red"


class Entry(TypedDict):
    count: int


@dataclass(frozen=True, kw_only=True)
class Record:
    color: Color
    sizes: tuple[int, ...]
    letter: Literal["a", "b"] = "a"
    share: float = 0.5
    entry: Entry


VALID = {"color": "red", "sizes": [1, 2], "share": 1, "entry": {"count": 1}}


def test_values_become_the_types_of_their_fields():
    assert from_json(Record, VALID) == Record(color=Color.RED, sizes=(1, 2), share=1.0, entry={"count": 1})
    assert from_json(Entry, {"count": 1, "more": [None]}) == {"count": 1, "more": [None]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": "\ud800"}, "the file: Invalid JSON: .*"),
        ({"share": float("nan")}, "share: expected a finite number, got nan"),
        ({"color": "blue"}, "color: expected 'red', got 'blue'"),
        ({"sizes": [1, None]}, r"sizes\[1\]: expected a valid integer, got None"),
        ({"letter": "c"}, "letter: expected 'a' or 'b', got 'c'"),
        ({"entry": {}}, "entry.count: expected it, got none"),
        ({"x": 1}, "x: expected no such name, got one"),
    ],
)
def test_other_values_are_refused_by_their_place(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        from_json(Record, json.loads(json.dumps(VALID | change)))
