"""Vectors of rated pairs before g.

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
    """Vectors of rated pairs as eq. 1 has them before g. The arrays may be read-only (Ray's object store)."""

    vectors: np.ndarray  # (P, D) float32, the views side by side
    places: np.ndarray  # (N, 2) int64 into `vectors`
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def applicable(self) -> PairVectors:
        """Without the pairs to which the condition does not apply: their -1 is no rating."""
        kept = self.ratings != NOT_APPLICABLE
        return PairVectors(vectors=self.vectors, places=self.places[kept], ratings=self.ratings[kept])


def pair_vectors(
    rated: RatedPairs, config: EmbedderConfig, vectors_of: VectorsOf, *, cache: Location, compute: Compute | None = None
) -> PairVectors:
    """The vectors before g of every sentence of the pairs, views side by side. Raises RequestError."""
    vectors = vectors_of(rated.distinct, config, name=rated.uri, cache=cache, compute=compute)
    return PairVectors(vectors=vectors, places=rated.pair_index, ratings=rated.ratings)
