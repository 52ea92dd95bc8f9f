"""Rows that are documents: a unit's table of them with their chunks, these as rows of their own, and units that hold a
bounded number of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.io.reader import CHUNKS, FILE, KEEP, ROW, TEXT
from raycase.io.schema import CHUNK, DOCUMENT, END, ID, START

if TYPE_CHECKING:
    from raycase.job.pair_result import PairResult

PAIRS_OF_UNIT = 32768  # at most; a document that has more is a unit of its own
SPANS = pa.list_(pa.struct([(START, pa.int64()), (END, pa.int64())]))  # characters [start, end) of the chunks


def as_texts(rows: pa.Table, kind: PairResult) -> tuple[pa.Table, np.ndarray]:
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
    for name, column in own.items():
        texts = texts.append_column(name, column)
    return texts.set_column(texts.schema.get_field_index(ID), ID, id_T), row_T


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
