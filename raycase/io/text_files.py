"""CSV and JSONL, read in bounded memory: a span of JSONL is a range of bytes, a CSV or compressed file is one span."""

from __future__ import annotations

import csv
import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from math import inf
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from raycase.errors import is_utf8
from raycase.io.json_values import Several, loads
from raycase.io.schema import INT64, Columns, Reason, check_columns
from raycase.io.source import Line, Source, Span, SpanRows

BLOCK_BYTES = 2**24  # of CSV that are parsed at a time; no row is larger
MOST_INVALID = 2**20  # rows with other columns than the header that are held at a time
PEEK_ROWS = 1000  # of JSONL, from which types come
PART_BYTES = 2**20  # of JSONL that are parsed at a time
LINE_BYTES = 2**27  # no line of JSONL has as many


class TextFile(Source):
    """A file of text, UTF-8, compressed as a whole by one of `CODECS`, or not."""

    @contextmanager
    def stream(self) -> Iterator[io.BufferedReader]:
        """The text, decompressed to the last member or frame; a file that is cut off raises when it is read."""
        with self.location.open() as handle:
            stream = io.BufferedReader(handle, 2**22)
            if self.codec:
                if not stream.peek(1):
                    raise ValueError("no bytes; even an empty compressed file has some, so it may be cut off")
                decompressed: Any = pa.CompressedInputStream(pa.PythonFile(stream, "r"), self.codec)
                stream = io.BufferedReader(decompressed, 2**20)
            start = stream.peek(4)
            encoding = json.detect_encoding(start[:4]).upper().replace("-LE", "LE").replace("-BE", "BE")  # as of iconv
            if not encoding.startswith("UTF-8"):
                raise ValueError(f"text in {encoding}; convert it: iconv -f {encoding} -t UTF-8")
            yield stream

    def one_span(self, counts: Iterable[int], most_rows: float) -> Iterator[Span]:
        """The file as one span, of at most so many rows; `counts`: of rows, some at a time."""
        rows = 0
        for count in counts:
            if (rows := int(min(rows + count, most_rows))) == most_rows:
                break
        if rows:
            yield self.span(0, rows, 0, self.file.size, self.file.size)


class Csv(TextFile):
    """A CSV file, whose columns are strings. UTF-8 is not checked."""

    @property
    def schema(self) -> pa.Schema:
        with self.stream() as stream:
            return _header(stream)

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        with self.stream() as stream:
            header = _header(stream)
            check_columns(header, columns, self.file.uri)
            yield from self.one_span(map(len, _csv_parts(stream, header.names, columns.names[:1])), most_rows)

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        with self.stream() as stream:
            yield from _csv_parts(stream, _header(stream).names, names)


def _header(stream: BinaryIO) -> pa.Schema:
    """The columns that the first record names, which is read up to its end."""
    names = next((names for names in csv.reader(line.decode("utf-8-sig") for line in stream) if names), [])
    return pa.schema([(name, pa.string()) for name in names])


def _csv_parts(stream: io.BufferedReader, header: Sequence[str], names: Sequence[str]) -> Iterator[SpanRows]:
    """The rows behind the header, a block at a time; lines are those with another number of fields."""
    invalid: dict[int, Line] = {}  # of the next batches

    def keep(row: Any) -> str:
        detail = f"expected {row.expected_columns} fields, got {row.actual_columns}"
        invalid[row.number - 1] = Line(raw=row.text, detail=detail)
        return "skip" if len(invalid) < MOST_INVALID else "error"

    if not stream.peek(1):
        return
    counted = _Quotes(stream)
    batches = arrow_csv.open_csv(
        pa.PythonFile(counted, "r"),
        # without threads, for rows have no numbers with them
        read_options=arrow_csv.ReadOptions(column_names=header, block_size=BLOCK_BYTES, use_threads=False),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=keep),
        convert_options=arrow_csv.ConvertOptions(
            check_utf8=False, include_columns=names, column_types=dict.fromkeys(names, pa.string())
        ),
    )
    start = 0
    try:
        for batch in batches:
            skipped = np.fromiter(invalid, np.int64) - start  # of later batches, too, for it is a block ahead
            nth = np.arange(len(batch))
            rows = start + nth + np.searchsorted(skipped - np.arange(len(skipped)), nth, side="right")
            start = int(rows[-1]) + 1 if len(rows) else start
            lines = {row: invalid.pop(row) for row in list(invalid) if row < start}
            yield SpanRows(numbers=rows, table=pa.table(batch), lines=lines)
        none = batches.schema.empty_table()
    finally:  # an error, which the thread that reads may drop last, would end the reader there, and that waits for it
        del batches
    if counted.count % 2:
        raise ValueError(
            'an odd number of quotes: a quoted field is not closed, or has a single " in it; write it twice there, and '
            'quote the fields that have a "'
        )
    yield SpanRows(table=none, lines=invalid)


