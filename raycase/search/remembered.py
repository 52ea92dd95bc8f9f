"""The vectors of some rows under the last conditions, so that no row is pooled twice under one of them.

Shapes: N rows that are remembered, B others, D dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class RememberedVectors:
    """Unit vectors of rows by their offsets, under each of the last conditions."""

    def __init__(self) -> None:
        self.conditions: dict[str, _Vectors] = {}

    @property
    def nbytes(self) -> int:
        return sum(vectors.vectors_ND.nbytes for vectors in self.conditions.values())

    def of(self, condition: str, offsets_B: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Which of the rows are remembered, (B,) bool, and the vectors of these; their condition is now the last."""
        vectors = self.conditions.pop(condition, _NOTHING)
        if vectors is not _NOTHING:
            self.conditions[condition] = vectors
        place_B = np.array([vectors.places.get(offset, -1) for offset in offsets_B.tolist()], np.int64)
        return place_B >= 0, vectors.vectors_ND[torch.from_numpy(place_B[place_B >= 0])]

    def add(self, condition: str, offsets_B: np.ndarray, vectors_BD: Tensor) -> None:
        """Remember rows that are not yet; their condition is now the last."""
        vectors = self.conditions.pop(condition, None) or _Vectors(vectors_BD.new_empty(0, vectors_BD.shape[1]))
        vectors.add(offsets_B, vectors_BD)
        self.conditions[condition] = vectors

    def forget(self, nbytes: int) -> None:
        """Forget the oldest conditions until the others take no more bytes than this."""
        while self.conditions and self.nbytes > nbytes:
            del self.conditions[next(iter(self.conditions))]


class _Vectors:
    """Vectors under one condition, (N, D) and room for more."""

    def __init__(self, vectors_ND: Tensor) -> None:
        self.places: dict[int, int] = {}
        self.vectors_ND = vectors_ND

    def add(self, offsets_B: np.ndarray, vectors_BD: Tensor) -> None:
        start = len(self.places)
        end = start + len(offsets_B)
        if end > len(self.vectors_ND):
            former_ND, self.vectors_ND = self.vectors_ND, vectors_BD.new_empty(2 * end, vectors_BD.shape[1])
            self.vectors_ND[:start] = former_ND[:start]
        self.vectors_ND[start:end] = vectors_BD
        self.places.update(zip(offsets_B.tolist(), range(start, end), strict=True))


_NOTHING = _Vectors(torch.empty(0, 0))
