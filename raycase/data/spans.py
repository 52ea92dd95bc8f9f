"""Spans: consecutive rows of a file that are fetched at once and cut into units.

A span is some row groups of a Parquet file, a byte range of a JSONL file, some rows of a Lance dataset,
whatever fragments they are in, or a whole file of CSV or of compressed text.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.data.columns import Columns, check_columns, parquet_footer
from raycase.data.inputs import LANCE, PARQUET, InputFile, readable
from raycase.data.lance_dataset import SPAN_ROWS, at_version
from raycase.data.texts import csv_batches, csv_header, json_lines, text_stream


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows [start, start + rows) of a file, fetched once.

    `at` and `length` are row groups for Parquet, rows for Lance, and bytes for JSONL.
    """

    file: int
    start: int
    rows: int
    at: int
    length: int
    bytes: int  # to fetch, about
    parts: tuple[Span, ...] = ()  # of several small files; its rows are theirs, one after the other


def plan_file(
    index: int, file: InputFile, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf
) -> Iterator[Span]:
    """Cut a file into spans of at least `unit_rows` rows, except the last one.

    Texts are read once, lazily: only as far as spans are taken. A CSV or compressed file is one span, of at most
    `most_rows` rows. Raises RequestError for a file that cannot be read or lacks a column.
    """
    if file.format == PARQUET:
        metadata = parquet_footer(file)
        check_columns(metadata.schema.to_arrow_schema(), columns, file)
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
        stream = text_stream(handle, file.ending)
        if file.format == ".csv" or file.compression:
            rows = 0
            for count in _counts(stream, columns, file):
                if (rows := int(min(rows + count, most_rows))) == most_rows:
                    break
            if rows:
                yield Span(file=index, start=0, rows=rows, at=0, length=file.size, bytes=file.size)
            return
        rows = start = at = length = 0
        for line in json_lines(stream):
            length += len(line)
            rows += not line.isspace()
            if rows and rows % unit_rows == 0 and length >= span_bytes and not line.isspace():
                yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length)
                start, at, rows, length = start + rows, at + length, 0, 0
        if rows:
            yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length)


def _counts(stream: io.BufferedReader, columns: Columns, file: InputFile) -> Iterator[int]:
    """The rows of a text, some at a time. Raises RequestError for a CSV file that lacks a column."""
    if file.format != ".csv":
        yield from (not line.isspace() for line in json_lines(stream))
        return
    header = csv_header(stream)
    check_columns(pa.schema([(name, pa.string()) for name in header]), columns, file)
    for rows, _, invalid in csv_batches(stream, header, columns.names[:1]):
        yield len(rows) + len(invalid)


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
