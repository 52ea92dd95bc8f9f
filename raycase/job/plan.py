"""The plan of a job: new, or the one to resume. Its input is cut into spans, spans into units; finished units are left
out."""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby, islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.io.inputs import source_of
from raycase.io.places import claim
from raycase.io.schema import parquet_bytes, parquet_table
from raycase.io.source import InputFile, Span
from raycase.io.storage import Location, fingerprint
from raycase.job.output import JobFile, Sharing, read_job
from raycase.job.unit_files import Units, finished
from raycase.job.units import Piece

if TYPE_CHECKING:  # its import takes seconds, and workers do not need it
    from raycase.job.request import Request

SPANS, TASK_BYTES = 2000, 16 * 2**20  # of a text file: about the most spans, the fewest bytes of a span
TASK_UNITS = 16  # of a task, at most, but for the units of one span
AT_ONCE = 4096  # spans that are objects at a time
OLDER = {"on_unknown": "embed"}  # what jobs mean that do not say it
READERS, FILES_AT_ONCE = 32, 256  # threads that cut files into spans, and how many files they are ahead
COLUMNS = [field.name for field in fields(Span) if field.name != "parts"]
FILE, START, ROWS = (COLUMNS.index(name) for name in ("file", "start", "rows"))
SAVED = pa.schema({"of": pa.string()} | dict.fromkeys(COLUMNS, pa.int64()))  # of: what tells the file of a span


