"""The conditions of a job: strings, or a file of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.data.schema import CONDITION
from raycase.data.storage import Location, locate
from raycase.errors import RequestError, first_line


def read_conditions(values: Sequence[str]) -> list[str]:
    """The conditions of a job: strings, or one file (`.txt`, one per line; `.parquet` or `.csv`, column `condition`).

    Raises RequestError for an empty or repeated condition, and a file that is missing or has none.
    """
    conditions = list(values)
    if len(values) == 1 and values[0].endswith((".txt", ".parquet", ".csv")):
        conditions = _conditions_in(locate(values[0]))
        if not conditions:
            raise RequestError(f"--conditions: expected at least one condition in {values[0]}, got none")
    seen: dict[str, int] = {}
    for i, condition in enumerate(conditions):
        if not isinstance(condition, str) or not condition.strip():
            raise RequestError(f"--conditions: expected words in every condition, got {condition!r} at index {i}")
        if condition.strip() in seen:
            raise RequestError(f"--conditions: expected each condition once, got {condition!r} twice")
        seen[condition.strip()] = i
    return list(seen)


def _conditions_in(source: Location) -> list[str]:
    """The conditions in a file, unchecked. Raises RequestError where it cannot be read or lacks the column."""
    try:
        data = source.read()
        if source.path.endswith(".txt"):
            return [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
        if source.path.endswith(".csv"):
            rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")) if row]
            columns = dict.fromkeys(rows[0] if rows else (), ())
            if rows[1:]:
                columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
        else:
            columns = pq.read_table(pa.BufferReader(data)).to_pydict()
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise RequestError(
            f"--conditions: expected a readable file at {source.uri}, got: {first_line(error)}"
        ) from error
    name = CONDITION if CONDITION in columns or len(columns) != 1 else next(iter(columns))
    if name not in columns:
        names = ", ".join(columns) or "none"
        raise RequestError(f"--conditions: expected a column {CONDITION!r} in {source.uri}, got {names}")
    return list(columns[name])
