"""Vectors of rated pairs: the input of g.

Shapes: P distinct (sentence, condition), N rated pairs, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raycase.data.rated import NOT_APPLICABLE, RatedPairs
from raycase.data.storage import Location
from raycase.systems.contracts import Compute, EmbedderConfig, VectorsOf


@dataclass(frozen=True, kw_only=True)
class PairVectors:
    """Vectors of rated pairs, the argument of g in eq. 1. The arrays may be read-only (Ray's object store)."""

    vectors: np.ndarray  # (P, D) float32, the views side by side
    pair_index: np.ndarray  # (N, 2) int64 into `vectors`
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def applicable(self) -> PairVectors:
        """Only the pairs to which the condition applies; the label -1 is not a rating."""
        rated = self.ratings != NOT_APPLICABLE
        return PairVectors(vectors=self.vectors, pair_index=self.pair_index[rated], ratings=self.ratings[rated])


def pair_vectors(
    rated: RatedPairs, config: EmbedderConfig, vectors_of: VectorsOf, *, cache: Location, compute: Compute | None = None
) -> PairVectors:
    """Embed both sentences of each pair under its condition, views side by side. Raises RequestError."""
    vectors = vectors_of(rated.distinct, config, name=rated.uri, cache=cache, compute=compute)
    return PairVectors(vectors=vectors, pair_index=rated.pair_index, ratings=rated.ratings)
