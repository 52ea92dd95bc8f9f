"""Records of CSV and JSONL files with the bytes they take, so that a file can be cut into byte ranges."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from raycase.data.schema import Reason

CSV_FIELD_LIMIT = 2**20  # characters; an unclosed quote is given up after this many


@dataclass(frozen=True, kw_only=True)
class Line:
    """A record of a text file: its bytes, and its values or what is wrong with it (a blank line has neither)."""

    raw: bytes
    values: dict[str, Any] | None = None
    problem: Reason | None = None
    detail: str = ""

    @property
    def is_row(self) -> bool:
        """Whether it counts as a row of the input."""
        return self.values is not None or self.problem is not None


def jsonl_lines(stream: BinaryIO) -> Iterator[Line]:
    """Objects, one a line."""
    for raw in stream:
        if raw.isspace():
            yield Line(raw=raw)
            continue
        try:
            values = json.loads(raw)
        except UnicodeDecodeError as error:
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
    """Names in the first line. Raises ValueError where one stands twice."""
    line = stream.readline().removeprefix(b"\xef\xbb\xbf")
    names = next(csv.reader([line.decode()]), [])
    if len(set(names)) < len(names):
        raise ValueError(f"a column name twice in the first line: {', '.join(names)}")
    return tuple(names)


def csv_lines(stream: BinaryIO, header: tuple[str, ...]) -> Iterator[Line]:
    """Records of RFC 4180. Where one does not parse, its first line is given up and the next line begins a new one."""
    csv.field_size_limit(CSV_FIELD_LIMIT)
    ahead: deque[bytes] = deque()
    used: list[bytes] = []

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
    """Records of a file with this ending: of CSV under its header, or of JSONL."""
    return csv_lines(stream, header) if ending == ".csv" else jsonl_lines(stream)


def buffered(handle: Any) -> BinaryIO:
    """Lines of an fsspec file at the speed of the standard library's reader."""
    return io.BufferedReader(handle, 2**20) if not isinstance(handle, io.BufferedReader) else handle