def find_job_file(request: Request) -> tuple[JobFile, Units]:
    """The job to run in the output folder, and its finished units: a new job, or the one to resume with new input files
    last.

    Raises RequestError if the folder holds another job's output, or if a known input file has changed or is missing.
    """
    output, files, overwrite = request.output, request.files, request.flags.overwrite
    config = json.loads(json.dumps(request.config, default=str))
    sharing, salt = Sharing(rows=request.unit_rows), uuid.uuid4().hex if overwrite else ""
    job = JobFile(config=config, files=list(files), model=request.model.model, sharing=sharing, salt=salt)
    if overwrite:
        return job, finished((), job.fingerprint8)[0]
    if output.job_file.exists():
        job = replace(read_job(output), model=job.model)
    units, _ = finished(output.units.list(), job.fingerprint8)
    claim(
        output.root,
        output.job_file.name,
        replace(job, config=config).fingerprint,
        job="the same job",
        results=[output.units.name],
        difference="" if job.config == config else _difference(OLDER | job.config, OLDER | config),
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


def _difference(recorded: Any, requested: Any, path: str = "") -> str:
    """Where two configurations first differ, in words."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for key in sorted(recorded.keys() | requested.keys()):
            if recorded.get(key) != requested.get(key):
                return _difference(recorded.get(key), requested.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: {visible(recorded, MOST_LABEL)} there, {visible(requested, MOST_LABEL)} requested"


def cut(start: int, rows: int, unit_rows: int) -> Iterator[tuple[int, int]]:
    """Row intervals [start, end) of the units of a span, of nearly equal size."""
    units = max(1, round(rows / unit_rows))
    return pairwise(start + rows * i // units for i in range(units + 1))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The spans of the input, and the finished units. What is left follows from both, and is never held as a whole.

    spans: the columns `COLUMNS` of the S spans of all files, and a number that those of a small file, or of several
    that are read as one, have in common: (S, 7) int64.
    """

    job_file: JobFile
    spans: np.ndarray
    done: Units
    unit_rows: int
    rows: list[int]  # of each file, within the limit; small files that share units count as the first of them
    learned: list[str]  # what tells each file whose spans are saved, else ""; empty where an earlier run knew them all

    def pieces(self) -> Iterator[Piece]:
        """The spans that have units left to do, with these, in the order of the input."""
        parts_of = range(0, len(self.spans), AT_ONCE)
        every = (span for first in parts_of for span in self.spans[first : first + AT_ONCE].tolist())
        for _, group in groupby(every, key=itemgetter(-1)):
            spans = [*group]
            file, start, rows = spans[0][FILE], spans[0][START], sum(span[ROWS] for span in spans)
            last = self.rows[file]
            units = ((a, min(b, last)) for a, b in cut(start, rows, self.unit_rows) if a < last)
            if left := tuple(gap for a, b in units for gap in self.done.gaps(file, a, b)):
                parts = tuple(Span(**dict(zip(COLUMNS, span, strict=False))) for span in spans)
                whole = parts[0]
                if len(parts) > 1:
                    size = sum(part.bytes for part in parts)
                    whole = Span(file=file, start=0, rows=rows, at=0, length=0, bytes=size, parts=parts)
                yield Piece(files=tuple(self.job_file.files[part.file] for part in parts), span=whole, units=left)

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

    def save_spans(self, file: Location) -> None:
        """Save how whole files are cut, where that is new, so that a resumed job need not read them to plan."""
        if self.learned:
            key_S = pa.array(self.learned).take(pa.array(self.spans[:, FILE]))
            saved = pa.table([key_S, *self.spans.T[:-1]], schema=SAVED)
            file.put(parquet_bytes(saved.filter(pc.not_equal(key_S, "")) if "" in self.learned else saved))


def make_plan(request: Request, job: JobFile, done: Units) -> Plan:
    """Cut the input of the job into spans; those of neighbouring small files are read as one.

    Raises RequestError for an unreadable file, and an input without rows.
    """
    known = {} if request.flags.overwrite else _saved_spans(request.output.spans)
    values, keys, rows = array("q"), list[str](), list[int]()
    number = first = count = size = 0  # of the last span; of the small files in it: the first, how many, and their rows
    for spans_S6, key, within in _cut(request, job, known):
        keys.append(key if len(spans_S6) else "")
        rows.append(within)
        if not len(spans_S6):
            continue
        total = int(spans_S6[:, ROWS].sum())
        is_small = bool(key) and total < job.sharing.rows  # whatever the size of the units
        if is_small and 0 < count < job.sharing.files and size + total <= job.sharing.rows:
            count, size = count + 1, size + total
            rows[first], rows[-1] = rows[first] + within, 0
        else:
            number, first, count, size = number + 1, len(rows) - 1, int(is_small), total
        number_S = np.full(len(spans_S6), number) if is_small else number + np.arange(len(spans_S6))
        number = int(number_S[-1])
        values.frombytes(np.column_stack([spans_S6, number_S]).tobytes())
    if not sum(rows):
        got = f"{len(job.files)} files, the first {job.files[0].uri}"
        raise RequestError(f"--input: expected rows, got none in {got}")
    spans_S7 = np.frombuffer(values, np.int64).reshape(-1, len(COLUMNS) + 1)
    learned = keys if {*keys} - known.keys() - {""} else []
    return Plan(job_file=job, spans=spans_S7, done=done, unit_rows=request.unit_rows, rows=rows, learned=learned)


def _cut(request: Request, job: JobFile, known: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, str, int]]:
    """The spans (S, 6) of each file up to the limit; what tells the file, "" where they do not reach its end; and its
    rows within the limit. `known`: the spans of files that an earlier run cut, by what tells them."""
    left = request.flags.limit if request.flags.limit is not None else float("inf")
    span_bytes = max(TASK_BYTES, sum(f.size for f in job.files) // SPANS)

    def spans_of(entry: tuple[int, InputFile]) -> tuple[np.ndarray, str]:
        number, file = entry
        key = fingerprint([number, vars(file), request.unit_rows])[:16]
        if key in known:
            return known[key], key
        spans: list[list[int]] = []
        most, columns = max(left, job.sharing.rows), request.kind.columns
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
    """The spans (S, 6) that an earlier plan learned, by what tells their file; none where they were not saved."""
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
