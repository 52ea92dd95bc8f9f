"""The pairs of a unit: each of its rows under each of its conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.data.columns import Columns
from raycase.data.reader import CONDITIONS, SECOND, TEXT
from raycase.encoder.prepared import Prepared
from raycase.systems.pair_scores import prepare_pairs
from raycase.systems.pairs import Indexed

CHUNK_BYTES = 2**29  # an Arrow string column holds less than 2 GiB


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """What the read and the encode step need of a request.

    conditions: those of every row; None where each row has its own (a condition column) or none (unconditional).
    score: the name of the column of scores, where the rows are pairs of sentences that are scored; None: embedded.
    chunk_bytes: about how large a chunk of the output table may be.
    """

    columns: Columns
    conditions: tuple[str, ...] | None
    unconditional: bool
    dtype: str
    on_long: str
    dim: int
    score: str | None = None
    chunk_bytes: int = CHUNK_BYTES


def pairs_of(rows: pa.Table, settings: EncodeSettings) -> tuple[np.ndarray, Indexed | None]:
    """The row of each pair in the unit's table, (N,), and the pairs' conditions (None: unconditional)."""
    row_R = np.arange(len(rows))
    if settings.unconditional:
        return row_R, None
    if settings.conditions is not None:
        count = len(settings.conditions)
        return np.repeat(row_R, count), Indexed(values=settings.conditions, codes=np.tile(np.arange(count), len(rows)))
    lists = rows[CONDITIONS].combine_chunks()
    row_N = np.repeat(row_R, lists.value_lengths().to_numpy(zero_copy_only=False))
    return row_N, _indexed(pa.chunked_array([lists.flatten()]))


def prepare_rows(config: Any, rows: pa.Table, settings: EncodeSettings) -> Prepared:
    """Tokenise the pairs of a unit, for a system that embeds, or scores pairs of sentences. Loads no weights.

    Sentences that are scored are stripped first, as `raycase evaluate` reads them.
    """
    row_N, conditions = pairs_of(rows, settings)
    sentences = [_indexed(rows[name]).take(row_N) for name in (TEXT, SECOND)[: len(settings.columns.texts)]]
    if settings.score is None:
        return config.prepare(sentences[0], conditions)
    firsts, seconds = ([text.strip() for text in side] for side in sentences)
    return prepare_pairs(config, firsts, seconds, conditions and [text.strip() for text in conditions])


def plain_row(config: Any, rows: pa.Table) -> pa.Table:
    """The first row with texts and conditions that any system can encode, to tell a row's fault from the model's."""
    row = rows.slice(0, 1)
    plain = {TEXT: "a", SECOND: "a", CONDITIONS: [*(config.known_conditions or ()), "a"][:1]}
    for name in plain.keys() & set(rows.column_names):
        row = row.set_column(row.schema.get_field_index(name), name, pa.array([plain[name]], row[name].type))
    return row


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))
