"""The read step: spans of the input -> units of checked, tokenised rows. It knows nothing of what runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from raycase.corpus.pair_result import PairResult
from raycase.corpus.records import ReadTask, ReadUnit, SpanUnits, naming
from raycase.corpus.unit_pairs import plain_row, prepare_rows
from raycase.data.columns import Columns
from raycase.data.inputs import InputFile
from raycase.data.reader import FILE, python_rows, read_span, rejection
from raycase.data.schema import Reason, Rejection, in_input_order, rejected_table
from raycase.data.spans import Span
from raycase.encoder.prepared import Prepared
from raycase.errors import RequestError, WorkError, named

READERS = 16  # small files fetched at once


def read_units(task: pa.Table, *, config: Any, kind: PairResult) -> Iterator[pa.Table]:
    """`ReadTask` -> a `ReadUnit` for each of its units, both as Arrow rows.

    Tokenises here, on CPUs and ahead of the encoder, which then never waits for it.
    """
    for part in ReadTask.from_arrow(task).spans:
        units = read_intervals(part, kind.columns)
        for start, end in part.units:
            with naming(f"reading rows {start} to {end} of {part.files[0].uri}"):
                rows, rejected = next(units)
            uri = part.files[0].uri
            rows, prepared, failed = tokenised(config, rows, kind)
            if failed:
                rejected = in_input_order(pa.concat_tables([rejected, rejected_table(uri, failed)]))
            unit = ReadUnit(
                uri=uri,
                file=part.span.file,
                start=start,
                rows_in=end - start,
                rows=rows,
                rejected=rejected,
                prepared=prepared,
                read_pid=os.getpid(),
            )
            yield unit.to_arrow()


def tokenised(config: Any, rows: pa.Table, kind: PairResult) -> tuple[pa.Table, Prepared, list[Rejection]]:
    """The rows of a unit that can be tokenised, their prompts, and those at which the tokenizer fails by itself, as
    at a character that it has no token for.

    Raises WorkError where it fails at any text.
    """
    try:
        return rows, prepare_rows(config, rows, kind), []
    except (RequestError, WorkError):
        raise
    except Exception:
        whys = [_failure(config, rows.slice(row, 1), kind) for row in range(len(rows))]
    if all(whys) and (why := _failure(config, plain_row(config, rows), kind)):
        raise WorkError(f"the tokenizer of {config.model} fails at any text: {why}")
    kept = rows.filter(pa.array([not why for why in whys]))
    failed = [rejection(row, Reason.FAILED, why) for row, why in zip(python_rows(rows), whys, strict=True) if why]
    return kept, prepare_rows(config, kept, kind), failed


def _failure(config: Any, rows: pa.Table, kind: PairResult) -> str:
    """The error of the tokenizer at these rows; "" where there is none."""
    try:
        prepare_rows(config, rows, kind)
    except Exception as error:
        return named(error)
    return ""


def read_intervals(part: SpanUnits, columns: Columns) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span, and those rejected, in order. Raises RequestError for a file that cannot be
    read."""
    if not part.span.parts:
        for rows, rejections in read_span(part.files[0], part.span, columns, part.units):
            yield rows, rejected_table(part.files[0].uri, rejections)
        return
    for start, end in part.units:
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(_read_part, *zip(*_among(part, start, end, columns), strict=True)))
        yield pa.concat_tables(rows for rows, _ in read), pa.concat_tables(rejected for _, rejected in read)


def _among(
    part: SpanUnits, start: int, end: int, columns: Columns
) -> Iterator[tuple[InputFile, Span, Columns, int, int]]:
    """The files that have rows in an interval of a span of several files, and which rows of the file."""
    first = part.span.start
    for file, span in zip(part.files, part.span.parts, strict=True):
        a, b = max(start, first), min(end, first + span.rows)
        if a < b:
            yield file, span, columns, span.start + a - first, span.start + b - first
        first += span.rows


def _read_part(file: InputFile, span: Span, columns: Columns, start: int, end: int) -> tuple[pa.Table, pa.Table]:
    [(rows, rejections)] = read_span(file, span, columns, [(start, end)])
    return rows.append_column(FILE, pa.array([file.uri] * len(rows), pa.string())), rejected_table(file.uri, rejections)
