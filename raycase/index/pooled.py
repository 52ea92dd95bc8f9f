"""Vectors under a condition that an index does not have: pooled from its stored tokens, without the encoder. The tokens
and their sketches are read batch by batch, and cached where they fit.

Shapes: B rows of a batch, D dimensions, A axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakMethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries, Says
from raycase.heads.token_pooling import TokenPooler, UnpackedTokens, unpack_tokens
from raycase.heads.token_sketch import AXES_ROWS, LEVELS, SketchPooler, principal_axes
from raycase.index.exact import Block
from raycase.index.lance_files import OFFSET, offsets_of, scan
from raycase.index.metadata import IndexMetadata
from raycase.index.token_files import read_basis, read_sketch
from raycase.io.storage import Location
from raycase.io.stored_tokens import BASIS, CODES, PLAIN_PART, StoredTokens

if TYPE_CHECKING:
    from lance import LanceDataset

V = TypeVar("V")

BATCH_ROWS, SKETCHED_ROWS = 8192, 2**16  # rows whose tokens or sketches are read at a time

RowBatch = tuple[np.ndarray, str, UnpackedTokens]  # row offsets (B,), basis, tokens
CONDITIONS = 1024  # whose axes are remembered: more than there is room for vectors along them

POOLERS = 16  # that are remembered, of a basis and a condition: a few megabytes each

Ask = Callable[[str], tuple[ConditionQueries, Tensor]]  # a condition -> what the head keeps of it, and its temperatures


def cached_method(method: Callable[..., V], most: int) -> Callable[..., V]:
    """The bound method, with its last values remembered.

    For an attribute of its own object: `lru_cache` would hold the object in a circle, which only a full collection
    frees, and with it what it holds: an index's tokens, the processes of its shards.
    """
    weak = WeakMethod(method)

    def call(*arguments: object) -> V:
        bound = weak()
        assert bound is not None, "the object that has the cache calls it"
        return bound(*arguments)

    return lru_cache(most)(call)


class StoredRows:
    """The tokens of all rows that have them, or their sketches, ready to be pooled; cached if they fit into
    `memory_bytes`, else read again each time."""

    def __init__(
        self,
        dataset: LanceDataset,
        root: Location,
        metadata: IndexMetadata,
        column: str,
        memory_bytes: int,
        fragments: Sequence[int] | None = None,
    ) -> None:
        """column: CODES or SKETCH; fragments: whose rows alone are there; None: all."""
        self.dataset, self.root, self.column, self.fragments = dataset, root, column, fragments
        self.memory_bytes = memory_bytes
        self.cached: list[RowBatch] | None = None
        self.codes = cache(partial(read_basis, root))
        self.sketch = cache(lambda basis: read_sketch(root, metadata.sketches[basis]))

    def batches(self) -> Iterator[RowBatch]:
        """Offsets, basis and tokens of all rows, batch by batch. Raises RequestError."""
        if self.cached is not None:
            yield from self.cached
            return
        kept: list[RowBatch] = []
        size = 0
        for batch in self._read():
            size += batch[2].nbytes
            kept.append(batch)
            if size > self.memory_bytes:
                kept.clear()
            yield batch
        if size <= self.memory_bytes:
            self.cached = kept

    def at(self, offsets_B: np.ndarray) -> Iterator[RowBatch]:
        """The rows at these offsets."""
        for start in range(0, len(offsets_B), BATCH_ROWS):
            offsets = offsets_B[start : start + BATCH_ROWS]
            rows = self.dataset.take(offsets, columns=[self.column, PLAIN_PART, BASIS])
            yield from self._by_basis(rows.append_column(OFFSET, pa.array(offsets)))

    def _read(self) -> Iterator[RowBatch]:
        columns, has_tokens = [OFFSET, self.column, PLAIN_PART, BASIS], f"{BASIS} IS NOT NULL"
        size = BATCH_ROWS if self.column == CODES else SKETCHED_ROWS
        for read in scan(
            self.dataset, self.fragments, columns=columns, filter=has_tokens, batch_size=size
        ).to_batches():
            yield from self._by_basis(pa.table(read))

    def _by_basis(self, table: pa.Table) -> Iterator[RowBatch]:
        for basis in pc.unique(table[BASIS]).to_pylist():  # one, but where outputs meet
            rows = table.filter(pc.equal(table[BASIS], basis))
            codes = self.codes(basis)
            form = codes.form if self.column == CODES else replace(codes.form, token_bytes=LEVELS)
            stored = StoredTokens.from_arrow(rows, form, self.column)
            yield offsets_of(rows), basis, unpack_tokens(stored, codes if self.column == CODES else None)


class _OfRows:
    """Vectors of all rows that have stored tokens, in one way or another."""

    def __init__(self, rows: StoredRows, ask: Ask) -> None:
        self.rows, self.ask = rows, ask

    def blocks(self, condition: str) -> Iterator[Block]:
        """Row offsets and unit vectors under a condition. Raises RequestError."""
        yield from self._blocks(condition, self.rows.batches())

    def at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """The same of the rows at these offsets."""
        yield from self._blocks(condition, self.rows.at(offsets_B))

    def _blocks(self, condition: str, batches: Iterable[RowBatch]) -> Iterator[Block]:
        raise NotImplementedError


class PooledVectors(_OfRows):
    """Their vectors, (B, D)."""

    def __init__(self, rows: StoredRows, ask: Ask) -> None:
        super().__init__(rows, ask)
        self.pooler = cached_method(self._pooler, POOLERS)

    def float64_at(self, condition: str, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of the rows at these offsets, ascending, in float64: (B, D). In float32 the
        last bits depend on which rows are pooled together."""
        found, vectors = zip(*self._blocks(condition, self.rows.at(offsets_B), torch.float64), strict=True)
        return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(found)))]

    def states_at(self, condition: str, offsets_B: np.ndarray, says: Says) -> np.ndarray:
        """The probability that the rows at these offsets, ascending, say something of the condition: (B,)."""
        states_B = np.empty(len(offsets_B), np.float32)
        for found_N, basis, tokens in self.rows.at(offsets_B):
            states_N = self.pooler(basis, condition, torch.float32).states(tokens, says)[:, 0]
            states_B[np.searchsorted(offsets_B, found_N[tokens.order])] = states_N.numpy()
        return states_B

    def _blocks(
        self, condition: str, batches: Iterable[RowBatch], dtype: torch.dtype = torch.float32
    ) -> Iterator[Block]:
        for offsets_B, basis, tokens in batches:
            yield offsets_B[tokens.order], _unit(self.pooler(basis, condition, dtype).pool(tokens)[:, 0])

    def _pooler(self, basis: str, condition: str, dtype: torch.dtype) -> TokenPooler:
        return TokenPooler(self.rows.codes(basis), *self.ask(condition), dtype)


