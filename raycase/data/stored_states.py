"""States of the tokens of many texts, as a column keeps them.

Shapes: N texts, T tokens of all of them, W numbers a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.data.ragged import Ragged

STATES = "states"  # the column: large_binary, little-endian float16
STATE_TYPE = np.dtype("<f2")


@dataclass(frozen=True, kw_only=True)
class StoredStates(Ragged):
    """States of N texts, one after the other: flat (T, W) float16, offsets (N + 1,) int64."""

    @classmethod
    def of(cls, parts: list[np.ndarray], width: int) -> StoredStates:
        """From the states of each text, (T, W) each."""
        with np.errstate(over="ignore"):  # infinite values are found by `finite`
            flat = np.concatenate([np.empty((0, width), STATE_TYPE), *parts], dtype=STATE_TYPE, casting="unsafe")
        return cls.by_counts(flat, np.array([len(part) for part in parts], dtype=np.int64))

    @property
    def finite(self) -> np.ndarray:
        """Whether each text has tokens and their states are finite numbers: (N,) bool."""
        bad_T = ~np.isfinite(self.flat).all(axis=1)
        bad = np.concatenate([[0], np.cumsum(bad_T)])
        return (np.diff(bad[self.offsets]) == 0) & (self.counts > 0)

    @property
    def means(self) -> np.ndarray:
        """The mean state of each of the texts, which all have tokens: (N, W) float32."""
        return np.stack([text_TW.mean(0, dtype=np.float32) for text_TW in np.split(self.flat, self.offsets[1:-1])])

    def padded(self, rows: np.ndarray, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
        """`Ragged.padded` in 32 bits."""
        return super().padded(rows, dtype)

    def columns(self) -> list[tuple[pa.Field, pa.Array]]:
        """The columns of an output."""
        return [(pa.field(STATES, pa.large_binary()), self.to_arrow())]

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray | pa.Array, width: int) -> StoredStates:
        """Read the column of an output."""
        return cls.read(column, width, STATE_TYPE)
