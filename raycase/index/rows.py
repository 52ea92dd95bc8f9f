"""The rows of some fragments of an index, or of all: their unit vectors under a condition, stored or pooled from stored
tokens without the encoder, in memory where they fit; and those nearest to queries.

Shapes: N rows under a condition in blocks of B, Q queries, D dimensions, A axes of sketches, k neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries, StatedHead
from raycase.heads.flat_tokens import FlatTokens
from raycase.index.filters import Filter
from raycase.index.lance_files import (
    OFFSET,
    IndexMetadata,
    Version,
    condition_counts,
    offsets_of,
    scan,
    sql_and,
    sql_equals,
    sql_in,
    vectors_of,
)
from raycase.index.options import Limits
from raycase.index.token_files import OF_SKETCH, read_codes
from raycase.index.topk import Block, Nearest, joined, nearest_rows, only
from raycase.index.weighted_search import Term, best_ids
from raycase.io.schema import BASIS, CODES, CONDITION, HAS_TOKENS, ID, SKETCH, UNCONDITIONAL, UNCONDITIONAL_PART, VECTOR
from raycase.tokens.basis import TokenBasis
from raycase.tokens.pooling import (
    AXES_ROWS,
    SketchPooler,
    TokenPooler,
    UnpackedTokens,
    flat_tokens,
    principal_axes,
    unpack_tokens,
)
from raycase.tokens.sketch import PARTS, WHOLE, TokenSketch
from raycase.tokens.stored import StoredTokens

if TYPE_CHECKING:
    from lance import LanceDataset

BATCH_ROWS = 16384  # rows read at a time where the vectors of a condition do not fit into memory
FEW = 8  # where a filter leaves at most one in so many rows, these alone are pooled
TOKEN_ROWS, SKETCHED_ROWS = 8192, 2**16  # rows whose tokens or sketches are read at a time
CONDITIONS = 1024  # whose axes are remembered: more than there is room for vectors along them
POOLERS = 16  # that are remembered, of a basis and a condition: a few megabytes each
UNCOVERED = 64  # conditions of which it is remembered which rows have tokens alone

AnyKey = TypeVar("AnyKey")
Made = TypeVar("Made")
RowBatch = tuple[np.ndarray, str, UnpackedTokens]  # row offsets (B,), basis, tokens
Ask = Callable[[str], tuple[ConditionQueries, Tensor]]  # a condition -> what the head keeps of it, and its temperatures


def remembered(found: dict[AnyKey, Made], key: AnyKey, most: int, make: Callable[[], Made]) -> Made:
    """The value of a key, made where it is not among the last `most` that were."""
    if key not in found:
        found[key] = make()
        if len(found) > most:
            del found[next(iter(found))]
    return found[key]


# ------------------------------------------------------------------------------------------- pooled from stored tokens


class TokenVectors:
    """Unit vectors, (B, D), of the rows with stored tokens, which are cached if they fit into `memory_bytes`."""

    column = CODES
    rows_at_once = TOKEN_ROWS

    def __init__(self, version: Version, ask: Ask, memory_bytes: int, fragments: Sequence[int] | None = None) -> None:
        """fragments: whose rows alone are there; None: all."""
        root, self.dataset, metadata = version
        self.ask, self.memory_bytes, self.count = ask, memory_bytes, metadata.with_tokens
        self.scan = partial(scan, self.dataset, fragments)
        self.cached: list[RowBatch] | None = None
        self.codes = cache(lambda basis: TokenBasis.from_bytes(*read_codes(root, basis)))
        self.sketches = metadata.sketches
        self.sketch = cache(
            lambda basis: TokenSketch.from_bytes(*read_codes(root, metadata.sketches[basis], OF_SKETCH))
        )
        self.poolers: dict[tuple[str, str], TokenPooler | SketchPooler] = {}
        self.known_axes: dict[str, Tensor] = {}

    def pooler(self, basis: str, condition: str) -> Any:
        """What pools rows of a basis under a condition."""
        return remembered(self.poolers, (basis, condition), POOLERS, partial(self._new_pooler, basis, condition))

    def _new_pooler(self, basis: str, condition: str) -> TokenPooler | SketchPooler:
        return TokenPooler(self.codes(basis), *self.ask(condition))

    def blocks(self, condition: str, offsets_B: np.ndarray | None = None) -> Iterator[Block]:
        """Row offsets and unit vectors under a condition, of the rows at some offsets, or of all."""
        for offsets_N, basis, tokens in self.batches() if offsets_B is None else self._at(offsets_B):
            vectors_ND = self.pooler(basis, condition).pool(tokens).flatten(1)
            yield offsets_N[tokens.order], F.normalize(vectors_ND, dim=-1, out=vectors_ND)

    def stated_at(self, condition: str, offsets_B: np.ndarray, head: StatedHead) -> np.ndarray:
        """The probability that the rows at these offsets, ascending, state something of the condition: (B,)."""
        stated_B = np.empty(len(offsets_B), np.float32)
        for found_N, basis, tokens in self._at(offsets_B):
            stated_N = self.pooler(basis, condition).stated(tokens, head)[:, 0]
            stated_B[np.searchsorted(offsets_B, found_N[tokens.order])] = stated_N.numpy()
        return stated_B

    def heaviest(self, condition: str, most: int) -> float:
        """The mean weight of the heaviest token of at most so many rows under a condition."""
        offsets_B = offsets_of(self.scan(columns=[OFFSET], filter=HAS_TOKENS, limit=most).to_table())
        found = [self.pooler(basis, condition).heaviest(tokens) for _, basis, tokens in self._at(offsets_B)]
        return float(torch.cat(found).mean())

    def flat(self, offsets_B: np.ndarray) -> FlatTokens:
        """What the head keeps of the rows at these offsets, ascending, up to rounding."""
        found = [
            (of[tokens.order], flat_tokens(tokens, self.codes(basis))) for of, basis, tokens in self._at(offsets_B)
        ]
        offsets, parts = zip(*found, strict=True)
        return FlatTokens.joined(parts).take(np.argsort(np.concatenate(offsets)))

    def batches(self) -> Iterator[RowBatch]:
        """Offsets, basis and tokens of all rows, batch by batch."""
        if self.cached is not None:
            yield from self.cached
            return
        kept: list[RowBatch] = []
        size = 0
        rows = {"columns": [OFFSET, self.column, UNCONDITIONAL_PART, BASIS], "filter": HAS_TOKENS}
        for read in self.scan(**rows, batch_size=self.rows_at_once).to_batches():
            for batch in self._by_basis(pa.table(read)):
                size += batch[2].nbytes
                kept.append(batch)
                if size > self.memory_bytes:
                    kept.clear()
                yield batch
        if size <= self.memory_bytes:
            self.cached = kept

    def _at(self, offsets_B: np.ndarray) -> Iterator[RowBatch]:
        for start in range(0, len(offsets_B), TOKEN_ROWS):
            offsets = offsets_B[start : start + TOKEN_ROWS]
            rows = self.dataset.take(offsets, columns=[self.column, UNCONDITIONAL_PART, BASIS])
            yield from self._by_basis(rows.append_column(OFFSET, pa.array(offsets)))

    def _by_basis(self, table: pa.Table) -> Iterator[RowBatch]:
        for basis in pc.unique(table[BASIS]).to_pylist():  # one, but where outputs meet
            rows = table.filter(pc.equal(table[BASIS], basis))
            codes, is_coded = self.codes(basis), self.column == CODES
            form = codes.form if is_coded else replace(codes.form, token_bytes=len(self.sketch(basis).centroids))
            stored = StoredTokens.from_arrow(rows, form, self.column)
            yield offsets_of(rows), basis, unpack_tokens(stored, codes if is_coded else None)


class SketchVectors(TokenVectors):
    """Approximate vectors, (B, A), from sketches, along the axes of each condition; queries are projected on these."""

    column = SKETCH
    rows_at_once = SKETCHED_ROWS

    @cached_property
    def is_coarse(self) -> bool:
        """Whether an earlier version sketched some of the rows, by a quarter of the bytes."""
        return min(len(self.sketch(basis).centroids) for basis in self.sketches) < WHOLE + PARTS

    def axes(self, condition: str) -> Tensor:
        """The axes of a condition, (D, A), by a sample of all rows."""

        def make() -> Tensor:
            pooler_of, step = cache(partial(self._whole, condition=condition)), -(-self.count // AXES_ROWS)
            pooled = [pooler_of(basis).pool(tokens.sample(step)) for _, basis, tokens in self.batches()]
            return principal_axes(torch.cat(pooled))

        return remembered(self.known_axes, condition, CONDITIONS, make)

    def _new_pooler(self, basis: str, condition: str) -> TokenPooler | SketchPooler:
        return self._whole(basis, condition).along(self.axes(condition))

    def _whole(self, basis: str, condition: str) -> SketchPooler:
        return SketchPooler(self.sketch(basis), self.codes(basis), *self.ask(condition))


# ----------------------------------------------------------------------------------------------------------- in memory


class ConditionVectors:
    """The unit vectors of an index under one condition or another, read once and cached up to `memory_bytes`.

    pooled: gives them for a condition that the index lacks, and for rows that lack one which others have; the oldest
    leave the cache first. Where some rows alone are pooled, these are remembered in what room is left.
    """

    def __init__(self, metadata: IndexMetadata, memory_bytes: int, pooled: TokenVectors) -> None:
        self.metadata, self.memory_bytes, self.pooled = metadata, memory_bytes, pooled
        self.dataset, self.scan = pooled.dataset, pooled.scan
        self.cached: dict[tuple[str | None, bool], Block] = {}  # by condition, and whether they are pooled
        self.remembered: dict[str, list[Block]] = {}  # rows that were pooled, by condition
        self.uncovered: dict[str, np.ndarray] = {}

    def to_pool(self, condition: str | None) -> np.ndarray | None:
        """The offsets, ascending, of the rows with stored tokens whose id has no row under a condition; None: all."""
        if self.metadata.lacks(condition):
            return None
        if not self.metadata.with_tokens or condition is None or condition in self.metadata.kept:
            return np.empty(0, np.int64)
        return remembered(self.uncovered, condition, UNCOVERED, partial(self._uncovered, condition))

    def _uncovered(self, condition: str) -> np.ndarray:
        stored = self.dataset.to_table(columns=[ID], filter=sql_equals(CONDITION, condition))[ID]
        tokens = self.scan(columns=[ID, OFFSET], filter=HAS_TOKENS).to_table()
        return offsets_of(tokens.filter(pc.invert(pc.is_in(tokens[ID], value_set=stored))))

    def pooled_rows(self, condition: str | None) -> int:
        """How many rows are pooled under a condition."""
        rows = self.to_pool(condition)
        return self.metadata.with_tokens if rows is None else len(rows)

    def is_pooled(self, condition: str | None, offsets_B: np.ndarray) -> np.ndarray:
        """Which of some rows under a condition are pooled: (B,) bool."""
        rows = self.to_pool(condition)
        return np.ones(len(offsets_B), bool) if rows is None else np.isin(offsets_B, rows)

    def rows_under(self, conditions: Sequence[str | None]) -> str:
        """The filter for the rows under some conditions, and those with stored tokens where some are pooled."""
        stored = [name for name in conditions if name in self.metadata.conditions]
        either = [sql_equals(CONDITION, None)] * (None in conditions) + [sql_in(CONDITION, stored)] * bool(stored)
        return f"({' OR '.join(either + [HAS_TOKENS] * any(map(self.pooled_rows, conditions)))})"

    def blocks(
        self, condition: str | None, where: Filter | None = None, among: np.ndarray | None = None
    ) -> Iterator[Block]:
        """Offsets and vectors of the rows under a condition (None: unconditional): in the order of the dataset, but for
        pooled ones, which come last; batch by batch where they are not cached. among: the only ones that are pooled."""
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
        under, part = sql_equals(CONDITION, condition), (condition, False)
        column = UNCONDITIONAL if condition is None else VECTOR
        size = 4 * self.metadata.rows_under(condition) * self.dataset.schema.field(column).type.list_size
        if part not in self.cached and size <= self._room:
            table = self.scan(columns=[OFFSET, column], filter=under).to_table()
            self.cached[part] = offsets_of(table), vectors_of(table[column])
            self._forget()
        if part in self.cached:
            yield only(self.cached[part], self.offsets(under, where) if where else None)
        else:
            rows = self.scan(columns=[OFFSET, column], filter=sql_and(under, where), batch_size=BATCH_ROWS)
            yield from ((offsets_of(batch), vectors_of(batch[column])) for batch in rows.to_batches())

    def offsets(self, passing: str, where: Filter | None) -> np.ndarray:
        """The offsets, ascending, of the rows that pass two filters: (N,)."""
        return offsets_of(self.scan(columns=[OFFSET], filter=sql_and(passing, where)).to_table())

    def at(self, condition: str | None, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of rows that are stored under a condition, at these offsets: (B, D) float32."""
        if (condition, False) in self.cached:
            offsets_N, vectors_ND = self.cached[condition, False]
            return vectors_ND[torch.from_numpy(np.searchsorted(offsets_N, offsets_B))]
        column = UNCONDITIONAL if condition is None else VECTOR
        return vectors_of(self.dataset.take(offsets_B, columns=[column])[column])

    def pooled_at(self, condition: str, offsets_B: np.ndarray) -> Iterator[Block]:
        """Offsets and vectors of some rows with stored tokens, pooled under a condition and remembered: in a few blocks
        each larger than the next, for one would be copied with each query."""
        self.remembered[condition] = self.remembered.pop(condition, [])
        found = [only(block, offsets_B) for block in self.remembered[condition]]
        yield from found
        missing = np.setdiff1d(offsets_B, np.concatenate([np.empty(0, np.int64), *(known for known, _ in found)]))
        for block in self.pooled.blocks(condition, missing):
            blocks = self.remembered.setdefault(condition, [])
            if not any(np.isin(known, block[0]).any() for known, _ in blocks):  # else another thread pooled them, too
                blocks.append(joined([block]))
            while len(blocks) > 1 and len(blocks[-1][0]) > len(blocks[-2][0]) // 2:
                blocks[-2:] = [joined(blocks[-2:])]
            self._forget()
            yield block

    def _forget(self) -> None:
        """Forget the oldest of the conditions that are remembered until the others fit."""
        while self.remembered and sum(v.nbytes for each in self.remembered.values() for _, v in each) > self._room:
            del self.remembered[next(iter(self.remembered))]

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
            self._forget()

    @property
    def _room(self) -> int:
        """Bytes that are left for vectors."""
        return self.memory_bytes - sum(vectors_ND.nbytes for _, vectors_ND in self.cached.values())


