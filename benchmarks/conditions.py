"""Where models err on rated pairs: rare conditions, bad ones, the order of two of the same sentences, the worst pairs.

    .venv/bin/python benchmarks/conditions.py --model minilm-conditional minilm --data csts/validation.csv \\
        --train csts/train.csv --output runs/conditions

Writes metrics.json and report.md as `raycase evaluate` does. The worst conditions, among those with 10 rated pairs or
more, are those whose pairs' places by cosine and by rating (in percent of all rated pairs) lie farthest apart on
average: unlike Spearman this is defined where all pairs of a condition have one rating. --train counts every row of the
file, label -1 too, whatever the models were trained on. Conditions compare as written, stripped and case-folded.

Shapes: N rated pairs, M comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from reports import cell, heading, number, report_parser, write_report
from scipy.stats import rankdata
from turns import finish

from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.metrics import estimate, mean_of, spearman
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import TASKS, Task
from raycase.evaluation.report import interval, provenance_lines, ranked_values, table
from raycase.evaluation.tasks import csts
from raycase.io.json_values import finite
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated

TIMES = ((0, 0), (1, 3), (4, 20), (21, 100), (101, None))  # rows of the training data: least and most of a group
LEAST_PAIRS = 10  # rated pairs of a condition that is judged by itself
WORST = 10
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
            by_times.append(_correlations(scores_N[inside_N], group, **bootstrap))
    return {
        "by_times": by_times,
        "order": {n: _order(scores_N, rated, rows_M2, **bootstrap) for n, rows_M2 in comparisons(rated).items()},
        "worst_conditions": worst_conditions(scores_N, rated),
        "worst": worst_pairs(scores_N, rated),
    }


def _correlations(scores_N: np.ndarray, rated: RatedPairs, **bootstrap: Any) -> dict[str, Any]:
    """Each of `csts.CORRELATIONS` with its interval."""
    return {
        name: estimate(metric, scores_N, rated.ratings, groups_N=rated.groups, **bootstrap)
        for name, metric in csts.CORRELATIONS.items()
    }


def folded(texts: Iterable[str]) -> list[str]:
    """Texts stripped and case-folded, as they are compared with those of a training file."""
    return [text.strip().casefold() for text in texts]


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
    return estimate(mean_of, right_M, right_M, groups_N=groups_M, resamples=resamples, seed=seed)


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
            "spearman": finite(100 * spearman(scores_N[rows], rated.ratings[rows])),
        }
        for rows in _judged(rated)
    ]
    return sorted(found, key=lambda line: -line["distance"])[:WORST]


# ------------------------------------------------------------------------------------------------------- bad pairs


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


# ------------------------------------------------------------------------------------------------------ the report


def measure(
    flags: EvaluateFlags, rated: RatedPairs, models: Sequence[Model], *, train: RatedPairs | None
) -> dict[str, Any]:
    """What is measured of each model."""
    settings = {"resamples": flags.resamples, "seed": flags.seed}
    scores = {model.name: model.scores(rated.sentences1, rated.sentences2, rated.conditions) for model in models}
    return csts.measure(flags, rated, models) | {
        "conditions": condition_data(rated, train),
        "models": [
            {"name": name} | condition_figures(scores_N, rated, train, **settings) for name, scores_N in scores.items()
        ],
    }


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown."""
    several = len(metrics["models"]) > 1
    parts = [
        f"# Where models err on {metrics['data']['file']}",
        "## Conditions by how often training has them",
        *_by_times(metrics),
        "## Two conditions of the same sentences",
        _order_section(metrics),
        "## The worst pairs",
        "Pairs with a rating whose place by cosine and by rating differ most. A place is in percent of those pairs: 0 "
        "the least similar, 100 the most.",
        *(_worst(model, several) for model in metrics["models"]),
        "## The worst conditions",
        *_worst_conditions(metrics),
        "## How it was made",
        provenance_lines(metrics),
    ]
    return "\n\n".join(parts) + "\n"


