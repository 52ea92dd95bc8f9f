"""The read step: spans of the input -> units of checked rows, their pairs tokenised. Knows nothing of what runs it.

With `--chunk` a row is a document: a unit's table has its chunks in a column, each of which is a text to encode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, WorkError
from raycase.io.inputs import source_of
from raycase.io.reader import CHUNKS, CONDITIONS, FILE, KEEP, ROW, TEXTS, python_rows, read_span, rejection
from raycase.io.schema import CHUNK, DOCUMENT, END, ID, START, TEXT, Reason, Rejection, rejected_table
from raycase.job.results import Encoding, RowPairs
from raycase.job.units import PlannedSpan, ReadUnit, naming, spans_from_arrow
from raycase.models.pairs import Indexed

if TYPE_CHECKING:
    from raycase.models.condition_pooling import ConditionPoolingConfig

READERS = 16  # small files fetched at once
PAIRS_OF_UNIT = 32768  # of documents, at most; a document that has more is a unit of its own
CHUNKS_TYPE = pa.list_(pa.struct([(START, pa.int64()), (END, pa.int64())]))  # characters [start, end) of the chunks


def read_units(spans: Iterable[PlannedSpan], encoding: Encoding) -> Iterator[ReadUnit]:
    """Read the units of spans, and tokenise them: on CPUs and ahead of the encoder, which then never waits for it."""
    for planned in spans:
        units = read_rows_of(planned, encoding)
        uri, files = planned.files[0].uri, {file.uri: number for number, file in enumerate(planned.files)}
        for start, end in planned.units:
            with naming(f"reading rows {start} to {end} of {uri}"):
                read = next(units)
            for first, last, rows, rejected in bounded(files, start, end, *read, encoding.pairs):
                try:
                    prepared = prepare_rows(rows, encoding)
                except (RequestError, WorkError, OSError, MemoryError):
                    raise
                except Exception:  # of the tokenizer itself, as at a character that it has no token for
                    prepared = None
                yield ReadUnit(
                    uri=uri,
                    file=planned.span.file,
                    start=first,
                    rows_in=last - first,
                    rows=rows,
                    rejected=rejected,
                    prepared=prepared,
                )


def read_arrow(spans: pa.Table, *, encoding: Encoding) -> Iterator[pa.Table]:
    """`read_units` in a task of Ray: it stands here so that a reader imports no more than it needs."""
    for unit in read_units(spans_from_arrow(spans), encoding):
        yield unit.to_arrow()


def without(rows: pa.Table, whys: dict[int, str], reason: Reason) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows without some, and these as rejections; `whys`: the detail by the number of the row."""
    kept = rows.filter(pa.array([row not in whys for row in range(len(rows))], pa.bool_()))
    return kept, [rejection(python_rows(rows.slice(row, 1))[0], reason, why) for row, why in whys.items()]


def read_rows_of(planned: PlannedSpan, encoding: Encoding) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span, with the chunks of their texts in the column `CHUNKS` where the job cuts them,
    and those rejected, in order. Raises RequestError for a file that cannot be read."""
    chunking, uri = encoding.pairs.chunking, planned.files[0].uri
    for rows, rejected in _read_files(planned, encoding.pairs):
        if chunking is not None:
            cut = [
                [{START: start, END: end} for start, end in chunking.cut(encoding.model.encoder, text)]
                for text in rows[TEXT].to_pylist()
            ]
            empty = {row: "nothing that can be seen" for row, chunks in enumerate(cut) if not chunks}
            rows, empty_rows = without(rows.append_column(CHUNKS, pa.array(cut, CHUNKS_TYPE)), empty, Reason.EMPTY_TEXT)
            rejected = rejected_table(uri, empty_rows, rejected)
        yield rows, rejected


def _read_files(planned: PlannedSpan, pairs: RowPairs) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span and those rejected: of its one file, or of several small ones, read at once."""
    if not planned.span.spans:
        for rows, rejections in read_span(source_of(planned.files[0]), planned.span, pairs.columns, planned.units):
            yield rows, rejected_table(planned.files[0].uri, rejections)
        return
    for start, end in planned.units:
        first, reads = planned.span.start, []  # of the files that have rows in the unit, by the numbers in the file
        for file, span in zip(planned.files, planned.span.spans, strict=True):
            a, b = max(start, first), min(end, first + span.rows)
            if a < b:
                own = (span.start + a - first, span.start + b - first)
                reads.append((file.uri, read_span(source_of(file), span, pairs.columns, [own])))
            first += span.rows
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(next, [rows for _, rows in reads]))
        named = zip([uri for uri, _ in reads], read, strict=True)
        tables = [
            (rows.append_column(FILE, pa.array([uri] * len(rows), pa.string())), rejected_table(uri, rejections))
            for uri, (rows, rejections) in named
        ]
        yield pa.concat_tables(rows for rows, _ in tables), pa.concat_tables(rejected for _, rejected in tables)


