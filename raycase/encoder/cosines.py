"""Cosines of vectors row by row.

Shapes: N vectors or pairs, P distinct vectors, D dimensions.
"""

from __future__ import annotations

import numpy as np


def cosines(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Cosine of each row of a with the same row of b: (N, D), (N, D) or (D,) -> (N,) float64; 0 for zero vectors."""
    a_ND, b_ND = np.asarray(a_ND, dtype=np.float64), np.asarray(b_ND, dtype=np.float64)
    norms_N = np.linalg.norm(a_ND, axis=-1) * np.linalg.norm(b_ND, axis=-1)
    return (a_ND * b_ND).sum(-1) / np.where(norms_N == 0, 1, norms_N)


def pair_cosines(vectors_PD: np.ndarray, pair_index_N2: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors, given by index: (P, D), (N, 2) -> (N,) float64."""
    return cosines(vectors_PD[pair_index_N2[:, 0]], vectors_PD[pair_index_N2[:, 1]])