def _worst(model: dict[str, Any], several: bool) -> str:
    rows = [
        [
            str(pair["row"]),
            *(cell(pair[name]) for name in ("condition", "sentence1", "sentence2")),
            f"{pair['rating']:g}",
            number(pair["cosine"]),
            f"{pair['rating_rank']:.0f}",
            f"{pair['cosine_rank']:.0f}",
        ]
        for pair in model["worst"]
    ]
    header = ["row", "condition", "first sentence", "second sentence", "rating", "cosine"]
    return heading(model, several) + table([*header, "place by rating", "by cosine"], rows)


def _by_times(metrics: dict[str, Any]) -> list[str]:
    training, models = metrics["conditions"]["training"], metrics["models"]
    if training is None:
        return ["Left out: no training data was given (`--train`)."]
    about = (
        f"Correlations of the pairs whose condition is that of so many rows of {training['file']}. Counted are all "
        f"its {training['rows']:,} rows, label -1 too, with {training['conditions']:,} conditions, which are compared "
        "as written, stripped and case-folded."
    )
    header = ["rows in training", "conditions", "pairs", "of them rated", "Spearman", "Spearman without -1"]
    parts = []
    for model in models:
        rows = [
            [_span(group["least"], group["most"]), *(f"{group[n]:,}" for n in ("conditions", "pairs", "rated"))]
            + [interval(figures[name]) for name in ("spearman", "spearman_rated")]
            for group, figures in zip(training["groups"], model["by_times"], strict=True)
        ]
        parts.append(heading(model, several=len(models) > 1) + table(header, rows))
    return [about, *parts]


def _span(least: int, most: int | None) -> str:
    if most is None:
        return f"more than {least - 1}"
    return f"{least}" if least == most else f"{least} to {most}"


def _order_section(metrics: dict[str, Any]) -> str:
    count = metrics["conditions"]["order_pairs"]
    about = (
        f"How often, in percent, a model puts the same two sentences under two conditions in the order of their "
        f"ratings: {count['all']:,} times the ratings differ, {count['rated']:,} times without label -1, which is the "
        "lowest. A tie of the model counts half; 50 is chance."
    )
    rows = [[m["name"], *(interval(m["order"][name]) for name in ("all", "rated"))] for m in metrics["models"]]
    return about + "\n\n" + table(["model", "right order", "right order without -1"], rows)


def _worst_conditions(metrics: dict[str, Any]) -> list[str]:
    conditions, models = metrics["conditions"], metrics["models"]
    about = (
        f"Of the {conditions['enough_pairs']:,} conditions with {conditions['least_pairs']} rated pairs or more, those "
        "whose pairs' places by cosine and by rating are farthest apart, by the mean of the distances; over all pairs "
        "it is about 33 by chance. Spearman is over the condition's own pairs."
    )
    header = ["condition", "rated pairs", "places apart", "mean place by rating", "by cosine", "Spearman"]
    parts = []
    for model in models if conditions["enough_pairs"] else []:
        rows = [
            [cell(line["condition"]), f"{line['pairs']:,}"]
            + [number(line[name], 1) for name in ("distance", "rating_rank", "cosine_rank")]
            + [number(line["spearman"])]
            for line in model["worst_conditions"]
        ]
        parts.append(heading(model, several=len(models) > 1) + table(header, rows))
    return [about, *parts]


def main(arguments):
    """Measure and write the report."""
    train = read_rated(arguments.train, "--train") if arguments.train else None
    task = Task(read=TASKS["csts"].read, measure=partial(measure, train=train), render=render)
    metrics = write_report(arguments, task)
    finish({"ratios": {}, "systems": ranked_values(metrics), "output": arguments.output})


if __name__ == "__main__":
    parser = report_parser(__doc__)
    parser.add_argument("--train", help="rated pairs whose conditions are counted")
    main(parser.parse_args())