# -------------------------------------------------------------------------------------------------------------- search


class IndexRows:
    """The rows of an index, or of some fragments: their vectors and stored tokens, read when they are needed."""

    def __init__(self, version: Version, limits: Limits, ask: Ask, fragments: Sequence[int] | None = None) -> None:
        """ask: what the head keeps of a condition. fragments: at least one; None: all."""
        if fragments is not None:
            version = version._replace(metadata=counted(version.dataset, version.metadata, fragments))
        tokens = version, ask, limits.token_memory, fragments
        self.pooled, self.sketched = TokenVectors(*tokens), SketchVectors(*tokens)
        of_rows = replace(version.metadata, conditions={})  # sketches are pooled under those that the index has, too
        self.vectors = ConditionVectors(version.metadata, limits.memory_bytes, self.pooled)
        self.sketch_vectors = ConditionVectors(of_rows, limits.memory_bytes, self.sketched)

    def nearest(self, terms: Sequence[Term], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """The k rows with the largest weighted means of their cosines with the queries under each condition, best
        first: of all, or of so many to be pooled for each query, by their sketches. One condition, or several that are
        all pooled: an id may have its rows under others in several shards."""
        vectors, first = self.vectors, terms[0]
        needed = {(term.condition, vectors.pooled_rows(term.condition) > 0) for term in terms}
        if needed <= vectors.cached.keys() or not vectors.metadata.with_tokens:
            candidates = None
        if len(terms) > 1 or first.share != 1:
            among = None if candidates is None else self.candidates(terms, where, candidates)
            return self.combined(terms, k, where, among)[:2]
        among = None
        if candidates is not None and first.condition is not None and vectors.pooled_rows(first.condition):
            projected_QA = first.vectors @ self.sketched.axes(first.condition).numpy()
            of_all = self.sketch_vectors.blocks(first.condition, where)
            sketches = (only(block, vectors.to_pool(first.condition)) for block in of_all)
            best_Qk = nearest_rows(projected_QA, sketches, candidates)[1]
            among = np.unique(best_Qk[best_Qk >= 0])
        return nearest_rows(first.vectors, vectors.blocks(first.condition, where, among), k)

    def combined(
        self, terms: Sequence[Term], k: int, where: Filter | None, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`best_ids` of the rows that pass the filter: of all, or of those whose ids the rows at some offsets have."""
        named = [str(term.condition) for term in terms]
        stored = [name for name in named if not self.vectors.metadata.lacks(name)]
        if not stored:  # an id has one row with stored tokens
            offsets = self.vectors.offsets(HAS_TOKENS, where) if among is None else among
            ids, under = np.arange(len(offsets)), np.full(len(offsets), "")
        else:
            passing = sql_and(self.vectors.rows_under(named), where)
            if among is not None:
                ids_there = self.vectors.dataset.take(among, columns=[ID])[ID].unique().to_pylist()
                passing = sql_and(passing, sql_in(ID, ids_there))
            rows = self.vectors.scan(columns=[ID, CONDITION, OFFSET], filter=passing).to_table()
            offsets, ids = offsets_of(rows), rows[ID].combine_chunks().dictionary_encode().indices.to_numpy()
            under = rows[CONDITION].fill_null("").to_numpy()

        def of_some(condition: str) -> Iterator[Block]:
            if len(own_B := offsets[under == condition]):
                yield own_B, self.vectors.at(condition, own_B)
            others_B = offsets[under == ""]
            if len(others_B := others_B[self.vectors.is_pooled(condition, others_B)]):
                yield from self.vectors.pooled_at(condition, others_B)

        blocks = partial(self.vectors.blocks, where=where) if among is None else of_some
        return best_ids(terms, offsets, ids, blocks, k)

    def candidates(self, terms: Sequence[Term], where: Filter | None, most: int) -> np.ndarray:
        """The offsets of so many rows for each query that, by their sketches under all conditions, are best: (N,)."""
        projected = [
            replace(term, vectors=term.vectors @ self.sketched.axes(str(term.condition)).numpy()) for term in terms
        ]
        offsets, blocks = self.vectors.offsets(HAS_TOKENS, where), partial(self.sketch_vectors.blocks, where=where)
        best = np.unique(best_ids(projected, offsets, np.arange(len(offsets)), blocks, min(most, len(offsets)))[1])
        return best[best >= 0]

    def at(self, condition: str | None, offsets_N: np.ndarray) -> Tensor:
        """The unit vectors of rows under a condition, stored or pooled, in any order, repeated or not: (N, D)."""
        offsets_B, row_N = np.unique(offsets_N, return_inverse=True)
        is_pooled_B = self.vectors.is_pooled(condition, offsets_B)
        blocks = [*self.pooled.blocks(str(condition), offsets_B[is_pooled_B])]
        if len(stored_B := offsets_B[~is_pooled_B]):
            blocks.append((stored_B, self.vectors.at(condition, stored_B)))
        return joined(blocks)[1][torch.from_numpy(row_N)]


def counted(dataset: LanceDataset, metadata: IndexMetadata, fragments: Sequence[int]) -> IndexMetadata:
    """The metadata with the counts of these fragments alone; it names all conditions of the index."""
    under, with_tokens = Counter[str | None](), 0
    for rows in scan(dataset, fragments, columns=[CONDITION, *[BASIS] * bool(metadata.with_tokens)]).to_batches():
        under.update(condition_counts(rows))
        with_tokens += len(rows) - rows[BASIS].null_count if metadata.with_tokens else 0
    conditions = {name: under[name] for name in metadata.conditions}
    return replace(metadata, conditions=conditions, unconditional=under[None], with_tokens=with_tokens)
