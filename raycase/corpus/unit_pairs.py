"""The pairs of a unit: each of its rows under each of its conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from raycase.corpus.pair_result import PairResult
from raycase.data.reader import CONDITIONS, TEXTS
from raycase.encoder.prepared import Prepared
from raycase.systems.pairs import Indexed


def pairs_of(rows: pa.Table, kind: PairResult) -> tuple[np.ndarray, Indexed | None]:
    """The row of each pair in the unit's table, (N,), and the pairs' conditions (None: unconditional)."""
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
    row_N, conditions = pairs_of(rows, kind)
    texts = [_indexed(rows[name]).take(row_N) for name in TEXTS[: len(kind.columns.texts)]]
    return kind.prepare(config, texts, conditions)


def plain_row(config: Any, rows: pa.Table) -> pa.Table:
    """The first row with texts and conditions that any system can encode, to tell a row's fault from the model's."""
    row = rows.slice(0, 1)
    plain = dict.fromkeys(TEXTS, "a") | {CONDITIONS: [*(config.known_conditions or ()), "a"][:1]}
    for name in plain.keys() & set(rows.column_names):
        row = row.set_column(row.schema.get_field_index(name), name, pa.array([plain[name]], row[name].type))
    return row


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))
