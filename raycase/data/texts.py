"""The rows of CSV and JSONL files, plain or as gzip and zstd, in bounded memory; pyarrow parses and decompresses."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from raycase.data.schema import Reason

CODECS = {".gz": "gzip", ".zst": "zstd"}  # by the last ending of a name
BLOCK_BYTES = 2**24  # of a CSV file parsed at a time; no row is larger
LINE_BYTES = 2**27  # no line of JSONL has as many
MOST_INVALID = 2**20  # rows with other columns than the header that are held at a time


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a text file that was read: its values, or the problem with it."""

    raw: str
    values: dict[str, Any] | None = None
    problem: Reason = Reason.UNPARSED
    detail: str = ""


def text_stream(handle: Any, ending: str) -> io.BufferedReader:
    """The text in an fsspec file whose name ends so, decompressed to the last member or frame.

    Raises ValueError for a compressed file without a byte, for another encoding that its first bytes tell, and for a
    JSON array; a compressed file that is cut off raises OSError when it is read.
    """
    stream = handle if isinstance(handle, io.BufferedReader) else io.BufferedReader(handle, 2**22)
    if codec := CODECS.get(posixpath.splitext(ending)[1]):
        if not stream.peek(1):
            raise ValueError("no bytes, where a compressed file has some even if nothing is in it; it may be cut off")
        decompressed: Any = pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec)
        stream = io.BufferedReader(decompressed, 2**20)
    start, problem = stream.peek(4), ""
    encoding = json.detect_encoding(start[:4]).upper().replace("-LE", "LE").replace("-BE", "BE")  # as iconv names it
    if not encoding.startswith("UTF-8"):
        problem = f"text in {encoding}; convert it: iconv -f {encoding} -t UTF-8"
    elif ending.startswith(".jsonl") and start.decode("utf-8-sig", "ignore").lstrip().startswith("["):
        problem = "a JSON array, and no object on each line; convert it: jq -c '.[]'"
    if problem:
        raise ValueError(problem)
    return stream


def json_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a JSONL file, blank ones too. Raises ValueError for one of 128 MiB."""
    while raw := stream.readline(LINE_BYTES):
        if len(raw) == LINE_BYTES:
            raise ValueError(f"a line of {LINE_BYTES:,} bytes or more; leave it out, or cut its text")
        yield raw


def json_rows(stream: BinaryIO) -> Iterator[Line]:
    """The rows of a JSONL file: an object on each line that is not blank."""
    yield from (_json_row(raw) for raw in json_lines(stream) if not raw.isspace())


def _json_row(raw: bytes) -> Line:
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


def csv_header(stream: BinaryIO) -> list[str]:
    """Column names in the first record of a CSV file, which is read up to its end."""
    return next((names for names in csv.reader(line.decode("utf-8-sig") for line in stream) if names), [])


def csv_batches(
    stream: io.BufferedReader, header: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[np.ndarray, pa.Table, dict[int, Line]]]:
    """Rows of a CSV file (RFC 4180) behind its header: their numbers, their strings of the columns `names`, and the
    rows among them that have another number of fields, by their number.

    UTF-8 is not checked. Raises ValueError where the file has an odd number of quotes: rows may be taken for a text.
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
        yield rows, pa.table(batch), {row: invalid.pop(row) for row in list(invalid) if row < start}
    if counted.count % 2:
        raise ValueError(
            'an odd number of quotes: a quoted field is not closed, or has a single " in it; write it twice there, and '
            'quote the fields that have a "'
        )
    yield np.empty(0, np.int64), batches.schema.empty_table(), invalid


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
