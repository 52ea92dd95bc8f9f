"""Figures of one system on rated pairs, ready for JSON; figures that do not exist are None.

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
MOST_RATINGS = 10  # more distinct ratings than so many are brought to the nearest whole one
WORST = 10
CORRELATIONS: dict[str, tuple[Correlation, bool]] = {  # the metric, and whether pairs without a rating are left out
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
    """The same of a system that scores pairs and has no vectors."""
    found = correlations(scores_N, rated, resamples=resamples, seed=seed)
    by = by_rating(scores_N, rated.ratings)
    return {"dim": None, **found, "isotropy": None, "to_mean": None, "by_rating": by}


def points(scores_N: np.ndarray, ratings_N: np.ndarray) -> dict[str, float | None]:
    """Each of `CORRELATIONS`; None where scores or ratings do not vary."""
    values = {name: metric(scores_N[kept], ratings_N[kept]) for name, metric, kept in _over(ratings_N)}
    return {name: None if math.isnan(value) else 100 * value for name, value in values.items()}


def correlations(
    scores_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int
) -> dict[str, dict[str, float] | None]:
    """Each of `CORRELATIONS` with its 95 % interval: value, low, high. Resampled by sentence pair."""
    ratings_N = rated.ratings
    values = points(scores_N, ratings_N)
    found: dict[str, dict[str, float] | None] = {}
    for name, metric, kept in _over(ratings_N):
        value, found[name] = values[name], None
        if value is not None:
            low, high = bootstrap_interval(
                metric,
                scores_N[kept],
                ratings_N[kept],
                groups_N=rated.groups[kept],
                resamples=resamples,
                seed=seed,
            )
            found[name] = {"value": value, "low": 100 * low, "high": 100 * high}
    return found


def compare(
    scores_N: np.ndarray, others_N: np.ndarray, rated: RatedPairs, *, resamples: int, seed: int
) -> dict[str, dict[str, float] | None]:
    """Each of `CORRELATIONS` minus that of the others, over the same resamples: difference, low, high (95 %), p."""
    ratings_N = rated.ratings
    both = points(scores_N, ratings_N), points(others_N, ratings_N)
    found: dict[str, dict[str, float] | None] = {}
    for name, metric, kept in _over(ratings_N):
        found[name] = None
        if both[0][name] is not None and both[1][name] is not None:
            pairs = (scores_N[kept], others_N[kept], ratings_N[kept])
            paired = paired_bootstrap(metric, *pairs, groups_N=rated.groups[kept], resamples=resamples, seed=seed)
            found[name] = {key: value if key == "p" else 100 * value for key, value in paired.items()}
    return found


def _over(ratings_N: np.ndarray) -> list[tuple[str, Correlation, np.ndarray]]:
    """Each of `CORRELATIONS` by name, and the pairs that it is measured over."""
    applicable_N = ratings_N != NOT_APPLICABLE
    return [(n, m, applicable_N if only else np.ones_like(applicable_N)) for n, (m, only) in CORRELATIONS.items()]


def by_rating(scores_N: np.ndarray, ratings_N: np.ndarray) -> list[dict[str, float]]:
    """The distribution of the cosine under each rating: `BOX` and how many pairs."""
    if len(np.unique(ratings_N)) > MOST_RATINGS:
        ratings_N = np.floor(ratings_N + 0.5)
    rows = []
    for rating in np.unique(ratings_N):
        inside = scores_N[ratings_N == rating]
        box = zip(BOX, np.percentile(inside, list(BOX.values())), strict=True)
        rows.append({"rating": float(rating), "pairs": len(inside)} | {name: float(value) for name, value in box})
    return rows


def _histogram(cosines_P: np.ndarray) -> dict[str, Any]:
    """Counts of bins of width `BIN`, the first of which begins at `low`."""
    places = np.floor(cosines_P / BIN).astype(int)
    return {"low": round(int(places.min()) * BIN, 6), "bin": BIN, "counts": np.bincount(places - places.min()).tolist()}


def worst_pairs(scores_N: np.ndarray, rated: RatedPairs) -> list[dict[str, Any]]:
    """The pairs whose cosine and rating are furthest apart in rank, among those with a rating.

    Ranks are in percent of those pairs: 0 the lowest, 100 the highest, ties at their mean.
    """
    kept = np.flatnonzero(rated.ratings != NOT_APPLICABLE)
    ranks = [100 * (rankdata(x[kept]) - 1) / max(1, len(kept) - 1) for x in (scores_N, rated.ratings)]
    order = np.argsort(-np.abs(ranks[0] - ranks[1]), kind="stable")[:WORST]
    return [
        {
            "row": int(kept[i]),
            "sentence1": rated.sentences1[kept[i]],
            "sentence2": rated.sentences2[kept[i]],
            "condition": rated.conditions[kept[i]],
            "rating": float(rated.ratings[kept[i]]),
            "cosine": float(scores_N[kept[i]]),
            "rating_rank": float(ranks[1][i]),
            "cosine_rank": float(ranks[0][i]),
        }
        for i in order
    ]
