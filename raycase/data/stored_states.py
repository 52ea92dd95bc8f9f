"""States of the tokens of many texts, and the binary column that keeps them: one value a text, token after token.

Shapes: N texts, T tokens of all of them, W numbers a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

STATES = "states"  # the column: large_binary, little-endian float16; a list of numbers would be read 40 times slower
STATE_TYPE = np.dtype("<f2")


@dataclass(frozen=True, kw_only=True)
class StoredStates:
    """States of N texts, one after the other: flat (T, W) float16, offsets (N + 1,) int64."""

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> np.ndarray:
        """Tokens of each text: (N,)."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, parts: list[np.ndarray], width: int) -> StoredStates:
        """From the states of each text, (T, W) each."""
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        with np.errstate(over="ignore"):  # infinite values are found by `finite`
            flat = np.concatenate([np.empty((0, width), STATE_TYPE), *parts], dtype=STATE_TYPE, casting="unsafe")
        return cls(flat=flat, offsets=offsets)

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

    def take(self, rows: np.ndarray) -> StoredStates:
        """The texts of these rows, in that order."""
        counts = self.counts[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return StoredStates(flat=self.flat[index], offsets=offsets)

    def padded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """States of these rows, padded with zeros to the longest, (B, S, W) float32, and which are real, (B, S)."""
        counts = self.counts[rows]
        real = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
        states = np.zeros((*real.shape, self.flat.shape[1]), dtype=np.float32)
        states[real] = self.take(rows).flat
        return states, real

    def to_arrow(self) -> pa.LargeBinaryArray:
        """The column, without a copy."""
        flat = np.ascontiguousarray(self.flat, dtype=STATE_TYPE)
        offsets = self.offsets * (self.flat.shape[1] * STATE_TYPE.itemsize)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray | pa.Array, width: int) -> StoredStates:
        """Read a column that `to_arrow` wrote; one copy where it is in chunks."""
        array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        token_bytes = width * STATE_TYPE.itemsize
        _, offset_buffer, data = array.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        values = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        if (offsets % token_bytes).any():
            raise ValueError(f"expected states of {width} numbers a token, got values of other lengths")
        return cls(flat=values.view(STATE_TYPE).reshape(-1, width), offsets=offsets // token_bytes)
