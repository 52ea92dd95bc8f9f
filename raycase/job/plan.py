"""The plan of a job, new or resumed: its input is cut into spans, spans into units; finished units are left out."""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby, islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.io.inputs import source_of
from raycase.io.places import claim
from raycase.io.schema import parquet_bytes, parquet_table
from raycase.io.source import InputFile, Span
from raycase.io.storage import Location, fingerprint
from raycase.job.output import JobFile, RowRange, Sharing, Units, finished, read_job
from raycase.job.units import PlannedSpan

if TYPE_CHECKING:  # its import takes seconds, and workers do not need it
    from raycase.job.request import Request

MOST_SPANS, SPAN_BYTES = 2000, 16 * 2**20  # of a text file: about the most spans, the fewest bytes of a span
UNITS_TOGETHER = 16  # of spans that Ray reads in one task, at most, but for the units of one span
AT_ONCE = 4096  # spans that are objects at a time
OLDER = {"on_unknown": "embed"}  # what jobs mean that do not name it
SHOWN = {"word_bytes": "token_bytes"}  # what a flag is called in a job's file: its name
READERS, FILES_AT_ONCE = 32, 256  # threads that cut files into spans, and how many files they are ahead
COLUMNS = [field.name for field in fields(Span) if field.name != "spans"]
FILE, START, ROWS = (COLUMNS.index(name) for name in ("file", "start", "rows"))
SAVED = pa.schema({"of": pa.string()} | dict.fromkeys(COLUMNS, pa.int64()))  # of: what names the file of a span


def find_job_file(request: Request) -> tuple[JobFile, Units]:
    """The job to run in the output folder, new or resumed with new input files last, and its finished units."""
    output, files, overwrite, model = request.output, request.files, request.overwrite, request.encoding.model.name
    config = json.loads(json.dumps(request.config, default=str))
    sharing, salt = Sharing(rows=request.unit_rows), uuid.uuid4().hex if overwrite else ""
    job = JobFile(config=config, files=list(files), model=model, sharing=sharing, salt=salt)
    if overwrite:
        return job, finished((), job.fingerprint[:8])[0]
    if output.job_file.exists():
        job = replace(read_job(output), model=job.model)
    units, _ = finished(output.units.list(), job.fingerprint[:8])
    claim(
        output.root,
        output.job_file.name,
        replace(job, config=config).fingerprint,
        job="the same job",
        results=[output.units.name],
        difference="" if job.config == config else difference(OLDER | job.config, OLDER | config),
    )
    files_now = {f.uri: f for f in files}
    for old in job.files:
        if files_now.get(old.uri) != old:
            what = "has changed" if old.uri in files_now else "is missing"
            raise RequestError(
                f"--input: expected {old.uri} as it was when {output.root.uri} was started, but it {what}; "
                "put it back, choose another output folder or pass --overwrite"
            )
    known = set(job.files)
    return replace(job, files=job.files + [f for f in files if f not in known]), units


def difference(recorded: object, requested: object, path: str = "") -> str:
    """Where two configurations first differ, in words."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for key in sorted(recorded.keys() | requested.keys()):
            if recorded.get(key) != requested.get(key):
                return difference(recorded.get(key), requested.get(key), f"{path}.{key}".lstrip("."))
    path = SHOWN.get(path, path)
    return f"{path}: {visible(recorded, MOST_LABEL)} there, {visible(requested, MOST_LABEL)} requested"


def cut(start: int, rows: int, unit_rows: int) -> Iterator[RowRange]:
    """The rows [start, end) of the units of a span, of nearly equal size."""
    units = max(1, round(rows / unit_rows))
    return pairwise(start + rows * i // units for i in range(units + 1))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The spans of the input, and the finished units: what is left follows from both, and is never held as a whole.

    spans: (S, 7) int64: the columns `COLUMNS`, and a number that spans which are read as one have in common.
    """

    job_file: JobFile
    spans: np.ndarray
    done: Units
    unit_rows: int
    rows: list[int]  # of each file, within the limit; small files that share units count as the first of them
    learned: list[str]  # what names each file whose spans are saved, else ""; empty where an earlier run knew them all

    def spans_left(self) -> Iterator[PlannedSpan]:
        """The spans that have units left to do, with these, in the order of the input."""
        some = range(0, len(self.spans), AT_ONCE)
        every = (span for first in some for span in self.spans[first : first + AT_ONCE].tolist())
        for _, together in groupby(every, key=itemgetter(-1)):
            values = [*together]
            file, start, rows = values[0][FILE], values[0][START], sum(span[ROWS] for span in values)
            last = self.rows[file]
            units = ((a, min(b, last)) for a, b in cut(start, rows, self.unit_rows) if a < last)
            if left := tuple(gap for a, b in units for gap in self.done.gaps(file, a, b)):
                spans = tuple(Span(**dict(zip(COLUMNS, span, strict=False))) for span in values)
                whole = spans[0]
                if len(spans) > 1:
                    size = sum(span.bytes for span in spans)
                    whole = Span(file=file, start=0, rows=rows, at=0, length=0, bytes=size, spans=spans)
                yield PlannedSpan(files=tuple(self.job_file.files[s.file] for s in spans), span=whole, units=left)

    def __len__(self) -> int:
        """Rows within the limit that are in no finished unit."""
        return self.done.missing(self.rows)

    @cached_property
    def units(self) -> int:
        """Number of units left to do."""
        return sum(len(span.units) for span in self.spans_left())

    def spans_together(self) -> Iterator[list[PlannedSpan]]:
        """The spans left, in lists of which each is one task of Ray: few are read again when a node is lost."""
        together: list[PlannedSpan] = []
        size = units = 0
        for span in self.spans_left():
            together.append(span)
            size += span.span.bytes
            units += len(span.units)
            if size >= SPAN_BYTES or units >= UNITS_TOGETHER:
                yield together
                together, size, units = [], 0, 0
        if together:
            yield together

    def save_spans(self, file: Location) -> None:
        """Save how whole files are cut, where that is new, so that a resumed job need not read them to plan."""
        if self.learned:
            key_S = pa.array(self.learned).take(pa.array(self.spans[:, FILE]))
            saved = pa.table([key_S, *self.spans.T[:-1]], schema=SAVED)
            file.put(parquet_bytes(saved.filter(pc.not_equal(key_S, "")) if "" in self.learned else saved))