class SketchedVectors(_OfRows):
    """Approximate vectors, (B, A), from their sketches, along the axes of each condition: of queries that are
    projected on these, the nearest rows are candidates to be pooled."""

    def __init__(self, rows: StoredRows, ask: Ask, count: int) -> None:
        """count: how many rows have sketches."""
        super().__init__(rows, ask)
        self.count = count
        self.axes = cached_method(self._axes, CONDITIONS)

    def _blocks(self, condition: str, batches: Iterable[RowBatch]) -> Iterator[Block]:
        pooler = cache(lambda basis: self._pooler(basis, condition).along(self.axes(condition)))
        for offsets_B, basis, tokens in batches:
            yield offsets_B[tokens.order], _unit(pooler(basis).pool(tokens))

    def _axes(self, condition: str) -> Tensor:
        """The axes of a condition, (D, A), by a sample of all rows."""
        pooler, step = cache(lambda basis: self._pooler(basis, condition)), -(-self.count // AXES_ROWS)
        pooled = [pooler(basis).pool(tokens.sample(step)) for _, basis, tokens in self.rows.batches()]
        return principal_axes(torch.cat(pooled))

    def _pooler(self, basis: str, condition: str) -> SketchPooler:
        return SketchPooler(self.rows.sketch(basis), self.rows.codes(basis), *self.ask(condition))


def _unit(vectors_BD: Tensor) -> Tensor:
    return vectors_BD.div_(torch.linalg.vector_norm(vectors_BD, dim=-1, keepdim=True).clamp(min=1e-12))