class _Quotes(io.BufferedReader):
    """A stream, and how many quotes were read from it.

    A last CR or backslash comes with the next bytes: of a quoted CR LF in two blocks pyarrow would keep the CR alone.
    Of a quote behind a backslash outside quoted fields no row is certain.
    """

    count = 0
    held = b""

    def read(self, size: int | None = -1) -> bytes:
        more = -1 if size is None or size < 0 else size - len(self.held)
        fresh = super().read(more)
        data = self.held + fresh
        self.held = data[-1:] if len(fresh) == more and data[-1:] in (b"\r", b"\\") else b""  # nothing at the end
        data = data[: len(data) - len(self.held)]
        if b'\\"' in data:
            bytes_N = np.frombuffer(data, np.uint8)
            at_Q = np.flatnonzero(bytes_N == ord('"'))
            outside_Q = (self.count + np.arange(len(at_Q))) % 2 == 0
            for at in at_Q[outside_Q & (at_Q > 0) & (bytes_N[at_Q - 1] == ord("\\"))][:1]:
                near = data[max(0, at - 30) : at + 30].decode("utf-8", "replace")
                raise ValueError(
                    f'a quote behind a backslash outside quoted fields, in {near!r}; write quotes twice: ""'
                )
        self.count += data.count(b'"')
        return data


class Jsonl(TextFile):
    """A JSONL file, whose rows are lines."""

    has_schema = False

    @property
    def schema(self) -> pa.Schema:
        values: dict[str, set[type]] = {}
        with self.stream() as stream:
            for row, raw in enumerate(islice(_rows(stream), PEEK_ROWS)):
                if not row and raw.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
                    raise ValueError("a JSON array, and no object on each line; convert it: jq -c '.[]'")
                for name, value in (_line(raw).values or {}).items():
                    if is_utf8(name):  # no flag holds another
                        is_long = type(value) is int and value not in INT64
                        values.setdefault(name, set()).add(Decimal if is_long else type(value))
        return pa.schema([(name, _type(types - {type(None), Several})) for name, types in values.items()])

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        with self.stream() as stream:
            if self.codec:
                yield from self.one_span((1 for _ in _rows(stream)), most_rows)
                return
            rows = start = at = length = 0
            for line in _lines(stream):
                length += len(line)
                rows += not line.isspace()
                if rows and rows % unit_rows == 0 and length >= span_bytes and not line.isspace():
                    yield self.span(start, rows, at, length, length)
                    start, at, rows, length = start + rows, at + length, 0, 0
            if rows:
                yield self.span(start, rows, at, length, length)

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        if span and not self.codec:
            yield from _line_parts(io.BytesIO(self.location.read(span.at, span.at + span.length)), span.start)
        else:
            with self.stream() as stream:
                yield from _line_parts(stream, 0)


def _line_parts(stream: BinaryIO, start: int) -> Iterator[SpanRows]:
    """The rows, some at a time, numbered from `start` on."""
    lines: dict[int, Line] = {}
    size = 0
    for row, raw in enumerate(_rows(stream), start):
        lines[row] = _line(raw)
        size += len(raw)
        if size >= PART_BYTES:
            yield SpanRows(lines=lines)
            lines, size = {}, 0
    yield SpanRows(lines=lines)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines, blank ones too. Raises ValueError for one of 128 MiB."""
    while raw := stream.readline(LINE_BYTES):
        if len(raw) == LINE_BYTES:
            raise ValueError(f"a line of {LINE_BYTES:,} bytes or more; leave it out, or cut its text")
        yield raw


def _rows(stream: BinaryIO) -> Iterator[bytes]:
    return (raw for raw in _lines(stream) if not raw.isspace())


def _line(raw: bytes) -> Line:
    content = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
    try:
        values = loads(raw.decode("utf-8-sig"), once=True)
        if isinstance(values, dict):
            return Line(raw=content, values=values)
    except UnicodeError as error:
        return Line(raw=content, problem=Reason.INVALID_UTF8, detail=str(error))
    except ValueError as error:
        return Line(raw=content, detail=str(error))
    return Line(raw=content, detail=f"expected an object, got {type(values).__name__}")


def _type(types: set[type]) -> pa.DataType:
    """Arrow type of values of these types, Decimal for integers beyond 64 bits; others become JSON text."""
    if types == {bool}:
        return pa.bool_()
    if types == {int}:
        return pa.int64()
    if float in types and types <= {int, float, Decimal}:
        return pa.float64()
    return pa.string()
