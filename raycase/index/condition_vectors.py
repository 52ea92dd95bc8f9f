"""The vectors of an index's rows under a condition: stored, or pooled from stored tokens without the encoder; in memory
where they fit.

Shapes: N rows under a condition in blocks of B, D dimensions, A axes of sketches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries, StatedHead
from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, IndexMetadata, offsets_of, scan, sql_and, sql_equals, sql_in, vectors_of
from raycase.index.token_files import read_basis, read_sketch
from raycase.index.topk import Block, joined, only
from raycase.io.schema import BASIS, CODES, CONDITION, HAS_TOKENS, ID, UNCONDITIONAL, UNCONDITIONAL_PART, VECTOR
from raycase.io.storage import Location
from raycase.tokens.pooling import (
    AXES_ROWS,
    LEVELS,
    SketchPooler,
    TokenPooler,
    UnpackedTokens,
    principal_axes,
    unpack_tokens,
)
from raycase.tokens.stored import StoredTokens

if TYPE_CHECKING:
    from lance import LanceDataset

BATCH_ROWS = 16384  # rows read at a time where the vectors of a condition do not fit into memory
FEW = 8  # where a filter leaves at most one in so many rows, these alone are pooled
TOKEN_ROWS, SKETCHED_ROWS = 8192, 2**16  # rows whose tokens or sketches are read at a time
CONDITIONS = 1024  # whose axes are remembered: more than there is room for vectors along them
POOLERS = 16  # that are remembered, of a basis and a condition: a few megabytes each
UNCOVERED = 64  # conditions of which it is remembered which rows have tokens alone

RowBatch = tuple[np.ndarray, str, UnpackedTokens]  # row offsets (B,), basis, tokens
Ask = Callable[[str], tuple[ConditionQueries, Tensor]]  # a condition -> what the head keeps of it, and its temperatures


# ------------------------------------------------------------------------------------------- pooled from stored tokens


class StoredRows:
    """The stored tokens of all rows, or their sketches; cached if they fit into `memory_bytes`, else read each time."""

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
        self.dataset, self.column, self.memory_bytes, self.fragments = dataset, column, memory_bytes, fragments
        self.count = metadata.with_tokens
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
        rows = {"columns": [OFFSET, self.column, UNCONDITIONAL_PART, BASIS], "filter": HAS_TOKENS}
        at_once = TOKEN_ROWS if self.column == CODES else SKETCHED_ROWS
        for read in scan(self.dataset, self.fragments, **rows, batch_size=at_once).to_batches():
            for batch in self._by_basis(pa.table(read)):
                size += batch[2].nbytes
                kept.append(batch)
                if size > self.memory_bytes:
                    kept.clear()
                yield batch
        if size <= self.memory_bytes:
            self.cached = kept

    def at(self, offsets_B: np.ndarray) -> Iterator[RowBatch]:
        """The rows at these offsets."""
        for start in range(0, len(offsets_B), TOKEN_ROWS):
            offsets = offsets_B[start : start + TOKEN_ROWS]
            rows = self.dataset.take(offsets, columns=[self.column, UNCONDITIONAL_PART, BASIS])
            yield from self._by_basis(rows.append_column(OFFSET, pa.array(offsets)))

    def _by_basis(self, table: pa.Table) -> Iterator[RowBatch]:
        for basis in pc.unique(table[BASIS]).to_pylist():  # one, but where outputs meet
            rows = table.filter(pc.equal(table[BASIS], basis))
            codes = self.codes(basis)
            form = codes.form if self.column == CODES else replace(codes.form, token_bytes=LEVELS)
            stored = StoredTokens.from_arrow(rows, form, self.column)
            yield offsets_of(rows), basis, unpack_tokens(stored, codes if self.column == CODES else None)


class TokenVectors:
    """Unit vectors of rows that have stored tokens, by one pooler or another."""

    rows: StoredRows
    pooler: Callable[..., Any]  # of a basis and a condition

    def blocks(self, condition: str, offsets_B: np.ndarray | None = None, **precision: torch.dtype) -> Iterator[Block]:
        """Row offsets and unit vectors under a condition, of the rows at some offsets, or of all. Raises
        RequestError."""
        for offsets_N, basis, tokens in self.rows.batches() if offsets_B is None else self.rows.at(offsets_B):
            vectors_ND = self.pooler(basis, condition, **precision).pool(tokens).flatten(1)
            yield offsets_N[tokens.order], F.normalize(vectors_ND, dim=-1, out=vectors_ND)


class PooledVectors(TokenVectors):
    """The vectors, (B, D)."""

    def __init__(self, rows: StoredRows, ask: Ask) -> None:
        @lru_cache(POOLERS)
        def pooler(basis: str, condition: str, dtype: torch.dtype = torch.float32) -> TokenPooler:
            return TokenPooler(rows.codes(basis), *ask(condition), dtype)

        self.rows, self.pooler = rows, pooler

    def stated_at(self, condition: str, offsets_B: np.ndarray, head: StatedHead) -> np.ndarray:
        """The probability that the rows at these offsets, ascending, say something of the condition: (B,)."""
        stated_B = np.empty(len(offsets_B), np.float32)
        for found_N, basis, tokens in self.rows.at(offsets_B):
            stated_N = self.pooler(basis, condition).stated(tokens, head)[:, 0]
            stated_B[np.searchsorted(offsets_B, found_N[tokens.order])] = stated_N.numpy()
        return stated_B


class SketchedVectors(TokenVectors):
    """Approximate vectors, (B, A), from their sketches, along the axes of each condition: of queries that are
    projected on these, the nearest rows are candidates to be pooled."""

    def __init__(self, rows: StoredRows, ask: Ask) -> None:
        def whole(basis: str, condition: str) -> SketchPooler:
            return SketchPooler(rows.sketch(basis), rows.codes(basis), *ask(condition))

        @lru_cache(CONDITIONS)
        def axes(condition: str) -> Tensor:
            """The axes of a condition, (D, A), by a sample of all rows."""
            pooler_of, step = cache(partial(whole, condition=condition)), -(-rows.count // AXES_ROWS)
            pooled = [pooler_of(basis).pool(tokens.sample(step)) for _, basis, tokens in rows.batches()]
            return principal_axes(torch.cat(pooled))

        @lru_cache(POOLERS)
        def pooler(basis: str, condition: str) -> SketchPooler:
            return whole(basis, condition).along(axes(condition))

        self.rows, self.axes, self.pooler = rows, axes, pooler


# ----------------------------------------------------------------------------------------------------------- in memory


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
        blocks = [*self.conditions.pop(condition, []), joined([(offsets_B, vectors_BD)])]
        while len(blocks) > 1 and len(blocks[-1][0]) > len(blocks[-2][0]) // 2:
            blocks[-2:] = [joined(blocks[-2:])]
        self.conditions[condition] = blocks

    def forget(self, nbytes: int) -> None:
        """Forget the oldest conditions until the others take no more bytes than this."""
        while self.conditions and self.nbytes > nbytes:
            del self.conditions[next(iter(self.conditions))]


class ConditionVectors:
    """The unit vectors of an index under one condition or another, read once and cached up to `memory_bytes`.

    pooled: gives them for a condition that the index does not have, and for rows that lack one which others have; of
    those the oldest leave the cache first. Where some rows alone are pooled, these are remembered in what room is left.
    """

    def __init__(
        self,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        memory_bytes: int,
        pooled: TokenVectors,
        fragments: Sequence[int] | None = None,
    ) -> None:
        """fragments: whose rows alone are there; None: all."""
        self.dataset, self.metadata, self.memory_bytes, self.pooled = dataset, metadata, memory_bytes, pooled
        self.scan = partial(scan, dataset, fragments)
        self.cached: dict[tuple[str | None, bool], Block] = {}  # by condition, and whether they are pooled
        self.remembered = RememberedVectors()
        self.uncovered = lru_cache(UNCOVERED)(partial(_uncovered, dataset, self.scan))

    def to_pool(self, condition: str | None) -> np.ndarray | None:
        """The offsets, ascending, of the rows that are pooled under a condition: with stored tokens, and an id that has
        no row under it. None: all with stored tokens, for the index does not have the condition."""
        if self.metadata.lacks(condition):
            return None
        is_some = self.metadata.with_tokens and condition is not None and condition not in self.metadata.kept
        return self.uncovered(condition) if is_some else np.empty(0, np.int64)

    def pooled_rows(self, condition: str | None) -> int:
        """How many rows are pooled under a condition."""
        rows = self.to_pool(condition)
        return self.metadata.with_tokens if rows is None else len(rows)

    def is_pooled(self, condition: str | None, offsets_B: np.ndarray) -> np.ndarray:
        """Which of some rows under a condition are pooled: (B,) bool."""
        rows = self.to_pool(condition)
        return np.ones(len(offsets_B), bool) if rows is None else np.isin(offsets_B, rows)

    def kinds(self, conditions: Sequence[str | None]) -> str:
        """The filter for the rows under some conditions (None: unconditional), and those with stored tokens where some
        are pooled: an id may have a row of each kind."""
        stored = [name for name in conditions if name in self.metadata.conditions]
        kinds = [sql_equals(CONDITION, None)] * (None in conditions) + [sql_in(CONDITION, stored)] * bool(stored)
        return f"({' OR '.join(kinds + [HAS_TOKENS] * any(map(self.pooled_rows, conditions)))})"

    def blocks(
        self, condition: str | None, where: Filter | None = None, among: np.ndarray | None = None
    ) -> Iterator[Block]:
        """Offsets and vectors of the rows under a condition (None: unconditional): in the order of the dataset, but for
        pooled ones, which come last. One block of each kind where the vectors are cached; else they are read or pooled
        again, batch by batch. among: offsets, ascending, of the only ones that are pooled."""
        yield from self._stored(condition, where)
        if condition is not None and among is not None:
            yield from self.pooled_at(condition, among)
        elif condition is not None and self.pooled_rows(condition):
            selected = self.to_pool(condition)
            if where:
                passing = self.offsets(HAS_TOKENS, where)
                selected = passing if selected is None else np.intersect1d(passing, selected)
            if (condition, True) in self.cached:
                yield only(self.cached[condition, True], selected)
            else:
                yield from self._pooled(condition, selected)

    def _stored(self, condition: str | None, where: Filter | None) -> Iterator[Block]:
        """`blocks`, without those that are pooled."""
        if self.metadata.lacks(condition):
            return
        of_kind, part = sql_equals(CONDITION, condition), (condition, False)
        column = UNCONDITIONAL if condition is None else VECTOR
        size = 4 * self.metadata.rows_under(condition) * self.dataset.schema.field(column).type.list_size
        if part not in self.cached and size > self._room:
            rows = self.scan(columns=[OFFSET, column], filter=sql_and(of_kind, where), batch_size=BATCH_ROWS)
            yield from ((offsets_of(batch), vectors_of(batch[column])) for batch in rows.to_batches())
            return
        selected = self.offsets(of_kind, where) if where else None
        if selected is not None and not len(selected):
            return
        if part not in self.cached:
            table = self.scan(columns=[OFFSET, column], filter=of_kind).to_table()
            self.cached[part] = offsets_of(table), vectors_of(table[column])
            self.remembered.forget(self._room)
        yield only(self.cached[part], selected)

    def offsets(self, of_kind: str, where: Filter | None) -> np.ndarray:
        """The offsets, ascending, of the rows of a kind that pass a filter: (N,)."""
        return offsets_of(self.scan(columns=[OFFSET], filter=sql_and(of_kind, where)).to_table())

    def at(self, condition: str | None, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of rows that are stored under a condition, at these offsets, in float64: (B, D)."""
        if (condition, False) in self.cached:
            offsets_N, vectors_ND = self.cached[condition, False]
            return vectors_ND[torch.from_numpy(np.searchsorted(offsets_N, offsets_B))].double()
        column = UNCONDITIONAL if condition is None else VECTOR
        return vectors_of(self.dataset.take(offsets_B, columns=[column])[column]).double()

    def pooled_at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """Offsets and vectors of some rows with stored tokens, by offsets ascending, pooled under a condition."""
        is_remembered_B, found = self.remembered.of(condition, offsets_B)
        yield from found
        for block in self.pooled.blocks(condition, offsets_B[~is_remembered_B]):
            self.remembered.add(condition, *block)
            self.remembered.forget(self._room)
            yield block

    def _pooled(self, condition: str, selected: np.ndarray | None) -> Iterator[Block]:
        """The blocks of those that are pooled; cached where all rows with stored tokens are, and fit."""
        if selected is not None and len(selected) * FEW <= self.metadata.with_tokens:
            yield from self.pooled_at(condition, np.sort(selected))
            return
        blocks: list[Block] = []
        size = 0
        for block in self.pooled.blocks(condition):
            size += block[1].nbytes
            blocks.append(block)
            if size > self.memory_bytes:
                blocks.clear()
            yield only(block, selected)
        others = [part for part in self.cached if part[1]]
        while others and size > self._room:
            del self.cached[others.pop(0)]
        if blocks and size <= self._room:
            offsets, vectors = zip(*blocks, strict=True)
            self.cached[condition, True] = np.concatenate(offsets), torch.cat(vectors)
            self.remembered.forget(self._room)

    @property
    def _room(self) -> int:
        """Bytes that are left for vectors."""
        return self.memory_bytes - sum(vectors_ND.nbytes for _, vectors_ND in self.cached.values())


def _uncovered(dataset: LanceDataset, scan: Callable[..., Any], condition: str) -> np.ndarray:
    """The offsets, ascending, of the rows with stored tokens whose ids have no row under a condition of the index."""
    stored = dataset.to_table(columns=[ID], filter=sql_equals(CONDITION, condition))[ID]
    tokens = scan(columns=[ID, OFFSET], filter=HAS_TOKENS).to_table()
    return offsets_of(tokens.filter(pc.invert(pc.is_in(tokens[ID], value_set=stored))))
