"""Where rows stand on a map: UMAP (McInnes et al., 2018, arXiv:1802.03426) of their nearest neighbours by cosine.

Shapes: N rows, D dimensions, k neighbours.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes

from raycase.errors import lacks_package
from raycase.index.topk import top_k

NEIGHBOURS = 15  # of a row, itself among them: UMAP's default
LEAST_ROWS = 3
FAR, EDGE = 0.01, 0.25  # share of the rows at each side that are far, and how far from the others they are drawn
STEPS = 2**16 - 1  # from one edge of the map to the other


def import_umap() -> Any:
    """The package umap-learn. Raises RequestError where it is not installed."""
    try:
        import umap
    except ImportError as error:
        raise lacks_package("umap-learn", "explore", "for explore") from error
    return umap


def nearest_rows(vectors_ND: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k rows nearest to each by the cosine of unit vectors, best first, without itself: cosines, rows, two of
    (N, k)."""
    vectors, own = torch.from_numpy(vectors_ND), torch.arange(len(vectors_ND))
    return top_k(vectors, [vectors], k, query_groups=own, groups=own)


def principal_axes(vectors_ND: np.ndarray, seed: int) -> np.ndarray:
    """The rows along the two axes of largest variance, with a little noise, for equal vectors must part: (N, 2)."""
    centred_ND = vectors_ND - vectors_ND.mean(axis=0)
    axes_D2 = np.linalg.eigh(centred_ND.T @ centred_ND)[1][:, -2:]
    noise_N2 = np.random.default_rng(seed).normal(scale=1e-3, size=(len(vectors_ND), 2))
    return centred_ND @ axes_D2 + noise_N2


def place(
    vectors_ND: np.ndarray,
    cosines_Nk: np.ndarray,
    rows_Nk: np.ndarray,
    start_N2: np.ndarray,
    seed: int,
    epochs: int | None = None,
) -> np.ndarray:
    """Positions in [-1, 1] of rows whose nearest rows are known, moved from where they start, and turned back to lie as
    these do: (N, 2). epochs: default: UMAP's, 500 up to 10,000 rows and 200 above."""
    own_N1 = np.arange(len(vectors_ND))[:, None]
    known = np.hstack([own_N1, rows_Nk]), np.hstack([np.zeros((len(own_N1), 1)), 1 - cosines_Nk]).clip(0)
    umap = import_umap().UMAP(
        n_neighbors=known[0].shape[1],
        metric="cosine",
        init=start_N2,
        n_epochs=epochs,
        random_state=seed,
        n_jobs=1,
        precomputed_knn=known,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that nobody will add later need no index
        placed_N2 = umap.fit_transform(vectors_ND)
    placed_N2, start_N2 = placed_N2 - placed_N2.mean(axis=0), start_N2 - start_N2.mean(axis=0)
    return fitted(placed_N2 @ orthogonal_procrustes(placed_N2, start_N2)[0])


def fitted(positions_N2: np.ndarray) -> np.ndarray:
    """The positions, shifted and scaled alike in both directions to fill [-1, 1]; the few farthest are drawn nearer, or
    all others would have little room."""
    low, high = np.quantile(positions_N2, [FAR, 1 - FAR], axis=0)
    scaled_N2 = (2 * positions_N2 - low - high) / max((high - low).max(), 1e-12)
    beyond_N2 = (np.abs(scaled_N2) - 1).clip(0)
    drawn_N2 = np.sign(scaled_N2) * (np.abs(scaled_N2) - beyond_N2 + EDGE * np.tanh(beyond_N2 / EDGE))
    return drawn_N2 / max(np.abs(drawn_N2).max(), 1e-12)


def to_steps(positions_N2: np.ndarray) -> np.ndarray:
    """Positions in [-1, 1] as 16-bit numbers: (N, 2) uint16."""
    return np.rint((positions_N2 + 1) / 2 * STEPS).clip(0, STEPS).astype("<u2")
