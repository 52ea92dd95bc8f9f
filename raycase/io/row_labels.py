"""Labels that people gave some rows, or texts, under a condition: a table with the columns `id` or `text`, and `label`.

An empty label means that the text does not state the condition, and `?` that nobody has answered yet. Two more columns
may stand in the files that `raycase classify --ask` writes: `drawn` marks rows that were drawn at random (`random`), by
which a promise is checked, and `round` has the number of the file.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import csv

from raycase.errors import MOST_LABEL, RequestError, check_problems, is_utf8, normal_words, note, visible
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.schema import ID, TEXT

LABEL, DRAWN, RANDOM, ROUND, OPEN = "label", "drawn", "random", "round", "?"
MOST_LABELS, FLAG = 1000, "--answers"
NUMBER = re.compile(r"([0-9]{1,6})(\.0*)?|")
RowName = tuple[str, str]  # the column that names a row, `id` or `text`, and its name there


@dataclass(frozen=True, kw_only=True)
class RowLabels:
    """Answers. label_of: by the column that names a row, `id` or `text`, and its name; None where the text states
    nothing. drawn: the rows that are drawn at random wherever they stand; rounds: the largest number of one, or 0."""

    uri: str = ""
    label_of: dict[RowName, str | None] = field(default_factory=dict)
    drawn: Set[RowName] = frozenset()
    rounds: int = 0

    @property
    def labels(self) -> list[str | None]:
        """The label of each."""
        return [*self.label_of.values()]

    @property
    def names(self) -> list[str]:
        """The labels, in order."""
        return sorted({label for label in self.labels if label is not None})


def read_row_labels(uris: Sequence[str]) -> RowLabels:
    """Read answers: CSV, JSONL or Parquet, by `id` where a file has it. Blanks at the ends of a label, and how its
    letters are composed, do not count. Raises RequestError for files without answers, a row that has two labels, and
    too many labels."""
    read, uri = [*_read(uris, FLAG)], ", ".join(uris)
    given = [each for each in read if each[2] != OPEN]
    label_of: dict[RowName, str | None] = {}
    spelled: defaultdict[str, set[str]] = defaultdict(set)
    for where, row, value, _, _ in given:
        if label := normal_words(value) or None:
            spelled[label].add(value)
        if (other := label_of.setdefault(row, label)) != label:
            raise _two_labels(where, row, other, label)
    none_there = f"{FLAG}: expected rows with a label in {uri}, got none"
    got = f"{FLAG}: expected at most {MOST_LABELS:,} labels in {uri}, got {len(spelled):,}"
    check_problems({none_there: not spelled, got: len(spelled) > MOST_LABELS})
    for ways in [ways for ways in spelled.values() if len(ways) > 1]:
        note(f"{FLAG}: {' and '.join(map(repr, sorted(ways)))} are read as one label")
    if left_open := len(read) - len(given):
        note(f"{FLAG}: {left_open:,} rows of {uri} have no answer yet ({OPEN})")
    drawn, picked = ({row for _, row, _, is_drawn, _ in given if is_drawn == wanted} for wanted in (True, False))
    return RowLabels(uri=uri, label_of=label_of, drawn=drawn - picked, rounds=max(number for *_, number in given))


def read_asked(uri: str) -> dict[str, str]:
    """What stands as label in an ask file, by id."""
    return {name: normal_words(value) for _, (_, name), value, _, _ in _read([uri], "--ask")}


def csv_bytes(table: pa.Table) -> bytes:
    """A table as a CSV file."""
    stream = pa.BufferOutputStream()
    csv.write_csv(table, stream)
    return stream.getvalue().to_pybytes()


def _two_labels(where: str, row: RowName, *labels: str | None) -> RequestError:
    several = " and ".join(repr(each) if each else "none" for each in labels)
    return RequestError(f"{where}: expected one label of {row[1]!r:.80}, got {several}")


def _read(uris: Sequence[str], flag: str) -> Iterator[tuple[str, RowName, str, bool, int]]:
    """How a message names each row of files; the column that names the row, and its name there; its label; whether it
    was drawn at random; the number of the round."""
    for file in [file for uri in uris for file in find_input(uri, flag)]:
        there = peek(file).names
        column = ID if ID in there else TEXT
        columns = read_columns(file, [column, LABEL, *(name for name in (DRAWN, ROUND) if name in there)], flag)
        none = [None] * len(columns[LABEL])
        every = zip(columns[column], columns[LABEL], columns.get(DRAWN, none), columns.get(ROUND, none), strict=True)
        for i, (of, value, mark, number) in enumerate(every):
            where, name = f"{flag}: {file.uri}, row {i}", "" if of is None else str(of).strip()
            label, digits = "" if value is None else value, NUMBER.fullmatch(str(number or "").strip())
            needs_round = mark == RANDOM and not number
            problems = {
                f"{where}: expected a text as label, or none, got {visible(value, MOST_LABEL)}": (
                    not isinstance(label, str) or not is_utf8(label)
                ),
                f"{where}: expected words in {column!r}, got none; fix or remove the row": not name,
                f"{where}: expected a number in {ROUND!r}, got {visible(number, MOST_LABEL)}": not digits,
                f"{where}: expected a number in {ROUND!r} beside {RANDOM!r}, got none": needs_round,
            }
            check_problems(problems)
            label = OPEN if label.strip() == OPEN else label
            yield where, (column, name), label, mark == RANDOM and column == ID, int((digits and digits[1]) or 0)


def find_rows(answers: RowLabels, names_of: Callable[[str], Sequence[Any]]) -> list[list[int]]:
    """The places of all rows that each answer names, by what the rows have in a column. Raises RequestError for an
    answer without a row, and for a row with two labels."""
    places: defaultdict[RowName, list[int]] = defaultdict(list)
    for column in {column for column, _ in answers.label_of}:
        for i, name in enumerate(names_of(column)):
            places[column, str(name).strip()].append(i)
    if missing := [row for row in answers.label_of if row not in places]:
        more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise RequestError(
            f"{FLAG}: expected the {missing[0][0]} of a row that is looked at in each answer of {answers.uri}, got "
            f"{missing[0][1]!r:.80}{more}, which is not among them"
        )
    of_row: dict[int, str | None] = {}
    for row, label in answers.label_of.items():
        for i in places[row]:
            if (other := of_row.setdefault(i, label)) != label:
                raise _two_labels(f"{FLAG}: {answers.uri}", row, other, label)
    return [places[row] for row in answers.label_of]
