"""CSV and JSONL, in bounded memory.

A span of JSONL is a range of bytes. A CSV file is one span, for where a row begins is not known, and so is a file that
is compressed as a whole.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from math import inf
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from raycase.io.columns import INT64, Columns, check_columns
from raycase.io.schema import Reason
from raycase.io.source import Line, Span, SpanRows, TextFile

BLOCK_BYTES = 2**24  # of CSV that are parsed at a time; no row is larger
MOST_INVALID = 2**20  # rows with other columns than the header that are held at a time
PEEK_ROWS = 1000  # of JSONL, from which types come
PART_BYTES = 2**20  # of JSONL that are parsed at a time
LINE_BYTES = 2**27  # no line of JSONL has as many


class Csv(TextFile):
    """A CSV file, whose columns are strings. UTF-8 is not checked."""

    @property
    def schema(self) -> pa.Schema:
        with self.stream() as stream:
            return _schema(_header(stream))

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        with self.stream() as stream:
            header = _header(stream)
            check_columns(_schema(header), columns, self.file.uri)
            yield from self.one_span(map(len, _csv_parts(stream, header, columns.names[:1])), most_rows)

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        with self.stream() as stream:
            yield from _csv_parts(stream, _header(stream), names)


def _header(stream: BinaryIO) -> list[str]:
    """Column names in the first record, which is read up to its end."""
    return next((names for names in csv.reader(line.decode("utf-8-sig") for line in stream) if names), [])


def _schema(header: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in header])


def _csv_parts(stream: io.BufferedReader, header: Sequence[str], names: Sequence[str]) -> Iterator[SpanRows]:
    """The rows behind the header, a block at a time; lines are those with another number of fields.

    Raises ValueError where the file has an odd number of quotes: rows may be taken for a text.
    """
    invalid: dict[int, Line] = {}  # of the next batches

    def keep(row: Any) -> str:
        detail = f"expected {row.expected_columns} fields, got {row.actual_columns}"
        invalid[row.number - 1] = Line(raw=row.text, detail=detail)
        return "skip" if len(invalid) < MOST_INVALID else "error"

    if not stream.peek(1):
        return
    counted: Any = _Quotes(stream)
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
    for batch in batches:
        skipped = np.fromiter(invalid, np.int64) - start  # of later batches, too, for it is a block ahead
        nth = np.arange(len(batch))
        rows = start + nth + np.searchsorted(skipped - np.arange(len(skipped)), nth, side="right")
        start = int(rows[-1]) + 1 if len(rows) else start
        lines = {row: invalid.pop(row) for row in list(invalid) if row < start}
        yield SpanRows(numbers=rows, table=pa.table(batch), lines=lines)
    if counted.count % 2:
        raise ValueError(
            'an odd number of quotes: a quoted field is not closed, or has a single " in it; write it twice there, and '
            'quote the fields that have a "'
        )
    yield SpanRows(table=batches.schema.empty_table(), lines=invalid)


class _Quotes:
    """A stream, as pyarrow reads it, and how many quotes went by."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.count, self.closed = stream, 0, False

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.count += data.count(b'"')
        return data

    def close(self) -> None:
        self.closed = True


class Jsonl(TextFile):
    """A JSONL file, whose rows are lines."""

    has_schema = False

    @property
    def schema(self) -> pa.Schema:
        values: dict[str, set[type]] = {}
        with self.stream() as stream:
            for raw, _ in zip(_rows(stream), range(PEEK_ROWS), strict=False):
                for name, value in (_line(raw).values or {}).items():
                    is_long = type(value) is int and value not in INT64
                    values.setdefault(name, set()).add(Decimal if is_long else type(value))
        return pa.schema([(name, _type(kinds - {type(None)})) for name, kinds in values.items()])

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

    def problem(self, start: str) -> str:
        is_array = start.lstrip().startswith("[")
        return "a JSON array, and no object on each line; convert it: jq -c '.[]'" if is_array else ""


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
        values = _decode(raw.decode("utf-8-sig"))
        if isinstance(values, dict):
            "".join(values).encode()  # half of a surrogate pair in a name: no name of a column
            return Line(raw=content, values=values)
    except UnicodeError as error:
        return Line(raw=content, problem=Reason.INVALID_UTF8, detail=str(error))
    except (ValueError, RecursionError) as error:
        return Line(raw=content, detail=str(error))
    return Line(raw=content, detail=f"expected an object, got {type(values).__name__}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in values if names.count(name) > 1)!r} twice in an object")
    return values


_decode = json.JSONDecoder(object_pairs_hook=_object).decode


def _type(kinds: set[type]) -> pa.DataType:
    """Arrow type of values of these Python types, where Decimal stands for integers beyond 64 bits; these without
    floats, mixed and nested values become JSON text."""
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if float in kinds and kinds <= {int, float, Decimal}:
        return pa.float64()
    return pa.string()
