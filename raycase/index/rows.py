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
import torch
from torch import Tensor

from raycase.index.condition_vectors import Ask, ConditionVectors, SketchVectors, TokenVectors
from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, IndexMetadata, condition_counts, offsets_of, scan, sql_and, sql_in
from raycase.index.topk import Block, Nearest, joined, nearest_rows, only
from raycase.index.weighted_search import Term, best_ids, candidate_rows
from raycase.io.schema import BASIS, CONDITION, HAS_TOKENS, ID
from raycase.io.storage import Location

if TYPE_CHECKING:
    from lance import LanceDataset


MOST_MEMORY = 2**20  # GiB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search holds in memory."""

    memory_bytes: int = 2 * 2**30  # vectors cached, of all rows or some, and as many from sketches; more are read again
    token_memory: int = 4 * 2**30  # stored tokens cached, and as many sketches; more are read by each new condition


class IndexRows:
    """The rows of an index, or of some fragments: their vectors and stored tokens, read when they are needed."""

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
        tokens = dataset, root, metadata, ask, limits.token_memory, fragments
        self.pooled, self.sketched = TokenVectors(*tokens), SketchVectors(*tokens)
        of_rows = replace(metadata, conditions={})  # sketches are pooled under those that the index has, too
        self.vectors, self.sketch_vectors = (
            ConditionVectors(dataset, own, limits.memory_bytes, pooled, fragments)
            for own, pooled in ((metadata, self.pooled), (of_rows, self.sketched))
        )

    def nearest(self, terms: Sequence[Term], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """The k rows with the largest weighted means of their cosines with the queries under each condition, best
        first: all that pass the filter are compared, or of those to be pooled so many candidates for each query, by
        their sketches. One condition, or several that are all pooled: an id may have its rows under others in several
        shards."""
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
        """The offsets of rows with stored tokens that, by their sketches under all conditions, are best: (N,)."""
        projected = [
            replace(term, vectors=term.vectors @ self.sketched.axes(str(term.condition)).numpy()) for term in terms
        ]
        blocks = partial(self.sketch_vectors.blocks, where=where)
        return candidate_rows(projected, self.vectors.offsets(HAS_TOKENS, where), blocks, most)

    def at(self, condition: str | None, offsets_N: np.ndarray) -> Tensor:
        """The unit vectors of rows under a condition, stored or pooled, in any order and several times each: (N, D)
        float32."""
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
