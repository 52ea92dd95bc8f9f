"""Records of CSV and JSONL files with their bytes, so that a file can be cut into byte ranges."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from raycase.data.schema import Reason

CSV_FIELD_LIMIT = 2**20  # characters, after which an unclosed quote is an error


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


def jsonl_lines(stream: BinaryIO) -> Iterator[Line]:
    """Records of a JSONL file: an object on each line."""
    for raw in stream:
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


def csv_header(stream: BinaryIO) -> tuple[str, ...]:
    """Column names in the first line. Raises ValueError for a repeated name."""
    line = stream.readline().removeprefix(b"\xef\xbb\xbf")
    names = next(csv.reader([line.decode()]), [])
    if len(set(names)) < len(names):
        raise ValueError(f"a column name twice in the first line: {', '.join(names)}")
    return tuple(names)


def csv_lines(stream: BinaryIO, header: tuple[str, ...], *, field_limit: int = CSV_FIELD_LIMIT) -> Iterator[Line]:
    """Records of a CSV file (RFC 4180).

    Where a record does not parse, its first line becomes a record with a problem, and reading continues at the next
    line. `field_limit`: characters in a field, set for the whole process.
    """
    csv.field_size_limit(field_limit)
    ahead: deque[bytes] = deque()  # lines to read again
    used: list[bytes] = []  # lines of the current record

    def feed() -> Iterator[str]:
        while raw := ahead.popleft() if ahead else stream.readline():
            used.append(raw)
            yield raw.decode("utf-8", "surrogateescape")

    reader = csv.reader(feed(), strict=True)
    while True:
        used.clear()
        fields: list[str] | None = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            detail = str(error)
        else:
            detail = f"expected {len(header)} fields, got {len(fields)}"
        if fields is not None and len(fields) == len(header):
            yield Line(raw=b"".join(used), values=dict(zip(header, fields, strict=True)))
        elif fields == []:
            yield Line(raw=b"".join(used))
        else:
            yield Line(raw=used[0], problem=Reason.UNPARSED, detail=detail)
            ahead.extendleft(reversed(used[1:]))
            reader = csv.reader(feed(), strict=True)


def text_lines(stream: BinaryIO, ending: str, header: tuple[str, ...]) -> Iterator[Line]:
    """Records of a file by its ending: CSV with this header, else JSONL."""
    return csv_lines(stream, header) if ending == ".csv" else jsonl_lines(stream)


def buffered(handle: Any) -> BinaryIO:
    """An fsspec file behind the standard library's buffered reader, whose lines are much faster."""
    return io.BufferedReader(handle, 2**22) if not isinstance(handle, io.BufferedReader) else handle
