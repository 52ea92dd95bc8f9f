"""The pairs of a unit: each of its rows under each of its conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raycase.data.columns import Columns
from raycase.data.reader import CONDITIONS, TEXT
from raycase.encoder.prepared import Prepared

if TYPE_CHECKING:
    from raycase.systems.contracts import SystemConfig

CHUNK_BYTES = 2**29  # an Arrow string column holds less than 2 GiB


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """What the read and the encode step need of a request.

    conditions: those of every row; None where each row has its own (a condition column) or none (unconditional).
    chunk_bytes: about how large a chunk of the output table may be.
    """

    columns: Columns
    conditions: tuple[str, ...] | None
    unconditional: bool
    dtype: str
    on_long: str
    dim: int
    chunk_bytes: int = CHUNK_BYTES


def pairs_of(rows: pa.Table, settings: EncodeSettings) -> tuple[np.ndarray, list[str] | None]:
    """The row of each pair in the unit's table, (N,), and its condition (None: unconditional)."""
    row_R = np.arange(len(rows))
    if settings.unconditional:
        return row_R, None
    if settings.conditions is not None:
        return np.repeat(row_R, len(settings.conditions)), list(settings.conditions) * len(rows)
    lists = rows[CONDITIONS].combine_chunks()
    return np.repeat(row_R, lists.value_lengths().to_numpy(zero_copy_only=False)), lists.flatten().to_pylist()


def prepare_rows(config: SystemConfig, rows: pa.Table, settings: EncodeSettings) -> Prepared:
    """Tokenise the pairs of a unit. Loads no weights."""
    row_N, conditions = pairs_of(rows, settings)
    texts = rows[TEXT].to_pylist()
    return config.prepare([texts[row] for row in row_N], conditions)
