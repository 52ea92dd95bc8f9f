"""Vectors under a condition that an index does not have: pooled from its stored words, without the encoder.

Shapes: B rows of a batch, D dimensions, A axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from raycase.search.caches import cached_method
from raycase.search.exact import Block
from raycase.search.stored_rows import RowBatch, StoredRows
from raycase.systems.condition_head import Questions
from raycase.systems.word_pooling import WordPooler
from raycase.systems.word_sketch import AXES_ROWS, SketchPooler, principal_axes

CONDITIONS = 1024  # whose axes are remembered: more than there is room for vectors along them

POOLERS = 16  # that are remembered, of a basis and a condition: a few megabytes each

Ask = Callable[[str], tuple[Questions, Tensor]]  # a condition -> what the head keeps of it, and its temperatures


class PooledVectors:
    """The vectors of all rows that have stored words."""

    def __init__(self, rows: StoredRows, ask: Ask) -> None:
        self.rows, self.ask = rows, ask
        self.pooler = cached_method(self._pooler, POOLERS)

    def blocks(self, condition: str) -> Iterator[Block]:
        """Row offsets and unit vectors (B, D) under a condition. Raises RequestError."""
        yield from self._blocks(condition, self.rows.batches())

    def at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """The same of the rows at these offsets."""
        yield from self._blocks(condition, self.rows.at(offsets_B))

    def float64_at(self, condition: str, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of the rows at these offsets, ascending, in float64: (B, D). In float32 the
        last bits depend on which rows are pooled together."""
        found, vectors = zip(*self._blocks(condition, self.rows.at(offsets_B), torch.float64), strict=True)
        return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(found)))]

    def _blocks(
        self, condition: str, batches: Iterable[RowBatch], dtype: torch.dtype = torch.float32
    ) -> Iterator[Block]:
        for offsets_B, basis, words in batches:
            yield offsets_B[words.order], _unit(self.pooler(basis, condition, dtype).pool(words)[:, 0])

    def _pooler(self, basis: str, condition: str, dtype: torch.dtype) -> WordPooler:
        return WordPooler(self.rows.codes(basis), *self.ask(condition), dtype)


class SketchedVectors:
    """Approximate vectors of the same rows, from their sketches, along the axes of each condition: of queries that are
    projected on these, the nearest rows are candidates to be pooled."""

    def __init__(self, rows: StoredRows, ask: Ask, count: int) -> None:
        """count: how many rows have sketches."""
        self.rows, self.ask, self.count = rows, ask, count
        self.axes = cached_method(self._axes, CONDITIONS)

    def blocks(self, condition: str) -> Iterator[Block]:
        """Row offsets and unit vectors (B, A) under a condition. Raises RequestError."""
        yield from self._blocks(condition, self.rows.batches())

    def at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """The same of the rows at these offsets."""
        yield from self._blocks(condition, self.rows.at(offsets_B))

    def _blocks(self, condition: str, batches: Iterable[RowBatch]) -> Iterator[Block]:
        pooler = cache(lambda basis: self._pooler(basis, condition).along(self.axes(condition)))
        for offsets_B, basis, words in batches:
            yield offsets_B[words.order], _unit(pooler(basis).pool(words))

    def _axes(self, condition: str) -> Tensor:
        """The axes of a condition, (D, A), by a sample of all rows."""
        pooler, step = cache(lambda basis: self._pooler(basis, condition)), -(-self.count // AXES_ROWS)
        pooled = [pooler(basis).pool(words.sample(step)) for _, basis, words in self.rows.batches()]
        return principal_axes(torch.cat(pooled))

    def _pooler(self, basis: str, condition: str) -> SketchPooler:
        return SketchPooler(self.rows.sketch(basis), self.rows.codes(basis), *self.ask(condition))


def _unit(vectors_BD: Tensor) -> Tensor:
    return vectors_BD.div_(torch.linalg.vector_norm(vectors_BD, dim=-1, keepdim=True).clamp(min=1e-12))
