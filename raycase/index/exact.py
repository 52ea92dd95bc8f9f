"""Exact search: the cosine of each query with every vector under a condition.

Shapes: Q queries, N rows under a condition in blocks of B, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, offsets_of, scan, sql_equals, vectors_of
from raycase.index.metadata import IndexMetadata
from raycase.index.topk import BLOCK_ROWS, exact_top_k, top_k
from raycase.io.schema import CONDITION, PLAIN, VECTOR
from raycase.io.stored_tokens import BASIS

if TYPE_CHECKING:
    from lance import LanceDataset

BATCH_ROWS = 16384  # rows read at a time where the vectors of a condition do not fit into memory
LEAST_MARGIN = 1e-4  # of cosines in float32 that are computed again
BLOCK_OF_K = 16  # times k: rows of which the nearest k are merged with those so far
FEW = 8  # where a filter leaves at most one in so many rows, these alone are pooled

Block = tuple[np.ndarray, Tensor]  # row offsets (B,) int64, unit vectors (B, D) float32


class RememberedVectors:
    """Unit vectors of rows under each of the last conditions: in a few blocks by offsets, each larger than the next:
    one block would be copied with each query."""

    def __init__(self) -> None:
        self.conditions: dict[str, list[Block]] = {}

    @property
    def nbytes(self) -> int:
        return sum(vectors_ND.nbytes for blocks in self.conditions.values() for _, vectors_ND in blocks)

    def of(self, condition: str, offsets_B: np.ndarray) -> tuple[np.ndarray, list[Block]]:
        """Which of the rows are remembered, (B,) bool, and these, block by block; their condition is now the last."""
        is_known_B = np.zeros(len(offsets_B), bool)
        self.conditions[condition] = self.conditions.pop(condition, [])
        found = []
        for offsets_N, vectors_ND in self.conditions[condition]:
            place_B = np.searchsorted(offsets_N, offsets_B).clip(max=len(offsets_N) - 1)
            is_there_B = offsets_N[place_B] == offsets_B
            is_known_B |= is_there_B
            found.append((offsets_B[is_there_B], vectors_ND[torch.from_numpy(place_B[is_there_B])]))
        return is_known_B, found

    def add(self, condition: str, offsets_B: np.ndarray, vectors_BD: Tensor) -> None:
        """Remember rows that are not yet; their condition is now the last."""
        order_B = np.argsort(offsets_B)
        blocks = [*self.conditions.pop(condition, []), (offsets_B[order_B], vectors_BD[torch.from_numpy(order_B)])]
        while len(blocks) > 1 and len(blocks[-1][0]) > len(blocks[-2][0]) // 2:
            offsets, vectors = zip(*blocks[-2:], strict=True)
            offsets_N = np.concatenate(offsets)
            order_N = np.argsort(offsets_N)
            blocks[-2:] = [(offsets_N[order_N], torch.cat(vectors)[torch.from_numpy(order_N)])]
        self.conditions[condition] = blocks

    def forget(self, nbytes: int) -> None:
        """Forget the oldest conditions until the others take no more bytes than this."""
        while self.conditions and self.nbytes > nbytes:
            del self.conditions[next(iter(self.conditions))]


class Pooled(Protocol):
    """Unit vectors under a condition that an index does not have, of all rows with stored tokens, or of some."""

    def blocks(self, condition: str) -> Iterator[Block]: ...

    def at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]: ...


class ConditionVectors:
    """The unit vectors of an index under one condition or another, read once and cached up to `memory_bytes`.

    pooled: gives them for a condition that the index does not have; of those the oldest leave the cache first. Where
    some rows alone are pooled, these are remembered in what room is left.
    """

    def __init__(
        self,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        memory_bytes: int,
        pooled: Pooled | None = None,
        fragments: Sequence[int] | None = None,
    ) -> None:
        """fragments: whose rows alone are there; None: all."""
        self.dataset, self.metadata, self.memory_bytes, self.pooled = dataset, metadata, memory_bytes, pooled
        self.scan = partial(scan, dataset, fragments)
        self.cached: dict[str | None, Block] = {}
        self.remembered = RememberedVectors()

    def blocks(self, condition: str | None, where: Filter | None = None) -> Iterator[Block]:
        """Offsets and vectors of the rows under a condition (None: unconditional): in the order of the dataset, but for
        pooled ones. One block where the vectors are cached; else they are read or pooled again, batch by batch."""
        pooled = condition is not None and condition not in self.metadata.conditions
        column = PLAIN if condition is None else VECTOR
        rows_filter = f"{BASIS} IS NOT NULL" if pooled else sql_equals(CONDITION, condition)
        if condition is not None and pooled and condition not in self.cached:
            yield from self._pooled(condition, rows_filter, where)
            return
        if condition not in self.cached:
            if not self._fits(condition, column):
                rows_filter += f" AND {where}" if where else ""
                columns = [OFFSET, column]
                for batch in self.scan(columns=columns, filter=rows_filter, batch_size=BATCH_ROWS).to_batches():
                    yield offsets_of(batch), vectors_of(batch[column])
                return
            rows = self.scan(columns=[OFFSET, column], filter=rows_filter).to_table()
            self.cached[condition] = offsets_of(rows), vectors_of(rows[column])
            self.remembered.forget(self.memory_bytes - self._cached_bytes)
        yield _among(self.cached[condition], self._selected(rows_filter, where))

    def at(self, condition: str | None, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of rows under a condition that the index has, at these offsets, in float64: (B, D)."""
        if condition in self.cached:
            offsets_N, vectors_ND = self.cached[condition]
            return vectors_ND[torch.from_numpy(np.searchsorted(offsets_N, offsets_B))].double()
        column = PLAIN if condition is None else VECTOR
        return vectors_of(self.dataset.take(offsets_B, columns=[column])[column]).double()

    def pooled_at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """Offsets and vectors of some rows, by offsets ascending, under a condition that the index does not have."""
        assert self.pooled is not None
        is_remembered_B, found = self.remembered.of(condition, offsets_B)
        yield from found
        for block in self.pooled.at(condition, offsets_B[~is_remembered_B]):
            self.remembered.add(condition, *block)
            self.remembered.forget(self.memory_bytes - self._cached_bytes)
            yield block

    def _selected(self, rows_filter: str, where: Filter | None) -> np.ndarray | None:
        """Offsets of the rows that pass the filter; None without a filter."""
        if not where:
            return None
        return offsets_of(self.scan(columns=[OFFSET], filter=f"{rows_filter} AND {where}").to_table())

    def _pooled(self, condition: str, rows_filter: str, where: Filter | None) -> Iterator[Block]:
        """The blocks of a condition that the index does not have; cached where they fit and are not those of a few rows
        alone."""
        assert self.pooled is not None
        selected = self._selected(rows_filter, where)
        if selected is not None and len(selected) * FEW <= self.metadata.words:
            yield from self.pooled_at(condition, np.sort(selected))
            return
        blocks: list[Block] = []
        size = 0
        for block in self.pooled.blocks(condition):
            size += block[1].nbytes
            blocks.append(block)
            if size > self.memory_bytes:
                blocks.clear()
            yield _among(block, selected)
        others = [name for name in self.cached if name is not None and name not in self.metadata.conditions]
        while others and self._cached_bytes + size > self.memory_bytes:
            del self.cached[others.pop(0)]
        if blocks and self._cached_bytes + size <= self.memory_bytes:
            self.remembered.forget(self.memory_bytes - self._cached_bytes - size)
            offsets, vectors = zip(*blocks, strict=True)
            self.cached[condition] = np.concatenate(offsets), torch.cat(vectors)

    @property
    def _cached_bytes(self) -> int:
        return sum(vectors_ND.nbytes for _, vectors_ND in self.cached.values())

    def _fits(self, condition: str | None, column: str) -> bool:
        """Whether the vectors under a condition fit into memory beside the cached ones."""
        dim = self.dataset.schema.field(column).type.list_size
        return self._cached_bytes + 4 * self.metadata.rows_under(condition) * dim <= self.memory_bytes


