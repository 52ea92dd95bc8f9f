"""The columns of states of an encoder, and of stored tokens: what a head needs to pool any condition later.

Shapes: N texts, T tokens of all of them, W numbers a token, D numbers of a vector.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from raycase.io.json_values import from_json, loads
from raycase.io.ragged import STATE_TYPE, Ragged
from raycase.io.schema import CODES, UNCONDITIONAL_PART

STATES = "states"  # the column: large_binary, little-endian float16
TOKENS_KEY = b"raycase_words"  # in the metadata of the column CODES
SHARE_BYTES = 4  # of a unconditional part before its vector: share and scale, float16


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
    """Stored tokens of N texts."""

    form: TokenFormat
    codes: Ragged  # (T, token_bytes) uint8
    part: Ragged  # (P, part_bytes) uint8, one or none a text
    finite: np.ndarray  # (N,) bool, whether the text has tokens and their codes stand for finite numbers

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
