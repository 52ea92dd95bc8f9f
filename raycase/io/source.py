"""A source: one file of an input, or a dataset, read in its format: one class, and an entry of `inputs.FORMATS`.

Here Parquet, of which a span is some row groups, and stored tokens, which are Parquet files of an output.
"""

from __future__ import annotations

import csv
import hashlib
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.errors import TO_UTF8, RequestError, WorkError
from raycase.io.schema import Columns, Reason, check_columns
from raycase.io.storage import Location, locate

MEND = "remove the file and run its job again"
FOOTER_BYTES = 2**16  # fetched from the end of a file; most footers are shorter
CODECS = {".gz": "gzip", ".zst": "zstd"}  # by the last ending of a name
ADVICE = {  # on what libraries say of a file
    "codec can't decode": TO_UTF8,
    "new-line character seen": "its lines end in CR alone, convert them: tr '\\r' '\\n'",
    "too much memory for decoding": "compress it again, without `zstd --long`",
}


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file of the input, or a dataset; `mark` changes when its content does (ETag, modification time, version)."""

    uri: str
    size: int
    mark: str


def ending_of(path: str) -> str:
    """What a name ends with, of whatever case, without case: of a compressed file as `.jsonl.gz`."""
    name, ending = posixpath.splitext(path.lower())
    return posixpath.splitext(name)[1] + ending if ending in CODECS else ending


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of a file, fetched at once and cut into units.

    `at` and `length`: where they are, in row groups of Parquet, bytes of JSONL, rows of Lance.
    """

    file: int
    start: int
    rows: int
    at: int
    length: int
    bytes: int  # to fetch, about
    spans: tuple[Span, ...] = ()  # of several small files; its rows are theirs, one after the other


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a text file that was read: its values, or the problem with it."""

    raw: str
    values: dict[str, Any] | None = None
    problem: Reason = Reason.UNPARSED
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class SpanRows:
    """Rows of a file: of a table with these numbers, (N,), or lines by number; beside a table, unparsed ones."""

    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    table: pa.Table | None = None
    lines: dict[int, Line] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers) + len(self.lines)

    def __add__(self, other: SpanRows) -> SpanRows:
        tables = [part.table for part in (self, other) if part.table is not None]
        return SpanRows(
            numbers=np.concatenate([self.numbers, other.numbers]),
            table=pa.concat_tables(tables) if tables else None,
            lines=self.lines | other.lines,
        )

    def within(self, start: float, end: float) -> SpanRows:
        """Rows [start, end) of the file."""
        first, last = np.searchsorted(self.numbers, [start, end]).tolist()
        return SpanRows(
            numbers=self.numbers[first:last],
            table=None if self.table is None else self.table.slice(first, last - first),
            lines={row: line for row, line in self.lines.items() if start <= row < end},
        )


ERRORS = (OSError, ValueError, csv.Error, pa.ArrowException)  # of what cannot be read


@contextmanager
def readable(
    location: Location,
    expected: str | None = None,
    errors: tuple[type[Exception], ...] = ERRORS,
    why: Callable[[Exception], str] | None = None,
) -> Iterator[Location]:
    """Turn an error into a RequestError that names the file. why: gives an error in one line. Default: as the store."""
    try:
        yield location
    except RequestError:
        raise
    except errors as error:
        reason = (why or location.why)(error)
        advice = next((f"; {what}" for words, what in ADVICE.items() if words in reason), "")
        wanted = expected or f"a readable {ending_of(location.path)[1:]} file"
        raise RequestError(f"{location.uri}: expected {wanted}, got: {reason}{advice}") from error


class Source(ABC):
    """A file, and how its format is read. `number`: of the file in the job.

    `reading` turns `ERRORS` into a RequestError that names the file; a format whose library raises others overrides it,
    as `Lance` does.
    """

    has_schema: ClassVar[bool] = True  # else each row has its own columns, and `schema` is that of the first rows

    def __init__(self, file: InputFile, number: int = 0) -> None:
        self.file, self.number = file, number
        self.location = locate(file.uri)
        self.codec = CODECS.get(posixpath.splitext(file.uri.lower())[1])  # of a text

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    @abstractmethod
    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        """Cut the rows into spans of at least `unit_rows` rows, except the last one, lazily.

        span_bytes: of a text, the fewest of a span. most_rows: of what can only be one span, counted no further.
        """

    @abstractmethod
    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        """The rows of a span, or all, in order and in bounded memory; of a table these columns, which are there."""

    def reading(self) -> AbstractContextManager[Location]:
        return readable(self.location)

    def span(self, start: int, rows: int, at: int, length: int, size: int) -> Span:
        return Span(file=self.number, start=start, rows=rows, at=at, length=length, bytes=size)

    def planned(self, table: pa.Table, span: Span | None) -> SpanRows:
        """The rows of a span that were read at once."""
        start = span.start if span else 0
        return SpanRows(numbers=np.arange(start, start + len(table)), table=table)


class Parquet(Source):
    """A Parquet file."""

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """Row groups and columns, read from the end of the file: one request, two where they are longer."""

        def end(count: int) -> bytes:
            return self.location.read(max(0, self.file.size - count), self.file.size)

        tail = end(FOOTER_BYTES)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        return pq.read_metadata(pa.BufferReader(tail if length <= len(tail) else end(length)))

    def open(self) -> Any:
        return self.location.open()

    @property
    def schema(self) -> pa.Schema:
        return self.footer.schema.to_arrow_schema()

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        check_columns(self.schema, columns, self.file.uri)
        start = rows = at = size = 0
        for group in range(self.footer.num_row_groups):
            rows += self.footer.row_group(group).num_rows
            size += self.footer.row_group(group).total_byte_size
            if rows >= unit_rows or (rows and group == self.footer.num_row_groups - 1):
                yield self.span(start, rows, at, group + 1 - at, size)
                start, at, rows, size = start + rows, group + 1, 0, 0

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        with self.open() as handle:
            parquet = pq.ParquetFile(handle, page_checksum_verification=True)
            groups = range(span.at, span.at + span.length) if span else range(parquet.num_row_groups)
            table = parquet.read_row_groups([*groups], columns=list(names))
        yield self.planned(table, span)


class TokenFile(Parquet):
    """A file of an output of `raycase embed --any-condition`, marked by its checksum in the manifest."""

    MARK = re.compile(r"sha256 ([0-9a-f]{64})")

    def open(self) -> Any:
        """Raises WorkError where it is not the file of this checksum."""
        data = self.location.read()
        if self.file.mark != f"sha256 {hashlib.sha256(data).hexdigest()}":
            uri = self.file.uri
            raise WorkError(f"expected {uri} as in its manifest, got: {uri}: checksum differs; {MEND}")
        return pa.BufferReader(data)
