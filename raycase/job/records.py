"""What the steps of a job hand to each other, each on Ray ONE row of an Arrow table; and the step that writes.

A unit's own tables travel inside that row as Arrow bytes: Ray Data splits large blocks by rows and calls nothing for
empty ones, so a unit of many rows could arrive in parts or not at all.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.prepared import Prepared
from raycase.encoder.token_batch import Work
from raycase.errors import RequestError, WorkError, named
from raycase.io.json_values import from_json
from raycase.io.schema import ROW_OF_PAIR, parquet_bytes
from raycase.io.source import InputFile, Span
from raycase.job.listing import UnitFile
from raycase.job.output import EMBEDDINGS, output_at
from raycase.job.unit_files import STATS, UnitLine, UnitStats, line_of

Interval = tuple[int, int]  # rows [start, end) of a file
Piece = tuple[Span, list[Interval]]  # a span, and its units that are left to do


@dataclass(frozen=True, kw_only=True)
class SpanUnits:
    """A span, the files of which it is, and the row intervals of its units that are to be read."""

    files: tuple[InputFile, ...]  # one, or that of each part of the span
    span: Span
    units: tuple[Interval, ...]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """The spans of one task of the read step."""

    spans: tuple[SpanUnits, ...]

    @classmethod
    def of(cls, files: Sequence[InputFile], pieces: Sequence[Piece]) -> ReadTask:
        return cls(
            spans=tuple(
                SpanUnits(files=tuple(files[part.file] for part in s.parts or (s,)), span=s, units=tuple(units))
                for s, units in pieces
            )
        )

    def to_arrow(self) -> pa.Table:
        return pa.table({"task": [json.dumps(asdict(self))]})

    @classmethod
    def from_arrow(cls, row: pa.Table) -> ReadTask:
        return from_json(ReadTask, json.loads(row["task"][0].as_py()))


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
    prepared: Prepared


@dataclass(frozen=True, kw_only=True)
class EncodeStats:
    """What encoding a unit took: times in seconds."""

    work: Work
    began: float  # since the epoch
    seconds: float


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
    stats: EncodeStats


@dataclass(frozen=True, kw_only=True)
class WrittenUnit(ArrowRow):
    """A finished unit: its line of the manifest, and what this run spent on it."""

    line: UnitLine
    stats: EncodeStats
    ended: float  # seconds since the epoch


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turn an error into a WorkError that names the unit; RequestError and WorkError pass, for they name theirs."""
    try:
        yield
    except (RequestError, WorkError):
        raise
    except Exception as error:
        message = f"{what}: {named(error)}"
        raise WorkError(f"{message}; run the same command again to resume") from error


def write_encoded(unit: EncodedUnit, *, output: str, print8: str, results: str = EMBEDDINGS) -> WrittenUnit:
    """The write step: the files of a unit, in the folder `results` of an output. print8: of the job's fingerprint.

    The rejected rows are put first, the vectors last, each file at once. Raises WorkError unless rows in = rows out +
    rows rejected.
    """
    where = f"input file {unit.file}, from row {unit.start}"
    with naming(f"writing {where}, to {output}"):
        to, rows_out = output_at(output, results), len(pc.unique(unit.table[ROW_OF_PAIR]))
        file = UnitFile(file=unit.file, start=unit.start, rows_out=rows_out, rows_rejected=len(unit.rejected))
        if file.rows != unit.rows_in:
            raise WorkError(f"{where}: {unit.rows_in} rows in, {file.rows} out and rejected")
        stats: UnitStats = {
            "rows_truncated": unit.rows_truncated,
            "distinct_pairs": unit.distinct_pairs,
            "reasons": dict(sorted(Counter(unit.rejected["reason"].to_pylist()).items())),
        }
        name = file.name(print8)
        rejected = parquet_bytes(unit.rejected) if len(unit.rejected) else None
        if rejected is not None:
            (to.rejected / name).put(rejected)
        table = unit.table.drop_columns([ROW_OF_PAIR]).replace_schema_metadata({STATS: json.dumps(stats)})
        data = parquet_bytes(table)
        (to.units / name).put(data)
        line = line_of(name, file, data, rejected, pairs=len(table), stats=stats)
    return WrittenUnit(line=line, stats=unit.stats, ended=time.time())


def write_row(unit: pa.Table, **to: str) -> pa.Table:
    """`write_encoded`, in a task of Ray: it stands here so that no writer imports torch."""
    return write_encoded(EncodedUnit.from_arrow(unit), **to).to_arrow()


def _array(value: Any) -> pa.Array:
    match value:
        case pa.Table():
            return _pack(value)
        case UnitLine():
            return pa.array([json.dumps(asdict(value))])
        case Prepared():
            return pa.array([value.to_bytes()], pa.large_binary())
        case EncodeStats():
            return pa.array([asdict(value)])
    return pa.array([value])


def _value(field: str, value: pa.Scalar) -> Any:
    """The opposite of `_array`."""
    match field:
        case "rows" | "table" | "rejected":
            return _unpack(value)
        case "line":
            return UnitLine(**json.loads(value.as_py()))
        case "prepared":
            return Prepared.from_bytes(value.as_py())
        case "stats":
            stats = value.as_py()
            return EncodeStats(**stats | {"work": Work(**stats["work"])})
    return value.as_py()


def _pack(table: pa.Table) -> pa.Array:
    """A table as one value; large_binary, since a unit may be larger than 2 GiB; copied once."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    offsets = pa.py_buffer(np.array([0, data.size], dtype=np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])


def _unpack(packed: pa.Scalar) -> pa.Table:
    """Without a copy."""
    return pa.ipc.open_stream(packed.as_buffer()).read_all()
