"""What is left to do: the input cut into spans, spans into units, and of these what no finished unit covers."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.records import Piece
from raycase.data.inputs import InputFile
from raycase.data.parquet import parquet_bytes
from raycase.data.spans import Span, cut, plan_file
from raycase.data.storage import fingerprint
from raycase.errors import RequestError

if TYPE_CHECKING:  # its imports take seconds, and the worker that hands a plan over needs none of them
    from raycase.corpus.request import Request

SPANS, TASK_BYTES = 2000, 16 * 2**20  # a text is cut into about so many spans at most, of at least so many bytes
TASK_UNITS = 16  # of small spans
READERS, FILES_AT_ONCE = 32, 256  # threads that find out how files are cut, and how far they look ahead
KEY = b"raycase"
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
NUMBERS = ("file", "start", "rows", "at", "length", "bytes")


@dataclass
class Spans:
    """Spans in the order of the input, as columns: a million take 50 MB."""

    numbers: array[int] = field(default_factory=lambda: array("q"))  # NUMBERS of one after those of another
    headers: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of CSV files
    whole: dict[int, str] = field(default_factory=dict)  # files that are here to their ends, and what they were then

    def add(self, span: Span) -> None:
        self.numbers.extend((span.file, span.start, span.rows, span.at, span.length, span.bytes))
        if span.header:
            self.headers[span.file] = span.header

    def extend(self, spans: Spans) -> None:
        """Add those of a later file."""
        self.numbers.extend(spans.numbers)
        self.headers.update(spans.headers)

    def __len__(self) -> int:
        return len(self.numbers) // len(NUMBERS)

    def __getitem__(self, i: int) -> Span:
        values = self.numbers[i * len(NUMBERS) : (i + 1) * len(NUMBERS)]
        return Span(**dict(zip(NUMBERS, values, strict=True)), header=self.headers.get(values[0], ()))

    def __iter__(self) -> Iterator[Span]:
        return (self[i] for i in range(len(self)))

    def of(self, file: int) -> Spans:
        """The spans of a file."""
        first, last = (len(NUMBERS) * i for i in np.searchsorted(self.table[:, 0], [file, file + 1]).tolist())
        headers = {file: self.headers[file]} if file in self.headers else {}
        return Spans(numbers=self.numbers[first:last], headers=headers)

    @property
    def rows(self) -> int:
        """Of all spans."""
        return int(self.table[:, NUMBERS.index("rows")].sum())

    @property
    def table(self) -> np.ndarray:
        """(N, 6) int64, the columns `NUMBERS`."""
        return np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, len(NUMBERS))

    def save(self, output: Output, unit_rows: int) -> None:
        """Put them beside the units that are cut from them."""
        columns = {name: np.ascontiguousarray(column) for name, column in zip(NUMBERS, self.table.T, strict=True)}
        told = {"unit_rows": unit_rows, "headers": list(self.headers.items()), "whole": list(self.whole.items())}
        output.spans.put(parquet_bytes(pa.table(columns).replace_schema_metadata({KEY: json.dumps(told)})))

    @staticmethod
    def load(output: Output, unit_rows: int) -> Spans:
        """What `save` put for units of this size; else none."""
        if not output.spans.exists():
            return Spans()
        try:
            table = pq.read_table(io.BytesIO(output.spans.read()))
            told = json.loads(table.schema.metadata[KEY])
        except (pa.ArrowException, TypeError, KeyError):  # another file of this name: it is put anew
            return Spans()
        if told["unit_rows"] != unit_rows:
            return Spans()
        numbers = np.stack([table[name].to_numpy() for name in NUMBERS], axis=1)
        headers = {file: tuple(names) for file, names in told["headers"]}
        return Spans(numbers=array("q", numbers.tobytes()), headers=headers, whole=dict(told["whole"]))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The spans of the input, and the finished units; what is left follows from them, and is never held as a whole."""

    spans: Spans
    done: Units
    unit_rows: int
    rows: list[int]  # of each file, within the limit
    learned: bool  # whether the spans of a whole file were not known from an earlier run

    def pieces(self) -> Iterator[Piece]:
        """What the listing lacks, in the order of the input."""
        for i in np.flatnonzero(self.left):
            span = self.spans[int(i)]
            yield span, self.wanted(span)

    def wanted(self, span: Span) -> list[tuple[int, int]]:
        """The row intervals of a span that are left to do, each a unit."""
        last = self.rows[span.file]
        units = ((a, min(b, last)) for a, b in cut(span, self.unit_rows) if a < last)
        return [gap for a, b in units for gap in self.done.gaps(span.file, a, b)]

    @cached_property
    def left(self) -> np.ndarray:
        """Of each span, (N,): how many rows within the limit no finished unit covers."""
        file, start, rows = np.ascontiguousarray(self.spans.table[:, :3].T)
        end = np.minimum(start + rows, np.asarray(self.rows, dtype=np.int64)[file])
        left = np.maximum(0, end - start)
        begun = self.done.files
        for index, *edges in zip(begun, *(np.searchsorted(file, begun, side).tolist() for side in SIDES), strict=True):
            some = slice(*edges)
            left[some] -= self.done.covered(index, np.maximum(start, end)[some])
            left[some] += self.done.covered(index, start[some])
        return np.maximum(0, left)

    @property
    def missing(self) -> int:
        """Rows that no finished unit covers."""
        return self.done.missing(self.rows)

    @cached_property
    def units(self) -> int:
        """Units that are left to do; spans of which nothing is done need no closer look."""
        rows = self.spans.table[:, NUMBERS.index("rows")]
        whole = self.left == rows
        units = int(np.maximum(1, np.round(rows[whole] / self.unit_rows)).sum())
        begun = np.flatnonzero(~whole & (self.left > 0)).tolist()
        return units + sum(len(self.wanted(self.spans[i])) for i in begun)

    def after(self, done: Units) -> Plan:
        """What is left when these are finished."""
        return replace(self, done=done)

    def tasks(self) -> Iterator[list[Piece]]:
        """Pieces together, so that small ones do not cost a task each; few enough to be read again with a lost node."""
        task: list[Piece] = []
        held = units = 0
        for piece in self.pieces():
            task.append(piece)
            held += piece[0].bytes
            units += len(piece[1])
            if held >= TASK_BYTES or units >= TASK_UNITS:
                yield task
                task, held, units = [], 0, 0
        if task:
            yield task


