"""What the steps of a job hand to each other, each on Ray ONE row of an Arrow table.

A unit's own tables travel inside that row as Arrow bytes: Ray Data splits large blocks by rows and calls nothing for
empty ones, so a unit of many rows could arrive in parts or not at all.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import pyarrow as pa

from raycase.encoder.token_batch import Prepared, Work
from raycase.errors import RequestError, WorkError, named
from raycase.io.json_values import from_json
from raycase.io.source import InputFile, Span

RowRange = tuple[int, int]  # rows [start, end) of a file


@dataclass(frozen=True, kw_only=True)
class PlannedSpan:
    """A span, the files of which it is, and the rows of its units that are to be read."""

    files: tuple[InputFile, ...]  # one, or that of each of the span's own
    span: Span
    units: tuple[RowRange, ...]


def spans_to_arrow(spans: Iterable[PlannedSpan]) -> pa.Table:
    """The spans that one task of Ray reads."""
    return pa.table({"spans": [json.dumps([asdict(span) for span in spans])]})


def spans_from_arrow(row: pa.Table) -> list[PlannedSpan]:
    """The opposite of `spans_to_arrow`."""
    return [from_json(PlannedSpan, span) for span in json.loads(row["spans"][0].as_py())]


class ArrowRow:
    """A dataclass that travels as a row of an Arrow table, with a column for each field."""

    def to_arrow(self) -> pa.Table:
        return pa.table({field.name: _array(getattr(self, field.name)) for field in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def from_arrow(cls, row: pa.Table) -> Self:
        assert len(row) == 1, "expected a unit to stay one row"
        return cls(**{name: _value(name, row[name][0]) for name in row.column_names})


@dataclass(frozen=True, kw_only=True)
class ReadUnit(ArrowRow):
    """A unit that was read: `rows` as `raycase.io.reader` gives them, `rejected` of `REJECTED_SCHEMA`."""

    uri: str  # of the input file, the first of several
    file: int  # its number in the job
    start: int  # first row
    rows_in: int
    rows: pa.Table
    rejected: pa.Table
    prepared: Prepared | None  # None of stored tokens, and where the tokenizer fails: the encode step finds the rows


@dataclass(frozen=True, kw_only=True)
class EncodedUnit(ArrowRow):
    """A unit with its vectors: `table` is the output with the column `ROW_OF_PAIR`."""

    file: int
    start: int
    rows_in: int
    table: pa.Table
    rejected: pa.Table
    distinct_pairs: int
    rows_truncated: int
    work: Work
    began: float  # seconds since the epoch


@dataclass(frozen=True, kw_only=True)
class UnitLine:
    """One line of manifest_files.parquet: a finished unit, its counts and checksums."""

    name: str
    file: int
    start: int
    rows_out: int
    rows_rejected: int
    rows_truncated: int
    pairs: int
    distinct_pairs: int
    bytes: int
    sha256: str
    rejected_sha256: str | None
    reasons: dict[str, int]  # why rows were rejected -> how many


@dataclass(frozen=True, kw_only=True)
class WrittenUnit(ArrowRow):
    """A finished unit: its line of the manifest, and what this run spent on it."""

    line: UnitLine
    work: Work
    began: float  # seconds since the epoch
    ended: float


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turn an error into a WorkError that names the unit; RequestError and WorkError pass, for they name theirs."""
    try:
        yield
    except (RequestError, WorkError):
        raise
    except Exception as error:
        raise WorkError(f"{what}: {named(error)}; run the same command again to resume") from error


def _array(value: Any) -> pa.Array:
    match value:
        case pa.Table():  # large_binary, since a unit may be larger than 2 GiB
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_table(value)
            return pa.array([memoryview(sink.getvalue())], pa.large_binary())
        case Prepared() | None:  # one type, whether there is one or not
            return pa.array([value and value.to_bytes()], pa.large_binary())
        case UnitLine() | Work():
            return pa.array([json.dumps(asdict(value))])
    return pa.array([value])


def _value(field: str, value: pa.Scalar) -> Any:
    """The opposite of `_array`."""
    match field:
        case "rows" | "table" | "rejected":
            return pa.ipc.open_stream(value.as_buffer()).read_all()  # without a copy
        case "prepared" if value.is_valid:
            return Prepared.from_bytes(value.as_py())
        case "line" | "work":
            return {"line": UnitLine, "work": Work}[field](**json.loads(value.as_py()))
    return value.as_py()
