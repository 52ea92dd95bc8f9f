"""Figures of one system on rated pairs, ready for JSON; a figure that is not defined is None.

Shapes: P distinct (sentence, condition), N rated pairs, D dimensions. Correlations are x 100.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import rankdata

from raycase.data.rated import NOT_APPLICABLE, RatedPairs
from raycase.encoder.cosines import pair_cosines
from raycase.evaluation.metrics import (
    Correlation,
    bootstrap_interval,
    cosines_to_mean,
    isotropy,
    paired_bootstrap,
    pearson,
    spearman,
)

DIRECTIONS = 1000  # k of eq. 5
BIN = 0.02  # of cosine, in histograms
BOX = {"low": 5, "q1": 25, "median": 50, "q3": 75, "high": 95}  # percentiles of a box and its whiskers
MOST_RATINGS = 10  # if there are more distinct ratings, they are rounded
WORST = 10
CORRELATIONS: dict[str, tuple[Correlation, bool]] = {  # the metric, and whether pairs rated -1 are left out
    "spearman": (spearman, False),
    "spearman_rated": (spearman, True),
    "pearson": (pearson, False),
    "pearson_rated": (pearson, True),
}


def figures(vectors_PD: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int) -> dict[str, Any]:
    """Correlations with 95 % intervals, isotropy (eq. 5), cos(x, mean) (appendix C), cosine per rating."""
    scores_N = pair_cosines(vectors_PD, rated.pair_index)
    to_mean_P = cosines_to_mean(vectors_PD)
    return {
        "dim": int(vectors_PD.shape[1]),
        **correlations(scores_N, rated, resamples=resamples, seed=seed),
        "isotropy": isotropy(vectors_PD, directions=DIRECTIONS, seed=seed),
        "to_mean": {
            "mean": float(to_mean_P.mean()),
            "std": float(to_mean_P.std()),
            "histogram": _histogram(to_mean_P),
        },
        "by_rating": by_rating(scores_N, rated.ratings),
    }


def score_figures(scores_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int) -> dict[str, Any]:
    """`figures` of a system that scores pairs and has no vectors."""
    return {
        "dim": None,
        **correlations(scores_N, rated, resamples=resamples, seed=seed),
        "isotropy": None,
        "to_mean": None,
        "by_rating": by_rating(scores_N, rated.ratings),
    }


def points(scores_N: np.ndarray, ratings_N: np.ndarray) -> dict[str, float | None]:
    """Each of `CORRELATIONS`; None if scores or ratings do not vary."""
    values = {name: metric(scores_N[rows_N], ratings_N[rows_N]) for name, metric, rows_N in _over(ratings_N)}
    return {name: None if math.isnan(value) else 100 * value for name, value in values.items()}


def correlations(
    scores_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int
) -> dict[str, dict[str, float] | None]:
    """Each of `CORRELATIONS` with its 95 % interval: value, low, high. The bootstrap draws groups of pairs."""
    ratings_N = rated.ratings
    values = points(scores_N, ratings_N)
    intervals: dict[str, dict[str, float] | None] = {}
    for name, metric, rows_N in _over(ratings_N):
        value, intervals[name] = values[name], None
        if value is not None:
            low, high = bootstrap_interval(
                metric,
                scores_N[rows_N],
                ratings_N[rows_N],
                groups_N=rated.groups[rows_N],
                resamples=resamples,
                seed=seed,
            )
            intervals[name] = {"value": value, "low": 100 * low, "high": 100 * high}
    return intervals


def compare(
    scores_N: np.ndarray, others_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int
) -> dict[str, dict[str, float] | None]:
    """Each of `CORRELATIONS` minus that of the others, over the same resamples: difference, low, high (95 %), p."""
    ratings_N = rated.ratings
    values, other_values = points(scores_N, ratings_N), points(others_N, ratings_N)
    differences: dict[str, dict[str, float] | None] = {}
    for name, metric, rows_N in _over(ratings_N):
        differences[name] = None
        if values[name] is not None and other_values[name] is not None:
            pairs = (scores_N[rows_N], others_N[rows_N], ratings_N[rows_N])
            paired = paired_bootstrap(metric, *pairs, groups_N=rated.groups[rows_N], resamples=resamples, seed=seed)
            differences[name] = {key: value if key == "p" else 100 * value for key, value in paired.items()}
    return differences


def _over(ratings_N: np.ndarray) -> list[tuple[str, Correlation, np.ndarray]]:
    """Each of `CORRELATIONS` by name, and which pairs it is measured over: (N,) bool."""
    applicable_N = ratings_N != NOT_APPLICABLE
    return [(n, m, applicable_N if only else np.ones_like(applicable_N)) for n, (m, only) in CORRELATIONS.items()]


def by_rating(scores_N: np.ndarray, ratings_N: np.ndarray) -> list[dict[str, float]]:
    """The distribution of the cosines of each rating: the percentiles of `BOX`, and the number of pairs."""
    if len(np.unique(ratings_N)) > MOST_RATINGS:
        ratings_N = np.floor(ratings_N + 0.5)
    rows = []
    for rating in np.unique(ratings_N):
        inside = scores_N[ratings_N == rating]
        box = zip(BOX, np.percentile(inside, list(BOX.values())), strict=True)
        rows.append({"rating": float(rating), "pairs": len(inside)} | {name: float(value) for name, value in box})
    return rows


def _histogram(cosines_P: np.ndarray) -> dict[str, Any]:
    """Counts in bins of width `BIN`, the first of which starts at `low`."""
    bins_P = np.floor(cosines_P / BIN).astype(int)
    return {"low": round(int(bins_P.min()) * BIN, 6), "bin": BIN, "counts": np.bincount(bins_P - bins_P.min()).tolist()}


def places(scores_N: np.ndarray, ratings_N: np.ndarray) -> np.ndarray:
    """Ranks by score and by rating, in percent of the pairs with a rating: (2, N), NaN for pairs without one.

    0 is the lowest, 100 the highest, ties are at their mean.
    """
    rows = np.flatnonzero(ratings_N != NOT_APPLICABLE)
    places_2N = np.full((2, len(ratings_N)), np.nan)
    places_2N[:, rows] = [100 * (rankdata(x[rows]) - 1) / max(1, len(rows) - 1) for x in (scores_N, ratings_N)]
    return places_2N


def worst_pairs(scores_N: np.ndarray, rated: RatedPairs) -> list[dict[str, Any]]:
    """The `WORST` pairs with a rating whose `places` by cosine and by rating differ most."""
    score_places_N, rating_places_N = places(scores_N, rated.ratings)
    order = np.argsort(-np.abs(score_places_N - rating_places_N), kind="stable")  # NaN comes last
    rated_rows = int((rated.ratings != NOT_APPLICABLE).sum())
    return [
        {
            "row": int(row),
            "sentence1": rated.sentences1[row],
            "sentence2": rated.sentences2[row],
            "condition": rated.conditions[row],
            "rating": float(rated.ratings[row]),
            "cosine": float(scores_N[row]),
            "rating_rank": float(rating_places_N[row]),
            "cosine_rank": float(score_places_N[row]),
        }
        for row in order[: min(WORST, rated_rows)]
    ]
