"""Rows of an input by one number each, of file and row, and sets of numbers as intervals: the checkpoint of a pipeline.

Shapes: I intervals, N numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from raycase.errors import RequestError
from raycase.io.inputs import source_of
from raycase.io.schema import Columns
from raycase.io.source import InputFile, Span
from raycase.io.storage import Location

ROW_BITS = 40  # of a number; those above are the file's
READERS = 32  # footers read at once
SPAN_ROWS, SPAN_BYTES = 4096, 16 * 2**20  # at least, of what is read at once
PENDING = ".pending.parquet"  # how Ray calls what is written and not yet committed
FILES = "files.json"  # beside the checkpoint: the files of the input, by number
EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True)
class Intervals:
    """A set of int64: disjoint intervals [start, end), in order, (I,) each. A million take 16 MB."""

    starts: np.ndarray = field(default_factory=EMPTY.copy)
    ends: np.ndarray = field(default_factory=EMPTY.copy)

    @classmethod
    def union(cls, start_I: np.ndarray, end_I: np.ndarray) -> Intervals:
        """Of intervals in any order, which may overlap."""
        order = np.argsort(start_I, kind="stable")  # quick where they are in order
        start_I, end_I = start_I[order], np.maximum.accumulate(end_I[order])
        first = np.flatnonzero(np.append(True, start_I[1:] > end_I[:-1]))[: len(start_I)]
        return cls(start_I[first], end_I[np.append(first[1:], len(end_I)) - 1] if len(first) else EMPTY)

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.ends.nbytes

    def holds(self, number_N: np.ndarray) -> np.ndarray:
        """Whether each number is in the set, (N,)."""
        at_N = np.searchsorted(self.starts, number_N, side="right") - 1
        return (at_N >= 0) & (number_N < np.append(self.ends, 0)[at_N])

    def gaps(self, start: int, end: int) -> Intervals:
        """What [start, end) has that the set lacks."""
        first, last = np.searchsorted(self.ends, start, side="right"), np.searchsorted(self.starts, end)
        start_I, end_I = np.append(start, self.ends[first:last]), np.append(self.starts[first:last], end)
        return Intervals(start_I[start_I < end_I], end_I[start_I < end_I])


def committed(fs: pyarrow.fs.FileSystem, folder: str, column: str, rows_per_id: int | None) -> Intervals:
    """The numbers in a folder of Parquet files of Ray's checkpoint, by their footers where these suffice.

    rows_per_id: how many rows have one number, at most. A file with that many for each number from its least to its
    greatest has all of these. None: unknown, so all numbers are read, as they are of other files.
    """

    def read(info: pyarrow.fs.FileInfo) -> Intervals:
        with fs.open_input_file(info.path) as handle, pq.ParquetFile(handle) as file:
            at = file.schema_arrow.get_field_index(column)
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            bounds = [group.column(at).statistics for group in groups]
            if rows_per_id and bounds and all(each is not None and each.has_min_max for each in bounds):
                least, end = min(each.min for each in bounds), max(each.max for each in bounds) + 1
                if file.metadata.num_rows == rows_per_id * (end - least):
                    return Intervals(np.array([least], np.int64), np.array([end], np.int64))
            number_N = file.read([column])[column].to_numpy()
            return Intervals.union(number_N, number_N + 1)

    selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
    infos = [i for i in fs.get_file_info(selector) if i.path.endswith(".parquet") and not i.path.endswith(PENDING)]
    with ThreadPoolExecutor(READERS) as pool:
        found = [*pool.map(read, infos)]
    starts, ends = ([getattr(each, name) for each in found] for name in ("starts", "ends"))
    return Intervals.union(np.concatenate([EMPTY, *starts]), np.concatenate([EMPTY, *ends]))


def numbered(files: Sequence[InputFile], folder: Location) -> list[InputFile]:
    """The files in the order of their numbers, which are kept in the checkpoint's folder: new ones are the last.

    Raises RequestError where one has changed or is missing.
    """
    record, now = folder / FILES, {file.uri: file for file in files}
    known = [InputFile(**values) for values in record.read_json()] if record.exists() else []
    for old in known:
        if now.pop(old.uri, None) != old:
            raise RequestError(
                f"expected {old.uri} as it was when the checkpoint {folder.uri} began, got another or none; put it "
                "back or choose another checkpoint"
            )
    if now:
        record.put_json([vars(file) for file in (*known, *now.values())])
    return [*known, *now.values()]


@dataclass(frozen=True, kw_only=True)
class RowsLeft:
    """Rows of a span that no checkpoint has."""

    file: InputFile
    span: Span
    left: Intervals

    def read(self, names: Sequence[str], id_column: str) -> Iterator[pa.Table]:
        """These columns of the rows, and their numbers."""
        source = source_of(self.file, self.span.file)
        with source.reading():
            for block in source.read(names, self.span):
                number_N = block.numbers + (self.span.file << ROW_BITS)
                if block.table is None or block.lines:
                    raise RequestError(f"expected Parquet or Lance, got {self.file.uri}; convert it")
                table = block.table.append_column(id_column, pa.array(number_N))
                yield table.filter(pa.array(self.left.holds(number_N)))


def rows_left(files: Iterable[InputFile], names: Sequence[str], done: Intervals) -> Iterator[RowsLeft]:
    """What is left of each span, in the order of the input. Raises RequestError for a file without the columns."""
    columns = Columns(texts=(), id=None, condition=None, keep=tuple(names), types={})
    for number, file in enumerate(files):
        source = source_of(file, number)
        with source.reading():
            for span in source.splits(columns, unit_rows=SPAN_ROWS, span_bytes=SPAN_BYTES):
                start = (number << ROW_BITS) + span.start
                left = done.gaps(start, start + span.rows)
                if len(left.starts):
                    yield RowsLeft(file=file, span=span, left=left)
