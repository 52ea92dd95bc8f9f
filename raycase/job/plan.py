"""The plan of a job: the input is cut into spans, spans into units; units that are finished are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.errors import RequestError
from raycase.io.inputs import source_of
from raycase.io.schema import parquet_bytes
from raycase.io.source import InputFile, Span
from raycase.io.storage import Location, fingerprint
from raycase.job.unit_files import Units
from raycase.job.units import Piece

if TYPE_CHECKING:  # their imports take seconds, and workers need none of them
    from raycase.job.job_record import Job, Sharing
    from raycase.job.request import Request

SPANS, TASK_BYTES = 2000, 16 * 2**20  # of a text file: about the most spans, the fewest bytes of a span
TASK_UNITS = 16  # of a task, at most, but for the units of one span
READERS, FILES_AT_ONCE = 32, 256  # threads that cut files into spans, and how many files they are ahead

KnownSpans = Mapping[str, list[Span]]  # all spans of a file, by what tells it, its number and the size of its units


def cut(span: Span, unit_rows: int) -> Iterator[tuple[int, int]]:
    """Row intervals [start, end) of the units of a span, of nearly equal size."""
    units = max(1, round(span.rows / unit_rows))
    edges = [span.start + span.rows * i // units for i in range(units + 1)]
    return pairwise(edges)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The spans of the input, and the finished units. What is left follows from both, and is never held as a whole."""

    job: Job
    spans: Sequence[Span]
    done: Units
    unit_rows: int
    rows: list[int]  # of each file, within the limit; small files that share units count as the first of them
    learned: KnownSpans  # where a file was cut that no earlier run had cut; else none

    def pieces(self) -> Iterator[Piece]:
        """The spans that have units left to do, with these, in the order of the input."""
        for span in self.spans:
            last = self.rows[span.file]
            units = ((a, min(b, last)) for a, b in cut(span, self.unit_rows) if a < last)
            if left := tuple(gap for a, b in units for gap in self.done.gaps(span.file, a, b)):
                files = tuple(self.job.files[part.file] for part in span.parts or (span,))
                yield Piece(files=files, span=span, units=left)

    def __len__(self) -> int:
        """Rows within the limit that are in no finished unit."""
        return self.done.missing(self.rows)

    @cached_property
    def units(self) -> int:
        """Number of units left to do."""
        return sum(len(piece.units) for piece in self.pieces())

    def tasks(self) -> Iterator[list[Piece]]:
        """Pieces grouped into tasks: small ones do not cost a task each, and few are read again when a node is lost."""
        task: list[Piece] = []
        size = units = 0
        for piece in self.pieces():
            task.append(piece)
            size += piece.span.bytes
            units += len(piece.units)
            if size >= TASK_BYTES or units >= TASK_UNITS:
                yield task
                task, size, units = [], 0, 0
        if task:
            yield task


def make_plan(request: Request, job: Job, done: Units) -> Plan:
    """Cut the input of the job into spans, files that an earlier run cut excepted (`save_spans`).

    Raises RequestError for an unreadable file, and an input without rows.
    """
    files, unit_rows = job.files, request.unit_rows
    left = request.job.limit if request.job.limit is not None else float("inf")
    span_bytes = max(TASK_BYTES, sum(f.size for f in files) // SPANS)
    known = {} if request.job.overwrite else _saved_spans(request.output.spans)

    def spans_of(entry: tuple[int, InputFile]) -> tuple[list[Span], str]:
        """The spans of a file; and what tells it, where they reach its end."""
        number, file = entry
        key = fingerprint([number, vars(file), unit_rows])[:16]
        if key in known:
            return known[key], key
        spans: list[Span] = []
        most = max(left, job.sharing.rows)
        source = source_of(file, number)
        with source.reading():
            splits = source.splits(request.kind.columns, unit_rows=unit_rows, span_bytes=span_bytes, most_rows=most)
            for span in splits:
                spans.append(span)
                if span.start + span.rows >= most:  # the limit ends here
                    return spans, ""
        return spans, key

    found: list[tuple[list[Span], str]] = []
    rows: list[int] = []
    with ThreadPoolExecutor(READERS) as pool:
        entries = iter(enumerate(files))
        ahead = 8  # few files are read for nothing if the limit is small
        while left > 0 and (batch := list(islice(entries, ahead))):
            for spans, key in pool.map(spans_of, batch):
                found.append((spans, key))
                rows.append(int(min(left, sum(span.rows for span in spans))))
                left -= rows[-1]
            ahead = min(FILES_AT_ONCE, 2 * ahead)
    if not sum(rows):
        raise RequestError(f"--input: expected rows, got none in {len(files)} files, the first {files[0].uri}")
    cut_files = {key: spans for spans, key in found if spans and key}
    planned = _shared(found, job.sharing)
    for span in planned:
        if span.parts:
            members = range(span.file, span.parts[-1].file + 1)
            rows[span.file] = sum(rows[i] for i in members)
            rows[span.file + 1 : members.stop] = [0] * (len(members) - 1)
    learned = {} if cut_files.keys() <= known.keys() else cut_files
    return Plan(job=job, spans=planned, done=done, unit_rows=unit_rows, rows=rows, learned=learned)


def _shared(files: Sequence[tuple[list[Span], str]], sharing: Sharing) -> list[Span]:
    """The spans of the files, those of neighbouring small files as one. What is small does not depend on the units."""
    groups: list[list[Span]] = []
    count = total = 0  # files and rows of the last group; no file: it takes no other
    for spans, whole in files:
        if not spans:
            continue
        rows = sum(span.rows for span in spans)
        is_small = bool(whole) and rows < sharing.rows
        if is_small and 0 < count < sharing.files and total + rows <= sharing.rows:
            groups[-1] += spans
            count, total = count + 1, total + rows
        else:
            groups.append([*spans])
            count, total = int(is_small), rows
    shared: list[Span] = []
    for spans in groups:
        if spans[0].file == spans[-1].file:
            shared += spans
        else:
            rows, size = sum(span.rows for span in spans), sum(span.bytes for span in spans)
            shared.append(Span(file=spans[0].file, start=0, rows=rows, at=0, length=0, bytes=size, parts=tuple(spans)))
    return shared


def save_spans(file: Location, spans: KnownSpans) -> None:
    """Save how whole files are cut, so that a resumed job need not read them to plan."""
    rows = [{"of": key, **vars(span)} for key, of in spans.items() for span in of]
    file.put(parquet_bytes(pa.Table.from_pylist(rows).drop_columns(["parts"])))


def _saved_spans(file: Location) -> dict[str, list[Span]]:
    """The spans that were saved; none where there is no such file."""
    spans: dict[str, list[Span]] = {}
    if file.exists():
        try:
            for row in pq.read_table(pa.BufferReader(file.read())).to_pylist():
                spans.setdefault(row.pop("of"), []).append(Span(**row))
        except (pa.ArrowException, KeyError, TypeError):  # not written by `save_spans`: it will be replaced
            return {}
    return spans
