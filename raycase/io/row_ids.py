"""Rows of an input by one number each, of file and row, and sets of numbers: the checkpoint of a pipeline.

A set is the edges, in order, of disjoint intervals [start, end) of int64. Shapes: I intervals, E edges, N numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

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
SPAN_ROWS = 4096  # at least, of what is read at once
PENDING = ".pending.parquet"  # how Ray calls what is written and not yet committed
FILES = "files.json"  # beside the checkpoint: the files of the input, by number
NONE = np.empty(0, np.int64)


def union(start_I: np.ndarray, end_I: np.ndarray) -> np.ndarray:
    """The edges of intervals in any order, which may overlap."""
    order = np.argsort(start_I, kind="stable")  # quick where they are in order
    start_I, end_I = start_I[order], np.maximum.accumulate(end_I[order])
    apart, some = start_I[1:] > end_I[:-1], slice(len(start_I))
    return np.stack([start_I[np.append(True, apart)[some]], end_I[np.append(apart, True)[some]]], 1).ravel()


def holds(edge_E: np.ndarray, number_N: np.ndarray) -> np.ndarray:
    """Whether each number is in the set, (N,)."""
    return np.searchsorted(edge_E, number_N, side="right") % 2 == 1


def numbers_of(ids: pa.ChunkedArray) -> np.ndarray:
    """A column of ids, (N,). Raises RequestError where not all are integers: a float is near several."""
    if not pa.types.is_integer(ids.type) or ids.null_count:
        raise RequestError(f"expected an id of each row in int64, got {ids.type} with {ids.null_count:,} nulls")
    return ids.cast(pa.int64()).to_numpy()


def committed(fs: pyarrow.fs.FileSystem, folder: str, column: str, rows_per_id: int | None) -> np.ndarray:
    """The numbers in a folder of Parquet files of Ray's checkpoint; rows_per_id: how many rows have one, at most.

    A file with that many rows for each number from its least to its greatest has all these, so its footer suffices.
    """

    def read(info: pyarrow.fs.FileInfo) -> np.ndarray:
        with fs.open_input_file(info.path) as handle, pq.ParquetFile(handle) as file:
            meta, is_int = file.metadata, file.schema_arrow == pa.schema({column: pa.int64()})
            found = [meta.row_group(i).column(0).statistics for i in range(meta.num_row_groups)]
            if rows_per_id and is_int and found and all(each and each.has_min_max for each in found):
                least, end = min(each.min for each in found), max(each.max for each in found) + 1
                if sum(each.num_values for each in found) == rows_per_id * (end - least) == meta.num_rows:
                    return np.array([least, end], np.int64)
            number_N = numbers_of(file.read([column])[column])
            edges = union(number_N, number_N + 1)
            if rows_per_id and len(number_N) > rows_per_id * (edges[1::2] - edges[::2]).sum():
                raise RequestError(f"rows_per_id: expected the most rows of a number, got {rows_per_id}; pass None")
            return edges

    selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
    infos = [i for i in fs.get_file_info(selector) if i.path.endswith(".parquet") and not i.path.endswith(PENDING)]
    with ThreadPoolExecutor(READERS) as pool:
        edges = np.concatenate([NONE, *pool.map(read, infos)])
    return union(edges[::2], edges[1::2])


def numbered(files: Sequence[InputFile], folder: Location) -> list[InputFile]:
    """The files by their numbers, which the checkpoint's folder keeps. Raises RequestError where one has changed."""
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


def spans_of(files: Sequence[InputFile], names: Sequence[str]) -> list[tuple[InputFile, Span]]:
    """What is read at once, in the order of the files. Raises RequestError for one without the columns."""
    columns = Columns(texts=(), id=None, condition=None, keep=tuple(names), types={})

    def cut(number: int) -> list[tuple[InputFile, Span]]:
        source = source_of(files[number], number)
        with source.reading():
            return [(files[number], span) for span in source.splits(columns, unit_rows=SPAN_ROWS, span_bytes=0)]

    with ThreadPoolExecutor(READERS) as pool:
        return [each for cuts in pool.map(cut, range(len(files))) for each in cuts]


def left_of(span: Span, edge_E: np.ndarray) -> np.ndarray | None:
    """The edges that meet a span; None where it is in the set as a whole."""
    start = (span.file << ROW_BITS) + span.start
    first, last = np.searchsorted(edge_E, start, "right"), np.searchsorted(edge_E, start + span.rows)
    return None if first == last and first % 2 else edge_E[first - first % 2 : last + last % 2]


def read_left(parts: Sequence[tuple[InputFile, Span, np.ndarray]], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of spans that are not in a set, their numbers in the last column; first a table of none."""
    yield schema.empty_table()
    *names, id_column = schema.names
    for file, span, edge_E in parts:
        source = source_of(file, span.file)
        with source.reading():
            for block in source.read(names, span):
                number_N = block.numbers + (span.file << ROW_BITS)
                if block.table is None or block.lines:
                    raise RequestError(f"expected Parquet or Lance, got {file.uri}; convert it")
                table = block.table.append_column(id_column, pa.array(number_N))
                yield table.filter(pa.array(~holds(edge_E, number_N)))
