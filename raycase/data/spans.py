"""Spans: consecutive rows of a file that are fetched at once and cut into units.

A span is some row groups of a Parquet file, a byte range of a CSV or JSONL file, or a compressed one as a whole; of a
Lance dataset some rows, whatever fragments they are in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.data.columns import Columns, check_columns, parquet_footer, schema_of
from raycase.data.inputs import LANCE, PARQUET, InputFile, readable
from raycase.data.lance_dataset import SPAN_ROWS, at_version
from raycase.data.textfiles import csv_header, text_lines, text_stream


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows [start, start + rows) of a file, fetched once.

    `at` and `length` are row groups for Parquet, rows for Lance, and bytes for CSV and JSONL, of compressed files those
    in them.
    """

    file: int
    start: int
    rows: int
    at: int
    length: int
    bytes: int  # to fetch, about
    header: tuple[str, ...] = ()  # CSV
    parts: tuple[Span, ...] = ()  # of several small files; its rows are theirs, one after the other


def plan_file(
    index: int, file: InputFile, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf
) -> Iterator[Span]:
    """Cut a file into spans of at least `unit_rows` rows, except the last one.

    CSV and JSONL files are read once, lazily: only as far as spans are taken. A compressed one is a single span, of
    `most_rows` at most. Raises RequestError for a file that cannot be read or lacks a column.
    """
    if file.format == PARQUET:
        metadata = parquet_footer(file)
        check_columns(schema_of(metadata), columns, file)
        yield from _parquet_spans(index, metadata, unit_rows)
        return
    if file.format == LANCE:
        with readable(file):
            dataset = at_version(file.uri, file.mark)
            check_columns(dataset.schema, columns, file)
            rows = dataset.count_rows()
        step = max(unit_rows, SPAN_ROWS)
        for at in range(0, rows, step):
            count = min(step, rows - at)
            yield Span(file=index, start=at, rows=count, at=at, length=count, bytes=file.size * count // rows)
        return
    with readable(file) as source, source.open() as handle:
        stream = text_stream(handle, file.compression)
        header: tuple[str, ...] = ()
        at = 0
        if file.format == ".csv":
            header = csv_header(stream)
            check_columns(pa.schema([(name, pa.string()) for name in header]), columns, file)
            at = stream.tell()
        rows = start = length = 0
        for line in text_lines(stream, file.format, header):
            length += len(line.raw)
            rows += line.is_row
            if file.compression:
                if rows >= most_rows:
                    break
            elif line.is_row and rows % unit_rows == 0 and length >= span_bytes:
                yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length, header=header)
                start, at, rows, length = start + rows, at + length, 0, 0
        if rows:
            yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length, header=header)


def _parquet_spans(index: int, metadata: pq.FileMetaData, unit_rows: int) -> Iterator[Span]:
    start = rows = at = size = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        size += metadata.row_group(group).total_byte_size
        if rows >= unit_rows or (rows and group == metadata.num_row_groups - 1):
            yield Span(file=index, start=start, rows=rows, at=at, length=group + 1 - at, bytes=size)
            start, at, rows, size = start + rows, group + 1, 0, 0


def cut(span: Span, unit_rows: int) -> Iterator[tuple[int, int]]:
    """Row intervals [start, end) of the units of a span, of nearly equal size."""
    units = max(1, round(span.rows / unit_rows))
    edges = [span.start + span.rows * i // units for i in range(units + 1)]
    return pairwise(edges)
