"""Labels that people gave some rows, or texts, under a condition: a table with the columns `id` or `text`, and `label`.

An empty label means that the text does not state the condition, and `?` that nobody has answered yet. Two more columns
may stand in the files that `raycase classify --ask` writes: `drawn` marks rows that were drawn at random (`random`), by
which a promise is checked, and `round` has the number of the file.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from raycase.errors import MOST_LABEL, RequestError, check_problems, is_utf8, normal_words, note, visible
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.schema import ID, TEXT
from raycase.io.source import InputFile

LABEL, DRAWN, RANDOM, ROUND, OPEN = "label", "drawn", "random", "round", "?"
MOST_LABELS = 1000


@dataclass(frozen=True, kw_only=True)
class RowLabels:
    """N answers. label_of: by the column that names a row, `id` or `text`, and its name; None where the text states
    nothing. drawn: (N,) bool, at random wherever the row stands; rounds: the largest number of one, or 0."""

    uri: str
    label_of: dict[tuple[str, str], str | None]
    drawn: np.ndarray
    rounds: int

    @property
    def labels(self) -> list[str | None]:
        """The label of each."""
        return [*self.label_of.values()]

    @property
    def names(self) -> list[str]:
        """The labels, in order."""
        return sorted({label for label in self.labels if label is not None})


NO_ANSWERS = RowLabels(uri="", label_of={}, drawn=np.empty(0, bool), rounds=0)


def read_row_labels(uris: str | Sequence[str], flag: str = "--answers") -> RowLabels:
    """Read answers: CSV, JSONL or Parquet, by `id` where a file has it. Blanks at the ends of a label, and how its
    letters are composed, do not count. Raises RequestError for files without answers, a row that has two labels, and
    too many labels."""
    files = [file for uri in ([uris] if isinstance(uris, str) else uris) for file in find_input(uri, flag)]
    uri = ", ".join(file.uri for file in files)
    label_of: dict[tuple[str, str], str | None] = {}
    spelled: defaultdict[str, set[str]] = defaultdict(set)
    drawn: dict[tuple[str, str], bool] = {}
    rounds, left_open = 0, 0
    for where, column, name, value, mark, number in chain.from_iterable(_read(file, flag) for file in files):
        if value == OPEN:
            left_open += 1
            continue
        label = normal_words(value) or None
        if label is not None:
            spelled[label].add(value)
        if (other := label_of.setdefault((column, name), label)) != label:
            raise _two_labels(where, name, other, label)
        drawn[column, name] = drawn.get((column, name), True) and mark == RANDOM and column == ID
        rounds = max(rounds, number)
    none_there = f"{flag}: expected rows with a label in {uri}, got none"
    got = f"{flag}: expected at most {MOST_LABELS:,} labels in {uri}, got {len(spelled):,}"
    check_problems({none_there: not spelled, got: len(spelled) > MOST_LABELS})
    for ways in [ways for ways in spelled.values() if len(ways) > 1]:
        note(f"{flag}: {' and '.join(map(repr, sorted(ways)))} are read as one label")
    if left_open:
        note(f"{flag}: {left_open:,} rows of {uri} have no answer yet ({OPEN})")
    return RowLabels(uri=uri, label_of=label_of, drawn=np.array([*drawn.values()], bool), rounds=rounds)


def csv_bytes(table: pa.Table) -> bytes:
    """A table as a CSV file."""
    stream = pa.BufferOutputStream()
    csv.write_csv(table, stream)
    return stream.getvalue().to_pybytes()


def read_asked(uri: str, flag: str = "--ask") -> dict[str, str]:
    """What stands as label in an ask file, by id."""
    read = (each for file in find_input(uri, flag) for each in _read(file, flag))
    return {name: normal_words(value) for _, _, name, value, _, _ in read}


def _two_labels(where: str, name: str, *labels: str | None) -> RequestError:
    several = " and ".join(repr(each) if each else "none" for each in labels)
    return RequestError(f"{where}: expected one label of {name!r:.80}, got {several}")


def _read(file: InputFile, flag: str) -> Iterator[tuple[str, str, str, str, Any, int]]:
    """How a message names each row of a file; the column that names the row, its name and label, `drawn` and the number
    of the round."""
    there = peek(file).names
    column = ID if ID in there else TEXT
    columns = read_columns(file, [column, LABEL, *(name for name in (DRAWN, ROUND) if name in there)], flag)
    none = [None] * len(columns[LABEL])
    every = zip(columns[column], columns[LABEL], columns.get(DRAWN, none), columns.get(ROUND, none), strict=True)
    for row, (of, value, mark, number) in enumerate(every):
        where, name = f"{flag}: {file.uri}, row {row}", "" if of is None else str(of).strip()
        label, digits = "" if value is None else value, re.fullmatch(r"([0-9]{1,6})(\.0*)?|", str(number or "").strip())
        if not (isinstance(label, str) and is_utf8(label)):
            raise RequestError(f"{where}: expected a text as label, or none, got {visible(value, MOST_LABEL)}")
        check_problems(
            {
                f"{where}: expected words in {column!r}, got none; fix or remove the row": not name,
                f"{where}: expected a number in {ROUND!r}, got {visible(number, MOST_LABEL)}": not digits,
                f"{where}: expected a number in {ROUND!r} beside {RANDOM!r}, got none": mark == RANDOM and not number,
            }
        )
        yield where, column, name, OPEN if label.strip() == OPEN else label, mark, int(digits[1] or 0) if digits else 0


def find_rows(answers: RowLabels, names_of: Callable[[str], Sequence[Any]], flag: str = "--answers") -> list[list[int]]:
    """The places of all rows that each answer names, by what the rows have in a column. Raises RequestError for an
    answer without a row, and for a row with two labels."""
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for column in {column for column, _ in answers.label_of}:
        for i, name in enumerate(names_of(column)):
            places[column, str(name).strip()].append(i)
    if missing := [row for row in answers.label_of if row not in places]:
        more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise RequestError(
            f"{flag}: expected the {missing[0][0]} of a row that is looked at in each answer of {answers.uri}, got "
            f"{missing[0][1]!r:.80}{more}, which is not among them"
        )
    of_row: dict[int, str | None] = {}
    for named, label in answers.label_of.items():
        for i in places[named]:
            if (other := of_row.setdefault(i, label)) != label:
                raise _two_labels(f"{flag}: {answers.uri}", named[1], other, label)
    return [places[named] for named in answers.label_of]
