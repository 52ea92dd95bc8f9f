"""The plan of a job: the input is cut into spans, spans into units; units that are finished are left out."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.errors import RequestError
from raycase.io.inputs import source_of
from raycase.io.schema import parquet_bytes
from raycase.io.source import InputFile, Span
from raycase.io.storage import fingerprint
from raycase.job.listing import Units
from raycase.job.output import Output
from raycase.job.records import Piece

if TYPE_CHECKING:  # their imports take seconds, and workers need none of them
    from raycase.job.job_record import Sharing
    from raycase.job.request import Request

SPANS, TASK_BYTES = 2000, 16 * 2**20  # of a text file: about the most spans, the fewest bytes of a span
TASK_UNITS = 16  # of a task, if its spans are small
READERS, FILES_AT_ONCE = 32, 256  # threads that cut files into spans, and how many files they are ahead
KEY = b"raycase"
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
NUMBERS = ("file", "start", "rows", "at", "length", "bytes")


@dataclass
class Spans:
    """Spans in the order of the input, as columns: a million take 50 MB."""

    numbers: array[int] = field(default_factory=lambda: array("q"))  # NUMBERS of each span, one span after the other
    whole: dict[int, str] = field(default_factory=dict)  # file -> its identity, if all of its spans are here
    parts: dict[int, tuple[Span, ...]] = field(default_factory=dict)  # of spans of several files, by the first file

    def add(self, span: Span) -> None:
        self.numbers.extend((span.file, span.start, span.rows, span.at, span.length, span.bytes))

    def __len__(self) -> int:
        return len(self.numbers) // len(NUMBERS)

    def __getitem__(self, i: int) -> Span:
        values = self.numbers[i * len(NUMBERS) : (i + 1) * len(NUMBERS)]
        numbers = dict(zip(NUMBERS, values, strict=True))
        return Span(**numbers, parts=self.parts.get(values[0], ()))

    def __iter__(self) -> Iterator[Span]:
        return (self[i] for i in range(len(self)))

    def of(self, file: int) -> Spans:
        """The spans of a file."""
        first, last = (len(NUMBERS) * i for i in np.searchsorted(self.table[:, 0], [file, file + 1]).tolist())
        return Spans(numbers=self.numbers[first:last])

    @property
    def rows(self) -> int:
        """Rows of all spans."""
        return int(self.table[:, NUMBERS.index("rows")].sum())

    def shared(self, sharing: Sharing) -> Spans:
        """The same rows, where neighbouring small files are one span. What is small does not depend on the units."""
        files, first, count = np.unique(self.table[:, 0], return_index=True, return_counts=True)
        rows = np.add.reduceat(self.table[:, 2], first) if len(files) else files
        small = [i in self.whole and n < sharing.rows for i, n in zip(files.tolist(), rows.tolist(), strict=True)]
        if sum(small) < 2:
            return self
        shared = Spans()
        at = 0
        while at < len(files):
            end, total = at + 1, int(rows[at])
            while small[at] and end < len(files) and small[end] and end - at < sharing.files:
                if total + rows[end] > sharing.rows:
                    break
                total += int(rows[end])
                end += 1
            spans = [self[i] for i in range(first[at], first[end - 1] + count[end - 1])]
            if end - at > 1:
                shared.parts[spans[0].file] = tuple(spans)
                size = sum(span.bytes for span in spans)
                spans = [Span(file=spans[0].file, start=0, rows=total, at=0, length=0, bytes=size)]
            for span in spans:
                shared.add(span)
            at = end
        return shared

    @property
    def table(self) -> np.ndarray:
        """(N, 6) int64, the columns `NUMBERS`."""
        return np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, len(NUMBERS))

    def save(self, output: Output, unit_rows: int) -> None:
        """Save the spans in the output folder."""
        columns = {name: np.ascontiguousarray(column) for name, column in zip(NUMBERS, self.table.T, strict=True)}
        metadata = {"unit_rows": unit_rows, "whole": list(self.whole.items())}
        output.spans.put(parquet_bytes(pa.table(columns).replace_schema_metadata({KEY: json.dumps(metadata)})))

    @staticmethod
    def load(output: Output, unit_rows: int) -> Spans:
        """The spans that `save` put for units of this size; else none."""
        if not output.spans.exists():
            return Spans()
        try:
            table = pq.read_table(pa.BufferReader(output.spans.read()))
            metadata = json.loads(table.schema.metadata[KEY])
            if metadata["unit_rows"] != unit_rows:
                return Spans()
            numbers = np.stack([table[name].to_numpy() for name in NUMBERS], axis=1, dtype=np.int64, casting="no")
            return Spans(numbers=array("q", numbers.tobytes()), whole=dict(metadata["whole"]))
        except (pa.ArrowException, TypeError, KeyError, ValueError):  # not written by `save`: it will be replaced
            return Spans()


def cut(span: Span, unit_rows: int) -> Iterator[tuple[int, int]]:
    """Row intervals [start, end) of the units of a span, of nearly equal size."""
    units = max(1, round(span.rows / unit_rows))
    edges = [span.start + span.rows * i // units for i in range(units + 1)]
    return pairwise(edges)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The spans of the input, and the finished units. What is left follows from both, and is never held as a whole.

    task_units: most units of a task, a span's units excepted.
    """

    spans: Spans
    done: Units
    unit_rows: int
    rows: list[int]  # of each file, within the limit; small files that share units count as the first of them
    learned: Spans | None = None  # of each file, where some were cut that no earlier run had cut
    task_units: int = TASK_UNITS

    def pieces(self) -> Iterator[Piece]:
        """The spans that have units left to do, in the order of the input."""
        for i in np.flatnonzero(self.left):
            span = self.spans[int(i)]
            yield span, self.units_left(span)

    def units_left(self, span: Span) -> list[tuple[int, int]]:
        """The row intervals of a span that are left to do, each a unit."""
        last = self.rows[span.file]
        units = ((a, min(b, last)) for a, b in cut(span, self.unit_rows) if a < last)
        return [gap for a, b in units for gap in self.done.gaps(span.file, a, b)]

    @cached_property
    def left(self) -> np.ndarray:
        """How many rows of each span within the limit are in no finished unit: (N,)."""
        file, start, rows = np.ascontiguousarray(self.spans.table[:, :3].T)
        end = np.minimum(start + rows, np.asarray(self.rows, dtype=np.int64)[file])
        left, end = np.maximum(0, end - start), np.maximum(start, end)
        begun = self.done.files
        for index, *edges in zip(begun, *(np.searchsorted(file, begun, side).tolist() for side in SIDES), strict=True):
            spans = slice(*edges)
            left[spans] -= self.done.covered(index, end[spans])
            left[spans] += self.done.covered(index, start[spans])
        return np.maximum(0, left)

    def __len__(self) -> int:
        """Rows within the limit that are in no finished unit."""
        return self.done.missing(self.rows)

    @cached_property
    def units(self) -> int:
        """Number of units left to do; for spans of which nothing is done it is known from their rows."""
        rows = self.spans.table[:, NUMBERS.index("rows")]
        whole = self.left == rows
        units = int(np.maximum(1, np.round(rows[whole] / self.unit_rows)).sum())
        begun = np.flatnonzero(~whole & (self.left > 0)).tolist()
        return units + sum(len(self.units_left(self.spans[i])) for i in begun)

    def tasks(self) -> Iterator[list[Piece]]:
        """Pieces grouped into tasks: small ones do not cost a task each, and few are read again when a node is lost."""
        task: list[Piece] = []
        size = units = 0
        for piece in self.pieces():
            task.append(piece)
            size += piece[0].bytes
            units += len(piece[1])
            if size >= TASK_BYTES or units >= self.task_units:
                yield task
                task, size, units = [], 0, 0
        if task:
            yield task


