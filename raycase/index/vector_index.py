"""An open index by its vectors: the rows under a condition, their vectors, and those nearest to a vector.

Shapes: Q queries, N rows, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from raycase.errors import RequestError
from raycase.index.answers import returned_columns
from raycase.index.approximate import DEFAULT_OPTIONS, Options, approximate_nearest, is_coded
from raycase.index.combined import Term
from raycase.index.condition_vectors import FEW
from raycase.index.filters import Filter, checked_filter
from raycase.index.lance_files import lance_errors, open_ready
from raycase.index.metadata import IndexMetadata
from raycase.index.query_encoder import QueryEncoder
from raycase.index.shard import Limits, Shard
from raycase.index.topk import Block, Nearest, joined
from raycase.io.schema import PLAIN, VECTOR
from raycase.io.shared import Shared, exclusive
from raycase.io.storage import Location, locate
from raycase.io.stored_tokens import BASIS, SKETCH
from raycase.models.embeds import Embeds

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_POOLED, POOLED_REFINE = 5000, 50  # candidates by sketches that are pooled: as many, or times k


class VectorIndex(Shared):
    """An open index, for any number of threads. Its model is loaded with the first text."""

    def __init__(
        self,
        root: Location,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        *,
        model: str | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        self.root, self.dataset, self.metadata, self.limits = root, dataset, metadata, limits
        self.query_encoder = QueryEncoder(metadata, model, root.uri)
        self.model = self.query_encoder.model
        self.all_rows = Shard(root, dataset, metadata, limits, self.query_encoder.ask)
        self.vectors, self.pooled = self.all_rows.vectors, self.all_rows.pooled

    @classmethod
    def open(cls, uri: str, *, model: str | None = None, limits: Limits = Limits()) -> Self:  # noqa: B008
        """Open the index at a path or URI; `model` is the folder of its model, if it has moved.

        Raises RequestError where there is no finished index.
        """
        root = locate(uri)
        ready = open_ready(root)
        if ready is None:
            raise RequestError(f"expected an index at {root.uri}, got no finished one; see `raycase index`")
        return cls(root, *ready, model=model, limits=limits)

    @property
    def encoder(self) -> Embeds:
        """The index's model, loaded. Raises RequestError where another model is at its name or folder."""
        return self.query_encoder.encoder

    @property
    def columns(self) -> list[str]:
        """The columns that a search returns of each row: id and the kept ones."""
        return returned_columns(self.dataset)

    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition, those with stored tokens for one to be pooled; None: without."""
        return self.metadata.rows_under(condition)

    def is_pooled(self, condition: str | None) -> bool:
        """Whether vectors under a condition are pooled from stored tokens, for the index does not have them."""
        return self.metadata.words > 0 and self.metadata.is_pooled(condition)

    @exclusive
    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """Unit vectors of sentences, or of phrases that answer it, under one condition (None: f(s)): (Q, D) float32.

        Raises RequestError, in which the sentences are `named` so, for a text that cannot be embedded.
        """
        return self.query_encoder.embed(sentences, condition, named, phrases=phrases)

    @exclusive
    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose unconditional vector f(c) is nearest to that of another one, and their cosine."""
        return self.query_encoder.nearest_condition(condition)

    @exclusive
    def nearest(
        self,
        vectors_QD: np.ndarray,
        condition: str | None,
        k: int,
        where: str | None = None,
        *,
        options: Options = DEFAULT_OPTIONS,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k rows nearest to unit vectors under a condition of the index (None: unconditional), best first: (Q, D)
        -> cosines (Q, k), row offsets (Q, k); -inf and -1 where the filter leaves fewer. Where there are fewer than k
        rows, k is their number. Raises RequestError."""
        return self._nearest(vectors_QD, condition, k, self._checked(where), options)

    def _nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        """`nearest`: by comparing every vector, by the index of its column, or, for a condition that is pooled from
        stored tokens, by the sketches of all rows, of which the best are pooled, unless that is nearly all of them."""
        rows = self.metadata.rows_under(condition)
        k = min(k, rows)
        column = PLAIN if condition is None else VECTOR
        coded = not self.is_pooled(condition) and is_coded(self.dataset, self.metadata, column)
        if coded and not self._is_exact(rows, options):
            return self._approximate(vectors_QD, condition, k, where, options)
        term = Term(condition=condition, share=1.0, vectors=vectors_QD)
        return self._compare([term], k, where, self._candidates(len(vectors_QD), rows, k, where, options))

    def _candidates(self, queries: int, rows: int, k: int, where: Filter | None, options: Options) -> int | None:
        """How many rows are pooled for each query, of those that are best by their sketches; None: all are."""
        if self._is_exact(rows, options) or SKETCH not in self.dataset.schema.names:
            return None
        candidates = options.candidates(k, POOLED_REFINE, LEAST_POOLED)
        if where and (few := self.dataset.count_rows(f"{BASIS} IS NOT NULL AND {where}")) * FEW <= rows:
            rows = few  # which alone are pooled
        return None if queries * candidates >= rows / 4 else candidates

    def _approximate(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """`_nearest` by the index of a column."""
        return approximate_nearest(self.dataset, self.metadata, vectors_QD, condition, k, where, options)

    def _compare(self, terms: Sequence[Term], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """`_nearest` by comparing every vector, or so many candidates by sketches; `Shard.nearest`."""
        return self.all_rows.nearest(terms, k, where, candidates)

    def _is_exact(self, rows: int, options: Options) -> bool:
        """Whether a search among so many rows compares every vector."""
        return options.exact or not self.metadata.is_approximate(rows)

    @exclusive
    def blocks(
        self, asked: str | None, where: str | None = None, *, exact_condition: bool = False
    ) -> tuple[str | None, Callable[[], Iterator[Block]]]:
        """All rows under a condition (None: unconditional) that pass a filter: the condition of the index that is taken
        for the one that was asked, as in a search, and a function that reads the rows' offsets and unit vectors, in
        blocks. Raises RequestError."""
        passing = self._checked(where)
        condition = self.query_encoder.condition_for(asked, exact_condition)

        def read() -> Iterator[Block]:
            found = self.vectors.blocks(condition, passing)
            while True:
                with self.lock, lance_errors(self.root):
                    block = next(found, None)
                if block is None:
                    return
                yield block

        return condition, read

    @exclusive
    def vectors_at(self, condition: str | None, offsets_N: np.ndarray) -> np.ndarray:
        """The unit vectors of the rows at these offsets, under a condition of the index (None: unconditional) or pooled
        from their stored tokens: (N, D) float32. Raises RequestError and WorkError."""
        with lance_errors(self.root):
            if condition is None or not self.is_pooled(condition):
                return self.vectors.at(condition, offsets_N).float().numpy()
            offsets_M, row_N = np.unique(offsets_N, return_inverse=True)
            return joined(self.pooled.at(condition, offsets_M))[1].numpy()[row_N]

    def tells(self, condition: str | None) -> bool:
        """Whether it is known what the rows' stored tokens say of a condition: something or nothing."""
        return self.is_pooled(condition) and self.encoder.says is not None

    @exclusive
    def stated_at(self, condition: str, offsets_N: np.ndarray) -> np.ndarray:
        """The probabilities that rows say something of a condition that the index `tells`: (N,) float32."""
        assert self.encoder.says is not None
        offsets_M, row_N = np.unique(offsets_N, return_inverse=True)
        with lance_errors(self.root):
            return self.pooled.stated_at(condition, offsets_M, self.encoder.says)[row_N]

    def _checked(self, where: str | None) -> Filter | None:
        return None if where is None else checked_filter(self.dataset, self.root, where, "where")
