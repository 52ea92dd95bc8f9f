"""Clusters of the rows of an index by their unit vectors under a condition: k-means by scikit-learn.

k-means is fitted on a sample of the rows, and every row joins the cluster whose centre has the largest cosine with it.
Of unit vectors the squared Euclidean distance is 2 - 2 cos, so Euclidean k-means with centres scaled to length 1 is
close to spherical k-means.

Shapes: N rows in blocks of B, S rows of a sample, K clusters, D dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.errors import RequestError, lacks_package
from raycase.index.exact import BATCH_ROWS, Block
from raycase.io.vectors import l2_normalize

FITTED = 10_000  # rows on which k-means is fitted; every row is assigned, whatever their number
PER_CLUSTER = 40  # rows of each cluster that are fitted at least, on average
STARTS = 3  # of k-means++; the best counts
TRIED = 4000  # rows on which numbers of clusters are compared: their silhouette takes all pairs of rows


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Rows and their clusters, numbered from 0, the largest first; none is empty."""

    offsets: np.ndarray  # (N,) int64
    cluster: np.ndarray  # (N,) of each row
    cosine: np.ndarray  # (N,) with the centre of its cluster
    centres: np.ndarray  # (K, D), of unit length
    silhouette: float | None  # mean over a sample; None where it has a single cluster, or one for each row

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each cluster: (K,)."""
        return np.bincount(self.cluster, minlength=len(self.centres))

    def members(self) -> list[np.ndarray]:
        """Row indices of each cluster, the nearest to its centre first; of equal ones the earlier."""
        order_N = np.lexsort((-self.cosine, self.cluster))
        return np.split(order_N, np.cumsum(self.sizes)[:-1])


def import_sklearn() -> Any:
    """The package scikit-learn. Raises RequestError where it is not installed."""
    try:
        import sklearn.cluster
        import sklearn.exceptions
        import sklearn.metrics
    except ImportError as error:
        raise lacks_package("scikit-learn", "facets", "for facets") from error
    return sklearn


def find_clusters(
    blocks: Callable[[], Iterable[Block]],
    clusters: int | None = None,
    *,
    most: int,
    seed: int = 0,
) -> Clusters:
    """The clusters of the rows in these blocks, which are read twice; without a number, at most `most` of them.

    There are fewer than asked for where fewer vectors differ. Raises RequestError for fewer rows than clusters.
    """
    rows, sample_SD = sample(blocks(), max(FITTED, PER_CLUSTER * (clusters or most)), seed)
    if not rows:
        raise RequestError("--where: expected a filter that leaves rows to group, got one that leaves none")
    if clusters is not None and clusters > rows:
        raise RequestError(f"--clusters: expected at most the {rows:,} rows there are to group, got {clusters:,}")
    if clusters is None and rows < 3:
        raise RequestError(f"--clusters: expected a number for {rows} rows, got none; 3 rows or more need none")
    tried_SD = sample_SD[:TRIED]
    distances_SS = import_sklearn().metrics.pairwise.cosine_distances(tried_SD)
    count = clusters or choose(tried_SD, distances_SS, most, seed)
    centres_KD = fit(sample_SD, count, seed, STARTS)
    offsets_N, cluster_N, cosine_N = assign(blocks(), centres_KD)
    sizes_K = np.bincount(cluster_N, minlength=count)
    order = np.argsort(-sizes_K, kind="stable")[: np.count_nonzero(sizes_K)]
    number_K = np.zeros(count, np.int64)
    number_K[order] = np.arange(len(order))
    return Clusters(
        offsets=offsets_N,
        cluster=number_K[cluster_N],
        cosine=cosine_N,
        centres=centres_KD[order],
        silhouette=silhouette(distances_SS, nearest_centre(tried_SD, centres_KD)),
    )


def sample(blocks: Iterable[Block], most: int, seed: int) -> tuple[int, np.ndarray]:
    """The number of rows, and the vectors of at most so many of them in random order: (S, D).

    Every row draws a number, and those with the smallest are kept: one pass, and the same rows however they are cut
    into blocks.
    """
    draw, rows = np.random.default_rng(seed), 0
    number_S, vectors_SD = np.empty(0), np.empty((0, 0), np.float32)
    for _, vectors_BD in blocks:
        number_B = draw.random(len(vectors_BD))
        first = np.argsort(number_B)[:most]
        chosen = vectors_BD.numpy()[first]
        number_S = np.concatenate([number_S, number_B[first]])
        vectors_SD = np.concatenate([vectors_SD, chosen]) if rows else chosen
        smallest = np.argsort(number_S)[:most]
        number_S, vectors_SD = number_S[smallest], vectors_SD[smallest]
        rows += len(vectors_BD)
    return rows, vectors_SD


def choose(vectors_SD: np.ndarray, distances_SS: np.ndarray, most: int, seed: int) -> int:
    """The number of clusters with the largest mean silhouette (Rousseeuw, 1987); of equal ones the smallest."""
    best, chosen = -1.0, 2
    for count in candidates(min(most, len(vectors_SD) - 1)):
        cluster_S = nearest_centre(vectors_SD, fit(vectors_SD, count, seed, starts=1))
        score = silhouette(distances_SS, cluster_S)
        if score is not None and score > best:
            best, chosen = score, count
    return chosen


def candidates(most: int) -> Iterator[int]:
    """The numbers of clusters that are compared, each about a fifth above the last: 2 to 8, 10, 12, 14, 17, 20, 24."""
    count = 2
    while count <= most:
        yield count
        count = max(count + 1, round(1.2 * count))


def silhouette(distances_SS: np.ndarray, cluster_S: np.ndarray) -> float | None:
    """The mean silhouette; None where it is not defined, for a single cluster or one for each row."""
    if not 1 < len(np.unique(cluster_S)) < len(cluster_S):
        return None
    return float(import_sklearn().metrics.silhouette_score(distances_SS, cluster_S, metric="precomputed"))


def fit(vectors_SD: np.ndarray, clusters: int, seed: int, starts: int) -> np.ndarray:
    """Unit centres of so many clusters: (K, D)."""
    sklearn = import_sklearn()
    with warnings.catch_warnings():  # equal vectors leave clusters empty, and these are dropped
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
        k_means = sklearn.cluster.KMeans(clusters, init="k-means++", n_init=starts, random_state=seed).fit(vectors_SD)
    return l2_normalize(k_means.cluster_centers_)


def nearest_centre(vectors_SD: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    """The cluster of each row: (S,)."""
    return (vectors_SD @ centres_KD.T).argmax(axis=1)


def assign(blocks: Iterable[Block], centres_KD: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offset, cluster and cosine with its centre of each row: three of (N,)."""
    offsets, cluster, cosine = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for offsets_B, vectors_BD in blocks:
        offsets.append(offsets_B)
        for part_BD in vectors_BD.split(BATCH_ROWS):  # many clusters of many rows at once would not fit into memory
            cosines_BK = part_BD.numpy() @ centres_KD.T
            cluster.append(cosines_BK.argmax(axis=1))
            cosine.append(cosines_BK.max(axis=1))
    return np.concatenate(offsets), np.concatenate(cluster), np.concatenate(cosine)
