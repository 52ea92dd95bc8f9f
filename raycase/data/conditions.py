"""The conditions of a job: strings, or a file of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.data.schema import CONDITION
from raycase.data.storage import Location, locate
from raycase.data.textfiles import RECORD_BYTES
from raycase.errors import RequestError, first_line, is_words

MOST_CHARACTERS = 2**17  # of a field of a .csv file


def read_conditions(values: Sequence[str]) -> list[str]:
    """The conditions of a job: strings, or one file (`.txt`, one per line; `.parquet` or `.csv`, column `condition`).

    Raises RequestError for an empty or repeated condition, several files, and a file that is missing or has none.
    """
    conditions = list(values)
    file = conditions_file(values)
    if file is not None:
        if len(values) > 1:
            raise RequestError(
                f"--conditions: expected conditions or one file of them, got {len(values)} values with {file} among "
                "them; put them into one file"
            )
        conditions = _conditions_in(locate(values[0]))
        if not conditions:
            raise RequestError(f"--conditions: expected at least one condition in {values[0]}, got none")
    seen: dict[str, int] = {}
    for i, condition in enumerate(conditions):
        if not is_words(condition):
            raise RequestError(f"--conditions: expected words in every condition, got {condition!r} at index {i}")
        if condition.strip() in seen:
            raise RequestError(f"--conditions: expected each condition once, got {condition!r} twice")
        seen[condition.strip()] = i
    return list(seen)


def conditions_file(values: Sequence[str]) -> str | None:
    """The file among the values; None where they are conditions."""
    return next((value for value in values if value.lower().endswith((".txt", ".parquet", ".csv"))), None)


def _conditions_in(source: Location) -> list[str]:
    """The conditions in a file, unchecked. Raises RequestError where it cannot be read or lacks the column."""
    try:
        data, name = source.read(), source.path.lower()
        if name.endswith(".txt"):
            return [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
        if name.endswith(".csv"):
            csv.field_size_limit(RECORD_BYTES)  # the process's: of the files of rows
            text = io.StringIO(data.decode("utf-8-sig"), newline="")
            rows = [row for row in csv.reader(text, strict=True) if row]
            if any(len(value) > MOST_CHARACTERS for row in rows for value in row):
                raise ValueError(f"field larger than {MOST_CHARACTERS:,} characters")
            names: Sequence[str] = rows[0] if rows else ()
            columns: Sequence[Sequence[str]] = [*zip(*rows[1:], strict=True)] if rows[1:] else [()] * len(names)
            if len(columns) != len(names):
                raise ValueError(f"{len(columns)} values in a line of {len(names)} columns")
        else:
            table = pq.ParquetFile(pa.BufferReader(data)).read()
            names, columns = table.column_names, [column.to_pylist() for column in table.columns]
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise RequestError(
            f"--conditions: expected a readable file at {source.uri}, got: {first_line(error)}"
        ) from error
    places = [i for i, name in enumerate(names) if name == CONDITION or len(names) == 1]
    if len(places) != 1:
        got = ", ".join(names) or "none"
        raise RequestError(f"--conditions: expected one column {CONDITION!r} in {source.uri}, got {got}")
    return list(columns[places[0]])
