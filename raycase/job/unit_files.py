"""The files of a unit: the rejected rows first, then the vectors; and its line of the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from raycase.errors import WorkError, first_line
from raycase.io.json_values import from_json, loads
from raycase.io.storage import Location
from raycase.job.listing import UnitFile
from raycase.job.output import Output

STATS = b"raycase"  # key of a unit's counts in the metadata of its file


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


LINES_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        *((n, pa.int64()) for n in ("file", "start", "rows_out", "rows_rejected", "rows_truncated")),
        *((n, pa.int64()) for n in ("pairs", "distinct_pairs", "bytes")),
        *((n, pa.string()) for n in ("sha256", "rejected_sha256", "reasons")),  # reasons: JSON
    ]
)


def lines_table(lines: Iterable[UnitLine]) -> pa.Table:
    """Lines as a table of `LINES_SCHEMA`."""
    rows = [vars(line) | {"reasons": json.dumps(line.reasons, ensure_ascii=False)} for line in lines]
    return pa.Table.from_pylist(rows, schema=LINES_SCHEMA)


class DamagedError(WorkError):
    """A file of an output is missing, or other than when it was written."""


class UnitStats(TypedDict):
    """The counts in the metadata of a unit's file."""

    rows_truncated: int
    distinct_pairs: int
    reasons: dict[str, int]


def line_of(
    name: str, unit: UnitFile, data: bytes, rejected: bytes | None, *, pairs: int, stats: UnitStats
) -> UnitLine:
    """The line of a unit whose files have these bytes."""
    return UnitLine(
        name=name,
        **asdict(unit),
        rows_truncated=stats["rows_truncated"],
        pairs=pairs,
        distinct_pairs=stats["distinct_pairs"],
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        rejected_sha256=None if rejected is None else hashlib.sha256(rejected).hexdigest(),
        reasons=stats["reasons"],
    )


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


def parsed(data: bytes, uri: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, with those of these columns that it has, or all. Raises DamagedError where it is none."""
    try:
        return pq.read_table(pa.BufferReader(data), columns=columns, page_checksum_verification=True)
    except (ValueError, OSError, pa.ArrowException) as error:  # OSError: of Arrow, no store is asked here
        raise DamagedError(f"{uri}: expected the rows of a unit, got: {first_line(error)}") from error


def read_line(output: Output, name: str) -> UnitLine:
    """The manifest's line of a unit that an earlier run wrote, made from its files. Raises WorkError."""
    named = UnitFile.parse(name)
    assert named is not None
    data = (output.units / name).read()
    rejected = (output.rejected / name).read() if named[1].rows_rejected else None
    table = parsed(data, (output.units / name).uri)
    stats = from_json(UnitStats, loads(table.schema.metadata[STATS]))
    return line_of(name, named[1], data, rejected, pairs=len(table), stats=stats)