def make_plan(request: Request, files: Sequence[InputFile], done: Units, sharing: Sharing | None = None) -> Plan:
    """Cut the input into spans, files that an earlier run cut excepted (`Spans.save`).

    `sharing`: the job's; without it no files share units. Raises RequestError for an unreadable file, and an input
    without rows.
    """
    left = request.job.limit if request.job.limit is not None else float("inf")
    span_bytes = max(TASK_BYTES, sum(f.size for f in files) // SPANS)
    known = Spans() if request.job.overwrite else Spans.load(request.output, request.unit_rows)
    spans = Spans()
    rows: list[int] = []

    def spans_of(entry: tuple[int, InputFile]) -> tuple[Spans, bool]:
        """The spans of a file, and whether they reach its end."""
        number, file = entry
        if known.whole.get(number) == fingerprint(vars(file))[:16]:
            return known.of(number), True
        file_spans = Spans()
        most = max(left, sharing.rows if sharing else 0)
        source = source_of(file, number)
        with source.reading():
            columns, unit_rows = request.kind.columns, request.unit_rows
            for span in source.splits(columns, unit_rows=unit_rows, span_bytes=span_bytes, most_rows=most):
                file_spans.add(span)
                if span.start + span.rows >= most:  # the limit ends here
                    return file_spans, False
        return file_spans, True

    with ThreadPoolExecutor(READERS) as pool:
        entries = iter(enumerate(files))
        ahead = 8  # few files are read for nothing if the limit is small
        while left > 0 and (batch := list(islice(entries, ahead))):
            for (index, file), (file_spans, whole) in zip(batch, pool.map(spans_of, batch), strict=True):
                rows.append(int(min(left, file_spans.rows)))
                left -= rows[-1]
                spans.numbers.extend(file_spans.numbers)
                if whole:
                    spans.whole[index] = fingerprint(vars(file))[:16]
            ahead = min(FILES_AT_ONCE, 2 * ahead)
    if not sum(rows):
        raise RequestError(f"--input: expected rows, got none in {len(files)} files, the first {files[0].uri}")
    learned = None if spans.whole.items() <= known.whole.items() else spans
    if sharing:
        spans = spans.shared(sharing)
        for first, parts in spans.parts.items():
            members = range(first, parts[-1].file + 1)
            rows[first] = sum(rows[i] for i in members)
            rows[first + 1 : members.stop] = [0] * (len(members) - 1)
    return Plan(spans=spans, done=done, unit_rows=request.unit_rows, rows=rows, learned=learned)
