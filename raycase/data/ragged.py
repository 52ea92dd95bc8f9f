"""Rows of tokens for many texts, and the binary column that keeps them: one value a text, token after token.

Shapes: N texts, T tokens of all of them, W numbers a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Tokens of N texts, one after the other: flat (T, W), or ids (T,), of any type; offsets (N + 1,) int64."""

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> np.ndarray:
        """Tokens of each text: (N,)."""
        return np.diff(self.offsets)

    @classmethod
    def of_ids(cls, sequences: Sequence[Sequence[int]]) -> Self:
        """From lists of token ids, as flat (T,) int32."""
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(s) for s in sequences], out=offsets[1:])
        flat = np.fromiter((i for s in sequences for i in s), dtype=np.int32, count=int(offsets[-1]))
        return cls(flat=flat, offsets=offsets)

    @classmethod
    def by_counts(cls, flat: np.ndarray, counts: np.ndarray) -> Self:
        """From the tokens of all texts and how many each has."""
        return cls(flat=flat, offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """The texts of several, one after the other."""
        return cls.by_counts(np.concatenate([p.flat for p in parts]), np.concatenate([p.counts for p in parts]))

    def take(self, rows: np.ndarray, start: np.ndarray | int = 0) -> Self:
        """The texts of these rows, in that order, without their first `start` tokens."""
        first = self.offsets[:-1][rows] + start
        return self._from(first, self.offsets[1:][rows] - first)

    def within(self, start: np.ndarray, stop: np.ndarray) -> Self:
        """Tokens [start, stop) of each text, (N,) both."""
        return self._from(self.offsets[:-1] + start, stop - start)

    def _from(self, first: np.ndarray, counts: np.ndarray) -> Self:
        """So many tokens from each of these places in `flat`."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        index = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        return type(self)(flat=self.flat[index], offsets=offsets)

    def padded(self, rows: np.ndarray, dtype: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these texts, padded with zeros to the longest, (B, S) or (B, S, W), and which are real, (B, S)
        bool. dtype: of the tokens. Default: as they are."""
        counts = self.counts[rows]
        real = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
        tokens = np.zeros((*real.shape, *self.flat.shape[1:]), dtype=dtype or self.flat.dtype)
        tokens[real] = self.take(rows).flat
        return tokens, real

    def to_arrow(self) -> pa.LargeBinaryArray:
        """The column, without a copy; a list of numbers would be read 40 times slower."""
        flat = np.ascontiguousarray(self.flat)
        offsets = self.offsets * (flat.shape[1] * flat.dtype.itemsize)
        return pa.Array.from_buffers(pa.large_binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])

    @classmethod
    def read(cls, column: pa.ChunkedArray | pa.Array, width: int, dtype: np.dtype[Any]) -> Self:
        """Read a column that `to_arrow` wrote; one copy where it is in chunks. Raises ValueError for another type or
        other lengths."""
        array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if array.type != pa.large_binary():
            raise ValueError(f"expected values of large_binary, got {array.type}")
        token_bytes = width * dtype.itemsize
        _, offset_buffer, data = array.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        values = np.frombuffer(data or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        if array.null_count or (offsets % token_bytes).any():
            raise ValueError(f"expected {width} numbers a token, {token_bytes} bytes, got values of other lengths")
        return cls(flat=values.view(dtype).reshape(-1, width), offsets=offsets // token_bytes)
