"""Tokens of many texts, and the binary columns that keep them: states of an encoder, and stored tokens: what a head
needs to pool any condition later.

Shapes: N texts, T tokens of all of them, W numbers a token, D numbers of a vector.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from raycase.io.json_values import from_json, loads

STATES = "states"  # the column: large_binary, little-endian float16
STATE_TYPE = np.dtype("<f2")
CODES, UNCONDITIONAL_PART = (
    "word_codes",
    "word_plain",
)  # the columns: codes of the tokens; share and code of the unconditional part
BASIS, SKETCH = "word_basis", "word_sketch"  # of an index: the basis of each row's codes, and their sketches
HAS_TOKENS = f"{BASIS} IS NOT NULL"  # the filter for rows of an index
TOKEN_COLUMNS = (CODES, UNCONDITIONAL_PART, BASIS, SKETCH)
TOKENS_KEY = b"raycase_words"  # in the metadata of the column CODES
MOST_TOKEN_BYTES = 4096  # of a token
SHARE_BYTES = 4  # of a unconditional part before its vector: share and scale, float16


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
        """The tokens of these texts, padded with zeros to the longest, (B, S) or (B, S, W), states in 32 bits; and
        which are real, (B, S) bool."""
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

    def columns(self) -> list[tuple[pa.Field, pa.Array]]:
        """The columns of an output."""
        return [(pa.field(STATES, pa.large_binary()), self.to_arrow())]


@dataclass(frozen=True, kw_only=True)
class TokenFormat:
    """What the codes of a column are: basis: hash of the `TokenBasis` that wrote them; dim: of pooled vectors."""

    basis: str
    token_bytes: int
    dim: int

    @property
    def part_bytes(self) -> int:
        """Bytes of the unconditional part of a text that has one."""
        return SHARE_BYTES + self.dim

    @classmethod
    def of(cls, schema: pa.Schema) -> TokenFormat | None:
        """The format of a file with stored tokens; None for another file, as one with a kept column of that name."""
        metadata = (schema.field(CODES).metadata or {}) if CODES in schema.names else {}
        return from_json(cls, loads(metadata[TOKENS_KEY])) if TOKENS_KEY in metadata else None


@dataclass(frozen=True, kw_only=True)
class StoredTokens:
    """Stored tokens of N texts.

    codes: (T, token_bytes) uint8; part: (P, part_bytes) uint8, one or none a text; finite: (N,) bool, whether the text
    has tokens and their codes stand for finite numbers.
    """

    form: TokenFormat
    codes: Ragged
    part: Ragged
    finite: np.ndarray

    @classmethod
    def empty(cls, form: TokenFormat, count: int) -> StoredTokens:
        """Texts without tokens."""
        none = np.zeros(count, dtype=np.int64)
        codes, part = (Ragged.by_counts(np.empty((0, n), np.uint8), none) for n in (form.token_bytes, form.part_bytes))
        return cls(form=form, codes=codes, part=part, finite=none > 0)

    @classmethod
    def concat(cls, parts: Sequence[StoredTokens]) -> StoredTokens:
        return cls(
            form=parts[0].form,
            codes=Ragged.concat([p.codes for p in parts]),
            part=Ragged.concat([p.part for p in parts]),
            finite=np.concatenate([p.finite for p in parts]),
        )

    def take(self, rows: np.ndarray) -> StoredTokens:
        return StoredTokens(
            form=self.form, codes=self.codes.take(rows), part=self.part.take(rows), finite=self.finite[rows]
        )

    def columns(self) -> list[tuple[pa.Field, pa.Array]]:
        """The columns of an output, with the format in the metadata of the first."""
        words = pa.field(CODES, pa.large_binary(), metadata={TOKENS_KEY: json.dumps(asdict(self.form))})
        return [(words, self.codes.to_arrow()), (pa.field(UNCONDITIONAL_PART, pa.large_binary()), self.part.to_arrow())]

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch, form: TokenFormat, column: str = CODES) -> StoredTokens:
        """Read the columns of an output or an index. Raises ValueError for values that `columns` does not give."""
        byte = np.dtype(np.uint8)
        missing = [name for name in (column, UNCONDITIONAL_PART) if name not in table.schema.names]
        if missing:
            raise ValueError(f"expected the column {missing[0]}, got none")
        codes = Ragged.read(table[column], form.token_bytes, byte)
        part = Ragged.read(table[UNCONDITIONAL_PART], form.part_bytes, byte)
        if not (codes.counts > 0).all() or (part.counts > 1).any():
            raise ValueError("expected tokens in each text and at most one unconditional part")
        return cls(form=form, codes=codes, part=part, finite=np.ones(len(codes), dtype=bool))

    def shares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The texts that have a unconditional part, (P,), its shares (P,) and vectors (P, D), float32."""
        head = self.part.flat[:, :SHARE_BYTES].copy().view("<f2").astype(np.float32)  # share and scale: (P, 2)
        vectors = self.part.flat[:, SHARE_BYTES:].copy().view(np.int8) * head[:, 1:]
        return np.flatnonzero(self.part.counts), head[:, 0], vectors.astype(np.float32)


def unconditional_parts(shares_N: np.ndarray, vectors_ND: np.ndarray) -> Ragged:
    """The unconditional parts of texts with these shares, each vector rounded to 8 bits by a scale of its own."""
    with_part = shares_N > 0
    vectors = vectors_ND[with_part]
    scales = np.maximum(np.abs(vectors).max(axis=1, keepdims=True, initial=0) / 127, 1e-6).astype("<f2")
    numbers = np.rint(vectors / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
    head = np.concatenate([shares_N[with_part, None].astype("<f2"), scales], axis=1)
    flat = np.concatenate([np.ascontiguousarray(head).view(np.uint8), numbers.view(np.uint8)], axis=1)
    return Ragged.by_counts(flat, with_part.astype(np.int64))
