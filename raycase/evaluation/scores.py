"""Correlations of a system's scores with people's ratings, and the spread of its vectors; a value that is not defined
is None.

Shapes: P distinct (sentence, condition), N rated pairs, D dimensions. Correlations are x 100.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycase.data.rated import NOT_APPLICABLE, RatedPairs
from raycase.evaluation.metrics import (
    Correlation,
    cosines_to_mean,
    estimate,
    estimate_difference,
    isotropy,
    pearson,
    spearman,
)

DIRECTIONS = 1000  # k of eq. 5
CORRELATIONS: dict[str, tuple[Correlation, bool]] = {  # the metric, and whether pairs rated -1 are left out
    "spearman": (spearman, False),
    "spearman_rated": (spearman, True),
    "pearson": (pearson, False),
    "pearson_rated": (pearson, True),
}
Estimates = dict[str, dict[str, float] | None]


def correlation_estimates(scores_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int) -> Estimates:
    """The `estimate` of each of `CORRELATIONS`. The bootstrap draws groups of pairs."""
    return {
        name: estimate(
            metric,
            scores_N[rows_N],
            rated.ratings[rows_N],
            groups_N=rated.groups[rows_N],
            resamples=resamples,
            seed=seed,
        )
        for name, metric, rows_N in _measured_rows(rated.ratings)
    }


def correlation_differences(
    scores_N: np.ndarray, others_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int
) -> Estimates:
    """The `estimate_difference` of each of `CORRELATIONS` from that of the other scores."""
    return {
        name: estimate_difference(
            metric,
            scores_N[rows_N],
            others_N[rows_N],
            rated.ratings[rows_N],
            groups_N=rated.groups[rows_N],
            resamples=resamples,
            seed=seed,
        )
        for name, metric, rows_N in _measured_rows(rated.ratings)
    }


def _measured_rows(ratings_N: np.ndarray) -> list[tuple[str, Correlation, np.ndarray]]:
    """Each of `CORRELATIONS` by name, and which pairs it is measured over: (N,) bool."""
    applicable_N = ratings_N != NOT_APPLICABLE
    return [(n, m, applicable_N if only else np.ones_like(applicable_N)) for n, (m, only) in CORRELATIONS.items()]


def vector_spread(vectors_PD: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Dimension, isotropy (CASE, eq. 5), mean and standard deviation of the cosines to the mean (appendix C)."""
    to_mean_P = cosines_to_mean(vectors_PD)
    return {
        "dim": int(vectors_PD.shape[1]),
        "isotropy": isotropy(vectors_PD, directions=DIRECTIONS, seed=seed),
        "to_mean": {"mean": float(to_mean_P.mean()), "std": float(to_mean_P.std())},
    }