def make_plan(request: Request, files: Sequence[InputFile], done: Units) -> Plan:
    """Cut the input into spans, as far as the output does not remember them from an earlier run (`Spans.save`).

    Raises RequestError for an unreadable file, and an input without rows.
    """
    left = request.job.limit if request.job.limit is not None else float("inf")
    span_bytes = max(TASK_BYTES, sum(f.size for f in files) // SPANS)
    known = Spans() if request.job.overwrite else Spans.load(request.output, request.unit_rows)
    spans = Spans()
    rows: list[int] = []

    def look(entry: tuple[int, InputFile]) -> tuple[Spans, bool]:
        """The spans of a file, and whether these are all."""
        if known.whole.get(entry[0]) == _identity(entry[1]):
            return known.of(entry[0]), True
        found = Spans()
        for span in plan_file(*entry, request.columns, unit_rows=request.unit_rows, span_bytes=span_bytes):
            found.add(span)
            if span.start + span.rows >= left:  # the limit ends here
                return found, False
        return found, True

    with ThreadPoolExecutor(READERS) as pool:
        entries = iter(enumerate(files))
        ahead = 8  # little is read in vain where the limit is small
        while left > 0 and (some := list(islice(entries, ahead))):
            for (index, file), (found, whole) in zip(some, pool.map(look, some), strict=True):
                rows.append(int(min(left, found.rows)))
                left -= rows[-1]
                spans.extend(found)
                if whole:
                    spans.whole[index] = _identity(file)
            ahead = min(FILES_AT_ONCE, 2 * ahead)
    if not sum(rows):
        raise RequestError(f"--input: expected rows, got none in {len(files)} files, the first {files[0].uri}")
    learned = not spans.whole.items() <= known.whole.items()
    return Plan(spans=spans, done=done, unit_rows=request.unit_rows, rows=rows, learned=learned)


def _identity(file: InputFile) -> str:
    return fingerprint(vars(file))[:16]
