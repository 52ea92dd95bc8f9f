"""Correlations and bootstrap intervals: NumPy in, floats out; None if undefined.

Shapes: N pairs, R resamples. Estimates are x 100.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from raycase.io.rated_pairs import NOT_APPLICABLE
from raycase.io.vectors import pair_cosines

ROUNDING = 1e-14  # of a cosine that float64 sums up, relative to it
BINS = 10  # of the expected calibration error
Correlation = Callable[[np.ndarray, np.ndarray], float]


def pearson(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Pearson's correlation; NaN if one of the two is constant or has a value that is not finite, and without pairs."""
    if _undefined(scores_N) or _undefined(ratings_N):
        return float("nan")
    return float(np.corrcoef(scores_N, ratings_N)[0, 1])


def _undefined(values_N: np.ndarray) -> bool:
    """Whether there are none, one is not finite, or all are equal but for the rounding of float64, as the cosines of
    vectors with themselves."""
    return not (np.isfinite(values_N).all() and len(values_N) and np.ptp(values_N) > ROUNDING * np.abs(values_N).max())


def spearman(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Spearman's correlation, ties at their mean rank; NaN where Pearson's is."""
    if _undefined(scores_N) or _undefined(ratings_N):  # infinity and rounding would have ranks, too
        return float("nan")
    return pearson(rankdata(scores_N), rankdata(ratings_N))


def correlations(scores_N: np.ndarray, ratings_N: np.ndarray) -> dict[str, float]:
    """Spearman and Pearson x 100 over all pairs, and Spearman x 100 without label -1."""
    rated = ratings_N != NOT_APPLICABLE
    return {
        "spearman": 100 * spearman(scores_N, ratings_N),
        "pearson": 100 * pearson(scores_N, ratings_N),
        "spearman_rated": 100 * spearman(scores_N[rated], ratings_N[rated]),
    }


def nested_correlations(
    vectors_PD: np.ndarray, pair_index_N2: np.ndarray, ratings_N: np.ndarray, nested: Sequence[int]
) -> dict[str, float]:
    """The `correlations` of the cosines, and Spearman x 100 over all pairs at each nested dimension."""
    metrics = correlations(pair_cosines(vectors_PD, pair_index_N2), ratings_N)
    for dim in nested:
        metrics[f"spearman_{dim}"] = 100 * spearman(pair_cosines(vectors_PD[:, :dim], pair_index_N2), ratings_N)
    return metrics


def auc(scores_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Area under the ROC curve: how often a 1 scores above a 0, ties count half; NaN without one of the labels."""
    positive = labels_N == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((rankdata(scores_N)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def calibration_error(probabilities_N: np.ndarray, stated_N: np.ndarray) -> float:
    """Expected calibration error x 100, over `BINS` bins of equal width (Guo et al., 2017, eq. 3)."""
    bins_N = np.minimum((probabilities_N * BINS).astype(int), BINS - 1)
    members = [bins_N == b for b in np.unique(bins_N)]
    return 100 * float(sum(m.mean() * abs(probabilities_N[m].mean() - stated_N[m].mean()) for m in members))


def estimate(
    metric: Correlation, scores_N: np.ndarray, ratings_N: np.ndarray, **bootstrap: Any
) -> dict[str, float] | None:
    """A metric x 100 with its 95 % interval by the percentile bootstrap over pairs: value, low, high; None where it is
    not defined. bootstrap: options of `_resampled`."""
    value = metric(scores_N, ratings_N)
    if np.isnan(value):
        return None
    low, high = _middle(_resampled(metric, [scores_N], ratings_N, **bootstrap)[0])
    return {"value": 100 * value, "low": 100 * low, "high": 100 * high}


def estimate_difference(
    metric: Correlation, scores_N: np.ndarray, others_N: np.ndarray, ratings_N: np.ndarray, **bootstrap: Any
) -> dict[str, float] | None:
    """The difference x 100 of two systems' metric over the same pairs, with its 95 % interval: difference, low, high,
    and p, twice the share of resamples in which it has the other sign or is 0. None where one is not defined."""
    difference = metric(scores_N, ratings_N) - metric(others_N, ratings_N)
    if np.isnan(difference):
        return None
    a_R, b_R = _resampled(metric, [scores_N, others_N], ratings_N, **bootstrap)
    low, high = _middle(a_R - b_R)
    other_sign = min(float(np.mean(a_R <= b_R)), float(np.mean(a_R >= b_R)))
    return {"difference": 100 * difference, "low": 100 * low, "high": 100 * high, "p": min(1.0, 2 * other_sign)}


def _middle(values_R: np.ndarray) -> tuple[float, float]:
    """The bounds of the middle 95 % of the resamples in which the metric is defined; NaN where there are none."""
    if np.isnan(values_R).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(values_R, [2.5, 97.5])
    return float(low), float(high)


def _resampled(
    metric: Correlation,
    systems: Sequence[np.ndarray],
    ratings_N: np.ndarray,
    *,
    groups_N: np.ndarray | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """The metric of each system over the same resamples, (systems, R). Pairs of one group, which are not independent,
    are drawn together."""
    random = np.random.default_rng(seed)
    if groups_N is None:
        draws = [random.integers(0, len(ratings_N), len(ratings_N)) for _ in range(resamples)]
    else:
        order_N = np.argsort(groups_N, stable=True)
        members = np.split(order_N, np.flatnonzero(np.diff(groups_N[order_N])) + 1)
        chosen = (random.integers(0, len(members), len(members)) for _ in range(resamples))
        draws = [np.concatenate([members[group] for group in groups]) for groups in chosen]
    return np.array([[metric(scores_N[draw], ratings_N[draw]) for draw in draws] for scores_N in systems])


def mean_of(values_N: np.ndarray, _: np.ndarray) -> float:
    """The mean, for the bootstraps above."""
    return float(values_N.mean())
