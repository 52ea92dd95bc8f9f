"""Pairs of sentences without a condition: scored from 0 to 5 (STS), or related or not (MixSP, section 4.4).

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import Correlation, auc, estimate, estimate_difference, spearman
from raycase.evaluation.models import Model, no_condition
from raycase.evaluation.procedure import Task
from raycase.io.rated import LABEL, SCORE, RatedPairs, read_rated
from raycase.papers.mixsp.model import UPPER

MEASURES: dict[str, dict[str, Correlation]] = {
    "sts": {  # upper: pairs that mean nearly the same
        "spearman": spearman,
        "upper": lambda scores_N, ratings_N: spearman(scores_N[ratings_N >= UPPER], ratings_N[ratings_N >= UPPER]),
        "lower": lambda scores_N, ratings_N: spearman(scores_N[ratings_N < UPPER], ratings_N[ratings_N < UPPER]),
    },
    "pairs": {"auc": auc},
}
TITLES = {"sts": "Semantic textual similarity", "pairs": "Are two sentences related"}
ABOUT = {
    "sts": f"Spearman x 100 over all pairs, over those scored {UPPER:g} and above (`upper`) and over the others.",
    "pairs": "Area under the ROC curve x 100 of the model's score against the label 0 or 1.",
}


def read(job: EvaluateJob) -> RatedPairs:
    """Read the pairs. Raises RequestError for labels other than 0 and 1."""
    pairs = read_rated(job.data, "--data", condition=None, number=SCORE if job.task == "sts" else LABEL)
    ratings = sorted(set(pairs.ratings.tolist()))
    if job.task == "pairs" and ratings != [0.0, 1.0]:
        raise RequestError(f"--data: expected the labels 0 and 1, got {', '.join(f'{v:g}' for v in ratings[:5])}")
    return pairs


def measure(job: EvaluateJob, pairs: RatedPairs, models: Sequence[Model]) -> dict[str, Any]:
    """`MEASURES` of each model with intervals, and their differences from the first model's."""
    bootstrap: dict[str, Any] = {"resamples": job.resamples, "seed": job.seed}
    measures = MEASURES[job.task]
    scores = [model.scores(pairs.sentences1, pairs.sentences2) for model in models]
    systems: list[dict[str, Any]] = []
    for model, scores_N in zip(models, scores, strict=True):
        figures = {name: estimate(metric, scores_N, pairs.ratings, **bootstrap) for name, metric in measures.items()}
        system: dict[str, Any] = {"name": model.name, "what": model.config.label, "figures": {"all": figures}}
        if systems:
            differences = {
                name: estimate_difference(metric, scores_N, scores[0], pairs.ratings, **bootstrap)
                for name, metric in measures.items()
            }
            system["against"] = {"all": differences}
        systems.append(system)
    return {
        "title": TITLES[job.task],
        "about": f"{len(pairs):,} pairs. {ABOUT[job.task]} With 95 % intervals of the bootstrap over pairs.",
        "data": {"rows": len(pairs), "sha256": pairs.data_sha256},
        "measures": list(measures),
        "groups": [{"name": "all", "queries": len(pairs)}],
        "systems": systems,
        "settings": {**bootstrap, "compute": job.compute},
    }


TASKS = dict.fromkeys(MEASURES, Task(read=read, measure=measure, expected=no_condition))
