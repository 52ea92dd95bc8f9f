"""Labels that people gave some rows, or texts, under a condition: a table with the columns `id` or `text`, and `label`.

An empty label means that the text does not state the condition, and `?` that nobody has answered yet. A column `drawn`
marks rows that were drawn at random (`random`), by which a promise is checked.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.errors import MOST_LABEL, RequestError, check_problems, is_utf8, normal_words, note, visible
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.schema import ID, TEXT

LABEL, DRAWN, RANDOM, OPEN = "label", "drawn", "random", "?"
MOST_LABELS = 1000


@dataclass(frozen=True, kw_only=True)
class RowLabels:
    """N answers. column: `id` or `text`, by which rows are named; labels: None where the text does not state the
    condition; drawn: (N,) bool, at random."""

    uri: str
    column: str
    rows: list[str]
    labels: list[str | None]
    drawn: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        """The labels, in order."""
        return sorted({label for label in self.labels if label is not None})


def read_row_labels(uri: str, flag: str = "--answers") -> RowLabels:
    """Read answers: CSV, JSONL or Parquet. Blanks at the ends of a label, and how its letters are composed, do not
    count. Raises RequestError for a file without answers, a row that has two labels, and too many labels."""
    label_of: dict[str, str | None] = {}
    spelled: defaultdict[str, set[str]] = defaultdict(set)
    drawn: dict[str, bool] = {}
    column, left_open = "", 0
    for file in find_input(uri, flag):
        names = peek(file).names
        column = column or (ID if ID in names else TEXT)
        optional = [DRAWN] if DRAWN in names else []
        for row, (of, *values) in enumerate(
            zip(*read_columns(file, [column, LABEL, *optional], flag).values(), strict=True)
        ):
            where, name = f"{flag}: {file.uri}, row {row}", "" if of is None else str(of).strip()
            check_problems({f"{where}: expected words in {column!r}, got none; fix or remove the row": not name})
            if values[0] == OPEN:
                left_open += 1
                continue
            label = _label(values[0], where)
            if label is not None:
                spelled[label].add(str(values[0]))
            if label_of.setdefault(name, label) != label:
                several = " and ".join(repr(each) if each else "none" for each in (label_of[name], label))
                raise RequestError(f"{where}: expected one label of {name!r:.80}, got {several}")
            drawn[name] = drawn.get(name, False) or values[1:] == [RANDOM]
    got = f"{flag}: expected at most {MOST_LABELS:,} labels in {uri}, got {len(spelled):,}"
    check_problems(
        {f"{flag}: expected rows with a label in {uri}, got none": not spelled, got: len(spelled) > MOST_LABELS}
    )
    for ways in [ways for ways in spelled.values() if len(ways) > 1]:
        note(f"{flag}: {' and '.join(map(repr, sorted(ways)))} are read as one label")
    if left_open:
        note(f"{flag}: {left_open:,} rows of {uri} have no answer yet ({OPEN})")
    marks = np.array([drawn[name] for name in label_of], bool)
    return RowLabels(uri=uri, column=column, rows=[*label_of], labels=[*label_of.values()], drawn=marks)


def _label(value: Any, where: str) -> str | None:
    """A label in its normal form; None for an empty one."""
    if value is not None and not (isinstance(value, str) and is_utf8(value)):
        raise RequestError(f"{where}: expected a text as label, or none, got {visible(value, MOST_LABEL)}")
    return normal_words(value or "") or None


def find_rows(rows: Sequence[str], there: Sequence[Any], uri: str, column: str, flag: str = "--answers") -> np.ndarray:
    """The place among `there`, ids or texts, of each row that was named: (N,). Raises RequestError for one that is
    not there."""
    place: dict[str, int] = {}
    for i, name in enumerate(there):
        place.setdefault(str(name).strip(), i)
    if missing := [name for name in rows if name not in place]:
        more = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise RequestError(
            f"{flag}: expected a {column} of the rows that are looked at for each answer of {uri}, got "
            f"{missing[0]!r:.80}{more}, which is not among them"
        )
    return np.array([place[name] for name in rows], np.int64)
