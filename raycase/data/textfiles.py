"""Records of CSV and JSONL files with their bytes, so that a file can be cut into byte ranges."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from raycase.data.compressed import CODECS, check_not_compressed, decompressed
from raycase.data.schema import Reason

BOM, QUOTE = b"\xef\xbb\xbf", b'"'
CLOSING = re.compile(rb'"(?:,|\r*\n*$)')  # a quote that may end a field
CSV_RULES = 2  # by which CSV files are cut into rows; a job keeps that with which it was begun
FIELD_CHARACTERS_1 = 2**20  # most of a field by the first rules, which took the lines of longer texts for rows
RECORD_BYTES = 2**27  # most of a row: a file without line ends is not read into memory as a whole


@dataclass(frozen=True, kw_only=True)
class Line:
    """A record of a text file: its bytes, and its values or the problem with it (a blank line has neither)."""

    raw: bytes
    values: dict[str, Any] | None = None
    problem: Reason | None = None
    detail: str = ""

    @property
    def is_row(self) -> bool:
        """Whether it counts as a row of the input: blank lines do not."""
        return self.values is not None or self.problem is not None


def jsonl_lines(stream: BinaryIO, *, record_bytes: int = RECORD_BYTES) -> Iterator[Line]:
    """Records of a JSONL file: an object on each line. Raises ValueError, with the byte, for a line of 128 MiB."""
    at = stream.tell()
    while raw := stream.readline(record_bytes):
        if len(raw) == record_bytes:
            raise _too_long(at, record_bytes)
        at += len(raw)
        if raw.isspace():
            yield Line(raw=raw)
            continue
        try:
            values = json.loads(raw)
            if isinstance(values, dict):
                "".join(values).encode()  # half of a surrogate pair in a name: no name of a column
        except UnicodeError as error:
            yield Line(raw=raw, problem=Reason.INVALID_UTF8, detail=str(error))
        except (ValueError, RecursionError) as error:
            yield Line(raw=raw, problem=Reason.UNPARSED, detail=str(error))
        else:
            if isinstance(values, dict):
                yield Line(raw=raw, values=values)
            else:
                detail = f"expected an object, got {type(values).__name__}"
                yield Line(raw=raw, problem=Reason.UNPARSED, detail=detail)


def csv_header(stream: io.BufferedReader) -> tuple[str, ...]:
    """Column names in the first record of a file. Raises ValueError for a repeated name, and as `csv_lines` does."""
    if stream.peek(len(BOM)).startswith(BOM):
        stream.read(len(BOM))
    names, raw = next(_csv_records(stream), ([], b""))
    if isinstance(names, str):  # as a name with a quote in it
        names = next(csv.reader([raw.decode()]), [])
    "".join(names).encode()  # raises where bytes are no UTF-8
    if len(set(names)) < len(names):
        raise ValueError(f"a column name twice in the first line: {', '.join(names)}")
    return tuple(names)


def cut_otherwise(stream: io.BufferedReader) -> bool:
    """Whether the first rules cut a CSV file into other rows: the lines of a record that does not parse, or has another
    number of fields, each by itself."""
    header = csv_header(stream)
    start = stream.tell()
    stream.seek(0)
    first = len(stream.readline())
    stream.seek(start)
    return first != start or any(
        line.raw.rstrip(b"\r\n").count(b"\n") > 0
        if line.problem
        else max(map(len, (line.values or {"": ""}).values())) > FIELD_CHARACTERS_1
        for line in csv_lines(stream, header)
    )


def csv_lines(stream: BinaryIO, header: tuple[str, ...], *, record_bytes: int = RECORD_BYTES) -> Iterator[Line]:
    """Records of a CSV file (RFC 4180).

    A record that does not parse, or has another number of fields, is one with a problem. Raises ValueError, with the
    byte, where it is not certain which lines are a record.
    """
    for fields, raw in _csv_records(stream, record_bytes):
        if isinstance(fields, str):
            yield Line(raw=raw, problem=Reason.UNPARSED, detail=fields)
        elif len(fields) == len(header):
            yield Line(raw=raw, values=dict(zip(header, fields, strict=True)))
        elif fields:
            detail = f"expected {len(header)} fields, got {len(fields)}"
            yield Line(raw=raw, problem=Reason.UNPARSED, detail=detail)
        else:
            yield Line(raw=raw)


def _csv_records(stream: BinaryIO, record_bytes: int = RECORD_BYTES) -> Iterator[tuple[list[str] | str, bytes]]:
    """Fields of each record, or the problem of one that does not parse, and its bytes.

    One that does not parse is a line. Raises ValueError, with the byte, where a quoted field in it may have more lines:
    taken for rows they would be such as nobody wrote, and taken for a text they would be missing where they are rows.
    """
    csv.field_size_limit(RECORD_BYTES)
    at = stream.tell()
    used: list[bytes] = []  # lines of the current record

    def feed() -> Iterator[str]:
        size = 0
        while raw := stream.readline(record_bytes):
            size = size + len(raw) if used else len(raw)
            if size >= record_bytes:
                raise _too_long(at, record_bytes)
            used.append(raw)
            yield raw.decode("utf-8", "surrogateescape")

    reader = csv.reader(feed(), strict=True)
    doubtful: int | None = None  # where a line with quotes was taken for a record, and none with quotes came since
    while True:
        used.clear()
        fields: list[str] | str
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if len(used) > 1 or (_leaves_open(used[0]) and stream.readline(1)):
                raise _endless(at, str(error)) from error
            fields = str(error)
            reader = csv.reader(feed(), strict=True)
        raw = used[0] if len(used) == 1 else b"".join(used)
        if doubtful is not None and QUOTE in raw:
            if raw.count(QUOTE) % 2 and CLOSING.search(raw):
                raise _endless(doubtful, "a quoted field seems to end in a later line")
            doubtful = None
        if isinstance(fields, str) and QUOTE in raw:
            doubtful = at
        at += len(raw)
        yield fields, raw


def _leaves_open(raw: bytes) -> bool:
    """Whether a quoted field may go on behind a line that does not parse."""
    line = raw.rstrip(b"\r\n")
    return line.count(QUOTE) % 2 == 1 and not line.endswith(QUOTE)


def _endless(at: int, why: str) -> ValueError:
    return ValueError(
        f"at byte {at} a record whose end is not certain ({why}): a quoted field is not closed, or has a single quote "
        "in it; write a quote within a field twice"
    )


def _too_long(at: int, most: int) -> ValueError:
    return ValueError(f"at byte {at} a row of {most:,} bytes or more; leave it out, or cut its text")


def text_lines(stream: BinaryIO, format: str, header: tuple[str, ...]) -> Iterator[Line]:
    """Records of a file by its format: CSV with this header, else JSONL."""
    return csv_lines(stream, header) if format == ".csv" else jsonl_lines(stream)


def text_stream(handle: Any, compression: str) -> io.BufferedReader:
    """The text in an fsspec file, decompressed where its name ends with a `compression`.

    Raises ValueError where the file has another compression than its name says.
    """
    stream = buffered(handle)
    if compression:
        return decompressed(stream, CODECS[compression])
    check_not_compressed(stream)
    return stream


def buffered(handle: Any) -> io.BufferedReader:
    """An fsspec file behind the standard library's buffered reader, whose lines are much faster."""
    return io.BufferedReader(handle, 2**22) if not isinstance(handle, io.BufferedReader) else handle