def _among(block: Block, selected: np.ndarray | None) -> Block:
    """The rows of a block with these offsets; all for None."""
    if selected is None:
        return block
    offsets_N, vectors_ND = block
    is_selected_N = np.isin(offsets_N, selected)
    return offsets_N[is_selected_N], vectors_ND[torch.from_numpy(is_selected_N)]


def exact_nearest(
    vectors_QD: np.ndarray, blocks: Callable[[], Iterable[Block]], k: int, at: Callable[[np.ndarray], Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows nearest to unit vectors, best first: (Q, D) -> cosines (Q, k), row offsets (Q, k); -inf and -1 where
    there are fewer. Of equal cosines the earlier row wins. Both are the same to the last bit, in whatever blocks or
    shards the rows are read.

    at: the rows' vectors at some offsets, ascending, in float64.
    """
    queries_QD = torch.from_numpy(vectors_QD)
    margin = max(LEAST_MARGIN, queries_QD.shape[1] * 2.0**-22)  # twice what products in float32 may be off, and more
    while True:
        cosines_Qk, offsets_Qk, difference = exact_top_k(queries_QD, blocks(), k, at, margin)
        if 2 * difference <= margin:
            return cosines_Qk, offsets_Qk
        margin = 4 * difference


def nearest_by_sketches(vectors_QA: np.ndarray, blocks: Iterable[Block], k: int) -> np.ndarray:
    """The offsets of the k rows nearest to each of some vectors along the axes of sketches, each once: (N,)."""
    offsets: list[np.ndarray] = []

    def vectors() -> Iterator[Tensor]:
        for offsets_B, vectors_BA in blocks:
            offsets.append(offsets_B)
            yield vectors_BA

    _, rows_Qk = top_k(torch.from_numpy(vectors_QA), vectors(), k, block_rows=max(BLOCK_ROWS, BLOCK_OF_K * k))
    return np.unique(np.concatenate([*offsets, np.empty(0, np.int64)])[rows_Qk[rows_Qk >= 0]])