def make_plan(request: Request, job: JobFile, done: Units) -> Plan:
    """Cut the input of the job into spans; those of neighbouring small files are read as one."""
    known = {} if request.overwrite else _saved_spans(request.output.spans)
    values, keys, totals, within = array("q"), list[str](), array("q"), array("q")
    for spans_S6, key, rows in _cut(request, job, known):
        values.frombytes(spans_S6.tobytes())
        keys.append(key if len(spans_S6) else "")
        totals.append(int(spans_S6[:, ROWS].sum()))
        within.append(rows)
    if not sum(within):
        got = f"{len(job.files)} files, the first {job.files[0].uri}"
        raise RequestError(f"--input: expected rows, got none in {got}")
    small_F = np.array([bool(key) for key in keys]) & (np.array(totals) < job.sharing.rows)
    first_F = np.array([*_first_files(totals, small_F.tolist(), job.sharing)])
    rows_F = np.bincount(first_F, weights=within, minlength=len(keys)).astype(np.int64)
    spans_S6 = np.frombuffer(values, np.int64).reshape(-1, len(COLUMNS))
    file_S = spans_S6[:, FILE]
    alone_S = ~small_F[file_S]
    begins_S = alone_S | (np.diff(first_F[file_S], prepend=-1) != 0) | np.roll(alone_S, 1)
    return Plan(
        job_file=job,
        spans=np.column_stack([spans_S6, np.cumsum(begins_S)]),
        done=done,
        unit_rows=request.unit_rows,
        rows=rows_F.tolist(),
        learned=keys if {*keys} - known.keys() - {""} else [],
    )


def _first_files(totals: Iterable[int], small: Iterable[bool], sharing: Sharing) -> Iterator[int]:
    """For each file the first of the small neighbours that share its units, else itself; empty ones do not count."""
    first = files = rows = 0
    for file, (total, is_small) in enumerate(zip(totals, small, strict=True)):
        if not total:
            yield file
            continue
        if not (is_small and 0 < files < sharing.files and rows + total <= sharing.rows):
            first, files, rows = file, 0, 0
        files, rows = files + is_small, rows + total
        yield first


def _cut(request: Request, job: JobFile, known: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, str, int]]:
    """Of each file up to the limit: spans (S, 6), what names it ("" if they miss its end), rows in the limit."""
    left = float("inf") if request.limit is None else request.limit
    span_bytes = max(SPAN_BYTES, sum(f.size for f in job.files) // MOST_SPANS)

    def spans_of(entry: tuple[int, InputFile]) -> tuple[np.ndarray, str]:
        number, file = entry
        key = fingerprint([number, vars(file), request.unit_rows])[:16]
        if key in known:
            return known[key], key
        spans: list[list[int]] = []
        most, columns = max(left, job.sharing.rows), request.encoding.pairs.columns
        source = source_of(file, number)
        with source.reading():
            for span in source.splits(columns, unit_rows=request.unit_rows, span_bytes=span_bytes, most_rows=most):
                spans.append([getattr(span, name) for name in COLUMNS])
                if span.start + span.rows >= most:  # the limit ends here
                    key = ""
                    break
        return np.array(spans, np.int64).reshape(-1, len(COLUMNS)), key

    with ThreadPoolExecutor(READERS) as pool:
        entries = iter(enumerate(job.files))
        ahead = 8  # few files are read for nothing if the limit is small
        while left > 0 and (batch := list(islice(entries, ahead))):
            for spans_S6, key in pool.map(spans_of, batch):
                within = int(min(left, spans_S6[:, ROWS].sum()))
                left -= within
                yield spans_S6, key, within
            ahead = min(FILES_AT_ONCE, 2 * ahead)


def _saved_spans(file: Location) -> dict[str, np.ndarray]:
    """The spans (S, 6) that an earlier plan learned, by what names their file; none where they were not saved."""
    if not file.exists():
        return {}
    data = file.read()
    try:
        saved = parquet_table(data)
    except (OSError, pa.ArrowException):  # OSError: of Arrow, no store is asked here
        return {}
    if saved.schema != SAVED:  # not written by a job: it will be replaced
        return {}
    runs = pc.run_end_encode(saved["of"].combine_chunks())
    spans_S6 = np.stack([saved[name].to_numpy() for name in COLUMNS], axis=1)
    return dict(zip(runs.values.to_pylist(), np.split(spans_S6, runs.run_ends[:-1]), strict=True))
