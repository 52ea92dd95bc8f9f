"""The rows of some fragments of an index, or of all: what a search holds of them in memory, and their answers.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raycase.index.exact import ConditionVectors, exact_nearest, nearest_rows
from raycase.index.filters import Filter
from raycase.index.lance_files import scan
from raycase.index.metadata import IndexMetadata
from raycase.index.pooled import Ask, PooledVectors, SketchedVectors, StoredRows
from raycase.io.schema import CONDITION
from raycase.io.storage import Location
from raycase.io.stored_words import BASIS, SKETCH, WORDS

if TYPE_CHECKING:
    from lance import LanceDataset

Nearest = tuple[np.ndarray, np.ndarray]  # cosines (Q, k), row offsets (Q, k); -inf and -1 where there are fewer


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search holds in memory, and how many conditions it compares."""

    memory_bytes: int = 2 * 2**30  # vectors cached, of all rows or some, and as many from sketches; more are read again
    words_bytes: int = 4 * 2**30  # stored words cached, and as many sketches; more are read again by each new condition
    queries: int = 1024  # queries under one condition that are answered at a time
    cosines: int = 2**25  # cosines of queries and ids held at a time where conditions are combined
    conditions_combined: int = 64  # conditions whose cosines are averaged
    conditions_compared: int = 2000  # conditions among which the nearest to another is looked up


class Shard:
    """The rows of some fragments: their vectors and stored words, read when they are needed, and cached."""

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
            StoredRows(dataset, root, metadata, column, limits.words_bytes, fragments) for column in (WORDS, SKETCH)
        )
        self.pooled, self.sketched = PooledVectors(words, ask), SketchedVectors(sketches, ask, metadata.words)
        self.vectors, self.sketch_vectors = (
            ConditionVectors(dataset, metadata, limits.memory_bytes, pooled, fragments)
            for pooled in (self.pooled, self.sketched)
        )

    def nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, candidates: int | None
    ) -> Nearest:
        """The k rows nearest to unit vectors, best first: all rows under the condition (None: plain vectors) that pass
        the filter are compared, or of those to be pooled so many candidates for each query, by their sketches."""
        vectors = self.vectors
        if condition is None or condition in vectors.metadata.conditions:
            return exact_nearest(
                vectors_QD, partial(vectors.blocks, condition, where), k, partial(vectors.at, condition)
            )
        at = partial(self.pooled.float64_at, condition)
        if candidates is None or condition in vectors.cached or not vectors.metadata.words:
            return exact_nearest(vectors_QD, partial(vectors.blocks, condition, where), k, at)
        projected_QA = vectors_QD @ self.sketched.axes(condition).numpy()
        rows = nearest_rows(projected_QA, self.sketch_vectors.blocks(condition, where), candidates)
        return exact_nearest(vectors_QD, partial(vectors.pooled_at, condition, rows), k, at)


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
