"""What rows are near to, and where they stand: what takes long in a map, by their vectors alone.

Shapes: N rows, D dimensions, k neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from raycase.explore.positions import NEIGHBOURS, nearest_rows, place, principal_axes
from raycase.search.facets import Clusters, find_clusters


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How many neighbours of each row are listed, the number of facets, and the seed of facets and positions."""

    neighbours: int
    clusters: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Groups:
    """What N rows are near to: cosines and rows (N, k) of those nearest to each, as many as its position takes and are
    listed; the facet of each and its cosine with the middle of it, (N,)."""

    cosines: np.ndarray
    rows: np.ndarray
    facet: np.ndarray
    centred: np.ndarray

    def clusters(self) -> Clusters:
        """The facets as clusters of rows 0 to N - 1."""
        own, count = np.arange(len(self.facet)), int(self.facet.max()) + 1
        return Clusters(
            offsets=own, cluster=self.facet, cosine=self.centred, centres=np.empty((count, 0)), silhouette=None
        )


def group(vectors_ND: np.ndarray, settings: MapSettings) -> Groups:
    """The neighbours and facets of rows by their unit vectors."""
    others, around = len(vectors_ND) - 1, NEIGHBOURS - 1
    cosines_Nk, rows_Nk = nearest_rows(vectors_ND, min(max(around, settings.neighbours), others))
    block = np.arange(len(vectors_ND)), torch.from_numpy(vectors_ND)
    clusters = min(settings.clusters, len(vectors_ND))
    found = find_clusters(lambda: [block], clusters, most=clusters, seed=settings.seed)
    return Groups(cosines=cosines_Nk, rows=rows_Nk, facet=found.cluster, centred=found.cosine)


def arrange(vectors_ND: np.ndarray, groups: Groups, before_N2: np.ndarray | None, seed: int) -> np.ndarray:
    """The positions of grouped rows, (N, 2), which start where those of the map before are, if there is one."""
    start_N2 = principal_axes(vectors_ND, seed) if before_N2 is None else before_N2
    near = slice(NEIGHBOURS - 1)
    return place(vectors_ND, groups.cosines[:, near], groups.rows[:, near], start_N2, seed)
