"""What conditions do to a system's figures: rare ones, bad ones, and the order of two of the same sentences.

Conditions compare as written, stripped and case-folded. Shapes: N rated pairs, M comparisons.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from raycase.data.rated import NOT_APPLICABLE, RatedPairs, folded
from raycase.evaluation.metrics import bootstrap_interval, mean_of
from raycase.evaluation.scores import WORST, correlations, places, points

TIMES = ((0, 0), (1, 3), (4, 20), (21, 100), (101, None))  # rows of the training data: least and most of a group
LEAST_PAIRS = 10  # rated pairs of a condition that is judged by itself
Comparisons = dict[str, np.ndarray]  # "all" and "rated" -> (M, 2): rows of the higher and of the lower rating


def condition_data(rated: RatedPairs, train: RatedPairs | None) -> dict[str, Any]:
    """What `metrics.json` holds of the conditions, whatever the model."""
    training = None
    if train is not None:
        times_N = times_in(rated, train)
        training = {
            "file": Path(train.uri).name,
            "sha256": train.data_sha256,
            "rows": len(train),
            "conditions": len(set(_keys(train))),
            "groups": [_group(rated, times_N, least, most) for least, most in TIMES],
        }
    return {
        "least_pairs": LEAST_PAIRS,
        "enough_pairs": len(_judged(rated)),
        "order_pairs": {name: len(rows_M2) for name, rows_M2 in comparisons(rated).items()},
        "training": training,
    }


def condition_figures(
    scores_N: np.ndarray, rated: RatedPairs, train: RatedPairs | None, *, resamples: int, seed: int
) -> dict[str, Any]:
    """A model's part: correlations by the groups of `TIMES`, the share in the right order, the worst conditions."""
    bootstrap = {"resamples": resamples, "seed": seed}
    by_times = []
    if train is not None:
        times_N = times_in(rated, train)
        for least, most in TIMES:
            inside_N = _inside(times_N, least, most)
            group = rated.without(np.flatnonzero(~inside_N))
            by_times.append(correlations(scores_N[inside_N], group, **bootstrap))
    return {
        "by_times": by_times,
        "order": {n: _order(scores_N, rated, rows_M2, **bootstrap) for n, rows_M2 in comparisons(rated).items()},
        "worst_conditions": worst_conditions(scores_N, rated),
    }


def _keys(rated: RatedPairs) -> list[str]:
    return folded(rated.conditions)


# ----------------------------------------------------------------------------------------------- rare conditions


def times_in(rated: RatedPairs, train: RatedPairs) -> np.ndarray:
    """How many rows of the training data, those rated -1 among them, have each pair's condition: (N,) int64."""
    counts = Counter(_keys(train))
    return np.array([counts[key] for key in _keys(rated)], dtype=np.int64)


def _inside(times_N: np.ndarray, least: int, most: int | None) -> np.ndarray:
    return (times_N >= least) & (times_N <= (np.inf if most is None else most))


def _group(rated: RatedPairs, times_N: np.ndarray, least: int, most: int | None) -> dict[str, Any]:
    rows = np.flatnonzero(_inside(times_N, least, most))
    keys = _keys(rated)
    return {
        "least": least,
        "most": most,
        "conditions": len({keys[row] for row in rows}),
        "pairs": len(rows),
        "rated": int((rated.ratings[rows] != NOT_APPLICABLE).sum()),
    }


# ------------------------------------------------------------------------------ two conditions of the same sentences


def comparisons(rated: RatedPairs) -> Comparisons:
    """The same two sentences under two conditions with different ratings; "rated" leaves out those rated -1."""
    keys, ratings_N = _keys(rated), rated.ratings
    members: dict[int, list[int]] = {}
    for row, group in enumerate(rated.groups.tolist()):
        members.setdefault(group, []).append(row)
    rows_M2 = np.array(
        [
            (a, b) if ratings_N[a] > ratings_N[b] else (b, a)
            for rows in members.values()
            for a, b in combinations(rows, 2)
            if keys[a] != keys[b] and ratings_N[a] != ratings_N[b]
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    return {"all": rows_M2, "rated": rows_M2[(ratings_N[rows_M2] != NOT_APPLICABLE).all(1)]}


def right_order(scores_N: np.ndarray, rows_M2: np.ndarray) -> np.ndarray:
    """1 where the higher rating has the higher score, 0 where it has the lower one, 0.5 for a tie: (M,)."""
    higher_M, lower_M = scores_N[rows_M2].T
    return (np.sign(higher_M - lower_M) + 1) / 2


def _order(
    scores_N: np.ndarray, rated: RatedPairs, rows_M2: np.ndarray, *, resamples: int, seed: int
) -> dict[str, float] | None:
    """The share in the right order x 100 with its 95 % interval; None without comparisons."""
    if not len(rows_M2):
        return None
    right_M = right_order(scores_N, rows_M2)
    groups_M = rated.groups[rows_M2[:, 0]]
    low, high = bootstrap_interval(mean_of, right_M, right_M, groups_N=groups_M, resamples=resamples, seed=seed)
    return {"value": 100 * float(right_M.mean()), "low": 100 * low, "high": 100 * high}


# ------------------------------------------------------------------------------------------------ bad conditions


def _judged(rated: RatedPairs) -> list[list[int]]:
    """The rated rows of each condition that has at least `LEAST_PAIRS` of them."""
    rows_of: dict[str, list[int]] = {}
    for row, key in enumerate(_keys(rated)):
        if rated.ratings[row] != NOT_APPLICABLE:
            rows_of.setdefault(key, []).append(row)
    return [rows for rows in rows_of.values() if len(rows) >= LEAST_PAIRS]


def worst_conditions(scores_N: np.ndarray, rated: RatedPairs) -> list[dict[str, Any]]:
    """The `WORST` conditions by the mean distance of their pairs' places by score and by rating.

    The distance is defined where Spearman is not: if all pairs of a condition have one rating.
    """
    score_places_N, rating_places_N = places(scores_N, rated.ratings)
    found: list[dict[str, Any]] = [
        {
            "condition": rated.conditions[rows[0]],
            "pairs": len(rows),
            "distance": float(np.abs(score_places_N[rows] - rating_places_N[rows]).mean()),
            "rating_rank": float(rating_places_N[rows].mean()),
            "cosine_rank": float(score_places_N[rows].mean()),
            "spearman": points(scores_N[rows], rated.ratings[rows])["spearman"],
        }
        for rows in _judged(rated)
    ]
    return sorted(found, key=lambda line: -line["distance"])[:WORST]
