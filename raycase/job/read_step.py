"""The read step: spans of the input -> units of checked rows, their pairs tokenised. Knows nothing of what runs it.

With `--chunk` a row is a document: a unit's table has its chunks in a column, each of which is a text to encode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.chunks import Chunking
from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, WorkError
from raycase.io.inputs import source_of
from raycase.io.reader import CHUNKS, CONDITIONS, FILE, KEEP, ROW, TEXTS, python_rows, read_span, rejection
from raycase.io.schema import CHUNK, DOCUMENT, END, ID, START, TEXT, Columns, Reason, Rejection, rejected_table
from raycase.io.source import InputFile, Span
from raycase.job.pair_result import PairResult
from raycase.job.units import Interval, Piece, ReadUnit, naming, pieces_from_arrow
from raycase.models.pairs import Indexed

READERS = 16  # small files fetched at once
PAIRS_OF_UNIT = 32768  # of documents, at most; a document that has more is a unit of its own
SPANS = pa.list_(pa.struct([(START, pa.int64()), (END, pa.int64())]))  # characters [start, end) of the chunks


def read_units(pieces: Iterable[Piece], *, config: Any, kind: PairResult) -> Iterator[ReadUnit]:
    """Read the units of a task, and tokenise them: on CPUs and ahead of the encoder, which then never waits for it."""
    for piece in pieces:
        units = read_intervals(piece, config, kind)
        uri, files = piece.files[0].uri, {file.uri: number for number, file in enumerate(piece.files)}
        for start, end in piece.units:
            with naming(f"reading rows {start} to {end} of {uri}"):
                read = next(units)
            for first, last, rows, rejected in bounded(files, start, end, *read, kind):
                try:
                    prepared = prepare_rows(config, rows, kind)
                except (RequestError, WorkError, OSError, MemoryError):
                    raise
                except Exception:  # of the tokenizer itself, as at a character that it has no token for
                    prepared = None
                yield ReadUnit(
                    uri=uri,
                    file=piece.span.file,
                    start=first,
                    rows_in=last - first,
                    rows=rows,
                    rejected=rejected,
                    prepared=prepared,
                )


def read_arrow(task: pa.Table, *, config: Any, kind: PairResult) -> Iterator[pa.Table]:
    """`read_units` in a task of Ray: it stands here so that a reader imports no more than it needs."""
    for unit in read_units(pieces_from_arrow(task), config=config, kind=kind):
        yield unit.to_arrow()


def without(rows: pa.Table, whys: dict[int, str], reason: Reason) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows without some, and these as rejections; `whys`: the detail by the number of the row."""
    kept = rows.filter(pa.array([row not in whys for row in range(len(rows))], pa.bool_()))
    return kept, [rejection(python_rows(rows.slice(row, 1))[0], reason, why) for row, why in whys.items()]


def read_intervals(piece: Piece, config: Any, kind: PairResult) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span, with their chunks where the job cuts them, and those rejected, in order. Raises
    RequestError for a file that cannot be read."""
    for rows, rejected in _intervals(piece, kind.columns):
        if kind.chunking is not None:
            rows, empty = with_chunks(rows, config, kind.chunking)
            rejected = rejected_table(piece.files[0].uri, empty, rejected)
        yield rows, rejected


def with_chunks(rows: pa.Table, config: Any, chunking: Chunking) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows with the chunks of their texts in the column `CHUNKS`, and those that have nothing to be seen."""
    cut = [
        [{START: start, END: end} for start, end in chunking.cut(config.encoder, text)]
        for text in rows[TEXT].to_pylist()
    ]
    empty = {row: "nothing that can be seen" for row, chunks in enumerate(cut) if not chunks}
    return without(rows.append_column(CHUNKS, pa.array(cut, SPANS)), empty, Reason.EMPTY_TEXT)


def _intervals(piece: Piece, columns: Columns) -> Iterator[tuple[pa.Table, pa.Table]]:
    if not piece.span.parts:
        for rows, rejections in read_span(source_of(piece.files[0]), piece.span, columns, piece.units):
            yield rows, rejected_table(piece.files[0].uri, rejections)
        return
    for start, end in piece.units:
        first, among = piece.span.start, []  # the files that have rows in the unit, and which rows of the file
        for file, span in zip(piece.files, piece.span.parts, strict=True):
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


