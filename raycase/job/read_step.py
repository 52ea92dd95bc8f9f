"""The read step: spans of the input -> units of checked rows, their pairs tokenised. Knows nothing of what runs it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.encoder.chunks import Chunking
from raycase.encoder.prepared import Prepared
from raycase.errors import RequestError, WorkError, named
from raycase.io.columns import Columns
from raycase.io.inputs import source_of
from raycase.io.reader import CHUNKS, CONDITIONS, FILE, TEXT, TEXTS, python_rows, read_span, rejection
from raycase.io.schema import END, START, Reason, Rejection, in_input_order, rejected_table
from raycase.io.source import InputFile, Span
from raycase.job.documents import SPANS, as_texts, bounded
from raycase.job.pair_result import PairResult
from raycase.job.records import Interval, ReadTask, ReadUnit, SpanUnits, naming
from raycase.models.pairs import Indexed

READERS = 16  # small files fetched at once


def read_units(task: ReadTask, *, config: Any, kind: PairResult) -> Iterator[ReadUnit]:
    """Read the units of a task, and tokenise them: on CPUs and ahead of the encoder, which then never waits for it."""
    for part in task.spans:
        units = read_intervals(part, config, kind)
        uri, files = part.files[0].uri, {file.uri: number for number, file in enumerate(part.files)}
        for start, end in part.units:
            with naming(f"reading rows {start} to {end} of {uri}"):
                read = next(units)
            for first, last, rows, rejected in bounded(files, start, end, *read, kind):
                rows, prepared, failed = tokenised(config, rows, kind)
                if failed:
                    rejected = in_input_order(pa.concat_tables([rejected, rejected_table(uri, failed)]))
                yield ReadUnit(
                    uri=uri,
                    file=part.span.file,
                    start=first,
                    rows_in=last - first,
                    rows=rows,
                    rejected=rejected,
                    prepared=prepared,
                )


def read_row(task: pa.Table, *, config: Any, kind: PairResult) -> Iterator[pa.Table]:
    """`read_units` in a task of Ray: it stands here so that a reader imports no more than it needs."""
    for unit in read_units(ReadTask.from_arrow(task), config=config, kind=kind):
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
        whys = {row: why for row in range(len(rows)) if (why := _failure(config, rows.slice(row, 1), kind))}
    if len(whys) == len(rows) and (why := _failure(config, plain_row(config, rows), kind)):
        raise WorkError(f"the tokenizer of {config.model} fails at any text: {why}")
    kept, failed = without(rows, whys, Reason.FAILED)
    return kept, prepare_rows(config, kept, kind), failed


def without(rows: pa.Table, whys: dict[int, str], reason: Reason) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows without some, and these as rejections; `whys`: the detail by the number of the row."""
    kept = rows.filter(pa.array([row not in whys for row in range(len(rows))], pa.bool_()))
    return kept, [rejection(python_rows(rows.slice(row, 1))[0], reason, why) for row, why in whys.items()]


def _failure(config: Any, rows: pa.Table, kind: PairResult) -> str:
    """The error of the tokenizer at these rows; "" where there is none."""
    try:
        prepare_rows(config, rows, kind)
    except Exception as error:
        return named(error)
    return ""


def read_intervals(part: SpanUnits, config: Any, kind: PairResult) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span, with their chunks where the job cuts them, and those rejected, in order. Raises
    RequestError for a file that cannot be read."""
    for rows, rejected in _intervals(part, kind.columns):
        if kind.chunking is not None:
            rows, empty = with_chunks(rows, config, kind.chunking)
            rejected = in_input_order(pa.concat_tables([rejected, rejected_table(part.files[0].uri, empty)]))
        yield rows, rejected


def with_chunks(rows: pa.Table, config: Any, chunking: Chunking) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows with the chunks of their texts in the column `CHUNKS`, and those that have nothing to be seen."""
    cut = [
        [{START: start, END: end} for start, end in chunking.cut(config.encoder, text)]
        for text in rows[TEXT].to_pylist()
    ]
    empty = {row: "nothing that can be seen" for row, chunks in enumerate(cut) if not chunks}
    return without(rows.append_column(CHUNKS, pa.array(cut, SPANS)), empty, Reason.EMPTY_TEXT)


def _intervals(part: SpanUnits, columns: Columns) -> Iterator[tuple[pa.Table, pa.Table]]:
    if not part.span.parts:
        for rows, rejections in read_span(source_of(part.files[0]), part.span, columns, part.units):
            yield rows, rejected_table(part.files[0].uri, rejections)
        return
    for start, end in part.units:
        first, among = part.span.start, []  # the files that have rows in the unit, and which rows of the file
        for file, span in zip(part.files, part.span.parts, strict=True):
            a, b = max(start, first), min(end, first + span.rows)
            if a < b:
                among.append((file, span, columns, [(span.start + a - first, span.start + b - first)]))
            first += span.rows
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(_read_part, *zip(*among, strict=True)))
        yield pa.concat_tables(rows for rows, _ in read), pa.concat_tables(rejected for _, rejected in read)


def _read_part(file: InputFile, span: Span, columns: Columns, unit: list[Interval]) -> tuple[pa.Table, pa.Table]:
    [(rows, rejections)] = read_span(source_of(file), span, columns, unit)
    return rows.append_column(FILE, pa.array([file.uri] * len(rows), pa.string())), rejected_table(file.uri, rejections)


def pairs_of(rows: pa.Table, kind: PairResult) -> tuple[np.ndarray, Indexed | None]:
    """The row of each pair in a table of texts, (N,), and the pairs' conditions (None: unconditional)."""
    row_R = np.arange(len(rows))
    if kind.unconditional:
        return row_R, None
    if kind.conditions is not None:
        count = len(kind.conditions)
        return np.repeat(row_R, count), Indexed(values=kind.conditions, codes=np.tile(np.arange(count), len(rows)))
    lists = rows[CONDITIONS].combine_chunks()
    row_N = np.repeat(row_R, lists.value_lengths().to_numpy(zero_copy_only=False))
    return row_N, _indexed(pa.chunked_array([lists.flatten()]))


def prepare_rows(config: Any, rows: pa.Table, kind: PairResult) -> Prepared:
    """Tokenise the pairs of a unit for a system. Loads no weights."""
    rows, _ = as_texts(rows, kind)
    row_N, conditions = pairs_of(rows, kind)
    texts = [_indexed(rows[name]).take(row_N) for name in TEXTS[: len(kind.columns.texts)]]
    return kind.prepare(config, texts, conditions)


def plain_row(config: Any, rows: pa.Table) -> pa.Table:
    """The first row with texts and conditions that any system can encode, to tell a row's fault from the model's."""
    row = rows.slice(0, 1).select([name for name in rows.column_names if name != CHUNKS])
    plain = dict.fromkeys(TEXTS, "a") | {CONDITIONS: [*(config.known_conditions or ()), "a"][:1]}
    for name in plain.keys() & set(rows.column_names):
        row = row.set_column(row.schema.get_field_index(name), name, pa.array([plain[name]], row[name].type))
    return row


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))
