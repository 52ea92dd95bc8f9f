"""The rows of some fragments of an index, or of all: what a search holds of them in memory, and their answers.

Shapes: N rows, B of some of them, Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from raycase.index.combined import Part, best_ids, candidate_rows, numbers_of, rows_under
from raycase.index.exact import Block, ConditionVectors, exact_nearest, nearest_by_sketches
from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, offsets_of, scan
from raycase.index.metadata import IndexMetadata
from raycase.index.pooled import Ask, PooledVectors, SketchedVectors, StoredRows
from raycase.io.schema import CONDITION, ID
from raycase.io.storage import Location
from raycase.io.stored_tokens import BASIS, CODES, SKETCH

if TYPE_CHECKING:
    from lance import LanceDataset

Nearest = tuple[np.ndarray, np.ndarray]  # cosines (Q, k), row offsets (Q, k); -inf and -1 where there are fewer


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search holds in memory, and how many conditions it compares."""

    memory_bytes: int = 2 * 2**30  # vectors cached, of all rows or some, and as many from sketches; more are read again
    token_memory: int = (
        4 * 2**30
    )  # stored tokens cached, and as many sketches; more are read again by each new condition
    queries: int = 1024  # queries under one condition that are answered at a time
    cosines: int = 2**25  # cosines of queries and ids held at a time where conditions are combined
    conditions_combined: int = 64  # conditions whose cosines are averaged
    conditions_compared: int = 2000  # conditions among which the nearest to another is looked up


class Shard:
    """The rows of some fragments: their vectors and stored tokens, read when they are needed, and cached."""

    def __init__(
        self,
        root: Location,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        limits: Limits,
        ask: Ask,
        fragments: Sequence[int] | None = None,
    ) -> None:
        """ask: what the head keeps of a condition, by which vectors are pooled. fragments: at least one; None: all."""
        if fragments is not None:
            metadata = counted(dataset, metadata, fragments)
        words, sketches = (
            StoredRows(dataset, root, metadata, column, limits.token_memory, fragments) for column in (CODES, SKETCH)
        )
        self.pooled, self.sketched = PooledVectors(words, ask), SketchedVectors(sketches, ask, metadata.words)
        of_rows = replace(metadata, conditions={})  # sketches are pooled under those that the index has, too
        self.vectors, self.sketch_vectors = (
            ConditionVectors(dataset, own, limits.memory_bytes, pooled, fragments)
            for own, pooled in ((metadata, self.pooled), (of_rows, self.sketched))
        )

    def nearest(self, parts: Sequence[Part], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """The k rows with the largest weighted means of their cosines with the queries under each condition, best
        first: all that pass the filter are compared, or of those to be pooled so many candidates for each query, by
        their sketches. One condition, or several that are all pooled: an id may have its rows under others in several
        shards."""
        if len(parts) > 1 or parts[0].share != 1:
            is_cached = all(part.condition in self.vectors.cached for part in parts)
            if candidates is None or is_cached or not self.vectors.metadata.words:
                return self.combined(parts, k, where)[:2]
            return self.combined(parts, k, where, self.candidates(parts, where, candidates))[:2]
        vectors, [part] = self.vectors, parts
        condition, vectors_QD = part.condition, part.vectors
        if condition is None or condition in vectors.metadata.conditions:
            return exact_nearest(
                vectors_QD, partial(vectors.blocks, condition, where), k, partial(vectors.at, condition)
            )
        at = partial(self.pooled.float64_at, condition)
        if candidates is None or condition in vectors.cached or not vectors.metadata.words:
            return exact_nearest(vectors_QD, partial(vectors.blocks, condition, where), k, at)
        projected_QA = vectors_QD @ self.sketched.axes(condition).numpy()
        rows = nearest_by_sketches(projected_QA, self.sketch_vectors.blocks(condition, where), candidates)
        return exact_nearest(vectors_QD, partial(vectors.pooled_at, condition, rows), k, at)

    def combined(
        self, parts: Sequence[Part], k: int, where: Filter | None, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`best_ids` of the rows that pass the filter: of all, or of those whose ids the rows at some offsets have."""
        find, take = partial(rows_under, self.vectors.scan, self.vectors.metadata, parts), self.vectors.dataset.take
        stored = {part.condition for part in parts} & self.vectors.metadata.conditions.keys()
        if not stored:  # an id has one row with stored tokens
            offsets = self._with_tokens(where) if among is None else among
            ids, under = np.arange(len(offsets)), np.full(len(offsets), "")
        else:
            rows = find(where, None if among is None else take(among, columns=[ID])[ID].unique().to_pylist())
            offsets, ids = offsets_of(rows), numbers_of(rows[ID])
            under = rows[CONDITION].fill_null("").to_numpy()

        def of_some(condition: str) -> Iterator[Block]:
            if condition not in stored:
                yield from self.vectors.pooled_at(condition, offsets[under == ""])
            elif len(own_B := offsets[under == condition]):
                yield own_B, self.vectors.at(condition, own_B).float()

        blocks = partial(self.vectors.blocks, where=where) if among is None else of_some
        return best_ids(parts, offsets, ids, blocks, self.at, k)

    def candidates(self, parts: Sequence[Part], where: Filter | None, most: int) -> np.ndarray:
        """The offsets of rows with stored tokens that, by their sketches under all conditions, are best: (N,)."""
        projected = [replace(part, vectors=part.vectors @ self.sketched.axes(part.condition).numpy()) for part in parts]
        blocks = partial(self.sketch_vectors.blocks, where=where)
        return candidate_rows(projected, self._with_tokens(where), blocks, most)

    def _with_tokens(self, where: Filter | None) -> np.ndarray:
        """The offsets of the rows with stored tokens that pass the filter, ascending: (N,)."""
        passing = f"{BASIS} IS NOT NULL" + (f" AND {where}" if where else "")
        return offsets_of(self.vectors.scan(columns=[OFFSET], filter=passing).to_table())

    def at(self, condition: str, offsets_B: np.ndarray) -> Tensor:
        """The unit vectors of rows under a condition, at these offsets, ascending, in float64: (B, D)."""
        stored = condition in self.vectors.metadata.conditions
        return (self.vectors.at if stored else self.pooled.float64_at)(condition, offsets_B)


def counted(dataset: LanceDataset, metadata: IndexMetadata, fragments: Sequence[int]) -> IndexMetadata:
    """The metadata with the counts of these fragments alone; it names all conditions of the index."""
    under: Counter[str | None] = Counter()
    words = 0
    columns = [CONDITION, BASIS] if metadata.words else [CONDITION]
    for batch in scan(dataset, fragments, columns=columns).to_batches():
        under.update({row["values"]: row["counts"] for row in batch[CONDITION].value_counts().to_pylist()})
        words += len(batch) - batch[BASIS].null_count if metadata.words else 0
    return replace(
        metadata, conditions={name: under[name] for name in metadata.conditions}, plain=under[None], words=words
    )