def bounded(
    files: dict[str, int], start: int, end: int, rows: pa.Table, rejected: pa.Table, kind: PairResult
) -> Iterator[tuple[int, int, pa.Table, pa.Table]]:
    """Cut the unit of rows [start, end), where they have chunks, into units of at most `PAIRS_OF_UNIT` pairs: first row
    and end of each, its rows and those rejected. `files`: the unit's, in their order.

    Where a unit ends depends on the rows from its start on alone, so a resumed job, which reads from the end of a unit
    on, cuts alike.
    """
    if kind.chunking is None:
        yield start, end, rows, rejected
        return

    def places(table: pa.Table) -> list[tuple[int, int]]:
        file = table[FILE].to_pylist() if FILE in table.column_names else [next(iter(files))] * len(table)
        return [(files[uri], row) for uri, row in zip(file, table[ROW].to_pylist(), strict=True)]

    good, bad = places(rows), places(rejected)
    chunks = rows[CHUNKS].combine_chunks().value_lengths().to_pylist()
    pairs = dict.fromkeys(bad, 0) | dict(zip(good, chunks, strict=True))
    order, most, size, edges = sorted(pairs), PAIRS_OF_UNIT // len(kind.conditions or "a"), 0, [0]
    for number, place in enumerate(order):
        size += pairs[place]
        if size > most and number > edges[-1]:
            edges.append(number)
            size = pairs[place]
    for first, last in pairwise([*edges, len(order)]):
        unit = {*order[first:last]}
        good_rows, bad_rows = (
            table.filter(pa.array([place in unit for place in of], pa.bool_()))
            for table, of in ((rows, good), (rejected, bad))
        )
        yield start + first, start + last, good_rows, bad_rows


def text_rows(rows: pa.Table, kind: PairResult) -> tuple[pa.Table, np.ndarray]:
    """The T texts of a unit that are encoded, a row each: its rows or, under the id `DOCUMENT#NUMBER`, their chunks;
    and the row of each text, (T,)."""
    if kind.chunking is None:
        return rows, np.arange(len(rows))
    chunks, whole = rows[CHUNKS].combine_chunks(), rows[TEXT].to_pylist()
    count_R = chunks.value_lengths().to_numpy()
    row_T = np.repeat(np.arange(len(rows)), count_R)
    number_T = pa.array(np.arange(len(row_T)) - np.repeat(np.cumsum(count_R) - count_R, count_R))
    start_T, end_T = (chunks.flatten().field(name) for name in (START, END))
    spans = zip(row_T.tolist(), start_T.to_pylist(), end_T.to_pylist(), strict=True)
    text_T = pa.array([whole[row][start:end] for row, start, end in spans], pa.string())
    kept_text = f"{KEEP}{kind.columns.texts[0]}"
    texts = rows.drop_columns([n for n in (TEXT, CHUNKS, kept_text) if n in rows.column_names]).take(row_T)
    id_T = pc.binary_join_element_wise(texts[ID].cast(pa.string()), number_T.cast(pa.string()), "#")
    own = {KEEP + DOCUMENT: texts[ID], KEEP + CHUNK: number_T, KEEP + START: start_T, KEEP + END: end_T, TEXT: text_T}
    if kept_text in rows.column_names:
        own[kept_text] = text_T
    return pa.table(dict(zip(texts.column_names, texts.columns, strict=True)) | own | {ID: id_T}), row_T


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


def prepare_rows(config: Any, rows: pa.Table, kind: PairResult) -> Prepared | None:
    """Tokenise the pairs of a unit for a system; stored tokens give None. Loads no weights."""
    texts, _ = text_rows(rows, kind)
    row_N, conditions = pairs_of(texts, kind)
    if kind.chunking is not None and kind.chunking.late:  # a chunk is another one beside others
        prepared = kind.prepare(config, [Indexed(values=texts[TEXT].to_pylist(), codes=row_N)], conditions)
        spans = ([(chunk[START], chunk[END]) for chunk in chunks] for chunks in rows[CHUNKS].to_pylist())
        return config.in_context(prepared, zip(rows[TEXT].to_pylist(), spans, strict=True))
    columns = [_indexed(texts[name]).take(row_N) for name in TEXTS[: len(kind.columns.texts)]]
    return kind.prepare(config, columns, conditions)


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))
