"""The units of a job: what its steps hand to each other, and how their files are written and read back.

A step's result is on Ray ONE row of an Arrow table, with a unit's tables as bytes: Ray Data splits large blocks by rows
and calls nothing for empty ones, so a unit of many rows could arrive in parts. No torch is imported.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.encoder.token_batch import Prepared, Work
from raycase.errors import RequestError, WorkError, expecting, named
from raycase.io.json_values import from_json, loads
from raycase.io.schema import ROW_OF_PAIR, parquet_bytes, parquet_table
from raycase.io.source import InputFile, Span
from raycase.io.storage import Location
from raycase.job.output import Output, RowRange, UnitFile
from raycase.job.results import EMBEDDINGS

STATS = b"raycase"  # key of a unit's counts in the metadata of its file


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


# --------------------------------------------------------------------------------------------------------- written


def write_encoded(unit: EncodedUnit, *, output: str, fingerprint8: str, results: str = EMBEDDINGS) -> WrittenUnit:
    """The write step: a unit's rejected rows, then its vectors in the folder `results`, each file at once."""
    where = f"input file {unit.file}, from row {unit.start}"
    with naming(f"writing {where}, to {output}"):
        to, rows_out = Output(output, results), len(pc.unique(unit.table[ROW_OF_PAIR]))
        file = UnitFile(file=unit.file, start=unit.start, rows_out=rows_out, rows_rejected=len(unit.rejected))
        if rows_out + len(unit.rejected) != unit.rows_in:
            raise WorkError(f"{where}: {unit.rows_in} rows in, {rows_out + len(unit.rejected)} out and rejected")
        stats = {  # the counts of its line that its rows do not show
            "rows_truncated": unit.rows_truncated,
            "distinct_pairs": unit.distinct_pairs,
            "reasons": dict(sorted(Counter(unit.rejected["reason"].to_pylist()).items())),
        }
        name = file.name(fingerprint8)
        rejected = parquet_bytes(unit.rejected) if len(unit.rejected) else None
        if rejected is not None:
            (to.rejected / name).put(rejected)
        data = parquet_bytes(unit.table.drop_columns([ROW_OF_PAIR]).replace_schema_metadata({STATS: json.dumps(stats)}))
        (to.units / name).put(data)
    return WrittenUnit(line=_line(name, data, rejected), work=unit.work, began=unit.began, ended=time.time())


def write_arrow(unit: pa.Table, **to: str) -> pa.Table:
    """`write_encoded`, in a task of Ray: it stands here so that no writer imports torch."""
    return write_encoded(EncodedUnit.from_arrow(unit), **to).to_arrow()


# ------------------------------------------------------------------------------------------------------- read back


class DamagedError(WorkError):
    """A file of an output is missing, or other than when it was written."""


def read_checked(file: Location, sha256: str) -> bytes:
    """The bytes of a file. Raises DamagedError where they are not those of this checksum."""
    name = "/".join(file.path.split("/")[-2:])
    try:
        data = file.read()
    except FileNotFoundError as error:
        raise DamagedError(f"{name}: missing") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedError(f"{name}: checksum differs")
    return data


def parsed(data: bytes | BinaryIO, uri: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, with those of these columns that it has, or all. Raises DamagedError where it is none."""
    errors = (ValueError, OSError, pa.ArrowException)  # OSError: of Arrow, of bytes no store is asked
    with expecting(f"{uri}: expected the rows of a unit", *errors, raises=DamagedError):
        return parquet_table(data, columns)


def read_line(output: Output, name: str) -> UnitLine:
    """The manifest's line of a unit that an earlier run wrote, made from its files. Raises WorkError."""
    unit, uri, rejected = UnitFile.parse(name), (output.units / name).uri, None
    wanted, advice = f"expected {uri} and its rejected rows", "; remove it and run the same command again"
    with expecting(wanted, DamagedError, FileNotFoundError, advice=advice, raises=WorkError):
        data = (output.units / name).read()
        parsed(data, uri)
        if unit.rows_rejected:
            rejected = (output.rejected / name).read()
            if (rows := len(parsed(rejected, (output.rejected / name).uri))) != unit.rows_rejected:
                raise DamagedError(f"{rows} rows in rejected/{name}")
    return _line(name, data, rejected)


def _line(name: str, data: bytes, rejected: bytes | None) -> UnitLine:
    """The line of a unit whose files have these bytes."""
    written = pq.read_metadata(pa.BufferReader(data))
    of_files = {
        "name": name,
        "pairs": written.num_rows,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "rejected_sha256": None if rejected is None else hashlib.sha256(rejected).hexdigest(),
    }
    return from_json(UnitLine, loads(written.metadata[STATS]) | vars(UnitFile.parse(name)) | of_files)