def bounded(
    files: dict[str, int], start: int, end: int, rows: pa.Table, rejected: pa.Table, pairs: RowPairs
) -> Iterator[tuple[int, int, pa.Table, pa.Table]]:
    """Cut the unit of rows [start, end), where they have chunks, into units of at most `PAIRS_OF_UNIT` pairs: first row
    and end of each, its rows and those rejected. `files`: the unit's, in their order.

    Where a unit ends depends on the rows from its start on alone, so a resumed job, which reads from the end of a unit
    on, cuts alike.
    """
    if pairs.chunking is None:
        yield start, end, rows, rejected
        return

    def places(table: pa.Table) -> list[tuple[int, int]]:
        file = table[FILE].to_pylist() if FILE in table.column_names else [next(iter(files))] * len(table)
        return [(files[uri], row) for uri, row in zip(file, table[ROW].to_pylist(), strict=True)]

    good, bad = places(rows), places(rejected)
    chunks = rows[CHUNKS].combine_chunks().value_lengths().to_pylist()
    chunks_of = dict.fromkeys(bad, 0) | dict(zip(good, chunks, strict=True))
    order, most, size, edges = sorted(chunks_of), PAIRS_OF_UNIT // len(pairs.conditions or "a"), 0, [0]
    for number, place in enumerate(order):
        size += chunks_of[place]
        if size > most and number > edges[-1]:
            edges.append(number)
            size = chunks_of[place]
    for first, last in pairwise([*edges, len(order)]):
        unit = {*order[first:last]}
        good_rows, bad_rows = (
            table.filter(pa.array([place in unit for place in of], pa.bool_()))
            for table, of in ((rows, good), (rejected, bad))
        )
        yield start + first, start + last, good_rows, bad_rows


def text_rows(rows: pa.Table, pairs: RowPairs) -> tuple[pa.Table, np.ndarray]:
    """The T texts of a unit that are encoded, a row each: its rows or, under the id `DOCUMENT#NUMBER`, their chunks;
    and the row of each text, (T,)."""
    if pairs.chunking is None:
        return rows, np.arange(len(rows))
    chunks, whole = rows[CHUNKS].combine_chunks(), rows[TEXT].to_pylist()
    count_R = chunks.value_lengths().to_numpy()
    row_T = np.repeat(np.arange(len(rows)), count_R)
    number_T = pa.array(np.arange(len(row_T)) - np.repeat(np.cumsum(count_R) - count_R, count_R))
    start_T, end_T = (chunks.flatten().field(name) for name in (START, END))
    places = zip(row_T.tolist(), start_T.to_pylist(), end_T.to_pylist(), strict=True)
    text_T = pa.array([whole[row][start:end] for row, start, end in places], pa.string())
    kept_text = f"{KEEP}{pairs.columns.texts[0]}"
    texts = rows.drop_columns([n for n in (TEXT, CHUNKS, kept_text) if n in rows.column_names]).take(row_T)
    id_T = pc.binary_join_element_wise(texts[ID].cast(pa.string()), number_T.cast(pa.string()), "#")
    own = {KEEP + DOCUMENT: texts[ID], KEEP + CHUNK: number_T, KEEP + START: start_T, KEEP + END: end_T, TEXT: text_T}
    if kept_text in rows.column_names:
        own[kept_text] = text_T
    return pa.table(dict(zip(texts.column_names, texts.columns, strict=True)) | own | {ID: id_T}), row_T


def pairs_of(rows: pa.Table, pairs: RowPairs) -> tuple[np.ndarray, Indexed | None]:
    """The row of each pair in a table of texts, (N,), and the pairs' conditions (None: unconditional)."""
    row_R = np.arange(len(rows))
    if pairs.unconditional:
        return row_R, None
    if pairs.conditions is not None:
        count = len(pairs.conditions)
        return np.repeat(row_R, count), Indexed(values=pairs.conditions, codes=np.tile(np.arange(count), len(rows)))
    lists = rows[CONDITIONS].combine_chunks()
    row_N = np.repeat(row_R, lists.value_lengths().to_numpy(zero_copy_only=False))
    return row_N, _indexed(pa.chunked_array([lists.flatten()]))


def prepare_rows(rows: pa.Table, encoding: Encoding) -> Prepared | None:
    """Tokenise the pairs of a unit; stored tokens give None. Loads no weights."""
    pairs, prepare = encoding.pairs, encoding.result.prepare
    texts, _ = text_rows(rows, pairs)
    row_N, conditions = pairs_of(texts, pairs)
    if pairs.chunking is not None and pairs.chunking.late:  # a chunk is another one beside others
        whole = rows[TEXT].to_pylist()
        prepared = prepare(encoding.model, [Indexed(values=texts[TEXT].to_pylist(), codes=row_N)], conditions)
        chunks = ([(chunk[START], chunk[END]) for chunk in of] for of in rows[CHUNKS].to_pylist())
        model = cast("ConditionPoolingConfig", encoding.model)
        return model.in_context(cast("Prepared", prepared), zip(whole, chunks, strict=True))
    columns = [_indexed(texts[name]).take(row_N) for name in TEXTS[: len(pairs.columns.texts)]]
    return prepare(encoding.model, columns, conditions)


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))
