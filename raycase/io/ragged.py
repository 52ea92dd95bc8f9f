"""Tokens of many texts, one after the other, and the binary columns that keep them.

Shapes: N texts, T tokens of all of them, W numbers a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

STATE_TYPE = np.dtype("<f2")  # of the states of an encoder


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
        counts = [len(s) for s in sequences]
        flat = np.fromiter((i for s in sequences for i in s), dtype=np.int32, count=sum(counts))
        return cls.by_counts(flat, np.array(counts, np.int64))

    @classmethod
    def by_counts(cls, flat: np.ndarray, counts: np.ndarray) -> Self:
        """From the tokens of all texts and how many each has."""
        return cls(flat=flat, offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        return cls.by_counts(np.concatenate([p.flat for p in parts]), np.concatenate([p.counts for p in parts]))

    def take(self, rows: np.ndarray | slice, start: np.ndarray | int = 0, stop: np.ndarray | None = None) -> Self:
        """The texts of these rows, in that order: of each its tokens [start, stop). Default: all."""
        first = self.offsets[:-1][rows]
        counts = (self.offsets[1:][rows] - first if stop is None else stop) - start
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        index = np.arange(offsets[-1]) + np.repeat(first + start - offsets[:-1], counts)
        return type(self)(flat=self.flat[index], offsets=offsets)

    def padded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """These texts' tokens, zeros behind, (B, S) or (B, S, W), states in 32 bits; and which are real, (B, S)."""
        counts = self.counts[rows]
        real = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
        dtype = np.float32 if self.flat.dtype == STATE_TYPE else self.flat.dtype
        tokens = np.zeros((*real.shape, *self.flat.shape[1:]), dtype=dtype)
        tokens[real] = self.take(rows).flat
        return tokens, real

    def to_arrow(self) -> pa.LargeBinaryArray:
        """The column, without a copy; a list of numbers would be read 40 times slower."""
        flat = np.ascontiguousarray(self.flat)
        offsets = self.offsets * (flat.shape[1] * flat.dtype.itemsize)
        return pa.Array.from_buffers(pa.large_binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])

    @classmethod
    def read(cls, column: pa.ChunkedArray | pa.Array, width: int, dtype: np.dtype[Any] = STATE_TYPE) -> Self:
        """Read a column that `to_arrow` wrote; one copy where it is in chunks."""
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
