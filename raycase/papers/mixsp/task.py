"""Pairs of sentences without a condition: scored from 0 to 5 (STS), or related or not (MixSP, section 4.4).

Shapes: N pairs, M measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import Correlation, auc, spearman
from raycase.evaluation.models import Model, no_condition
from raycase.evaluation.procedure import Task
from raycase.evaluation.report import RankedSystem, rank_systems
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
    measures, systems = MEASURES[job.task], []
    for model in models:
        scores_NM = np.stack([model.scores(pairs.sentences1, pairs.sentences2)] * len(measures), axis=1)
        systems.append(RankedSystem(name=model.name, what=model.config.label, values={"all": scores_NM}))
    return rank_systems(
        job,
        title=TITLES[job.task],
        about=f"{len(pairs):,} pairs. {ABOUT[job.task]} With 95 % intervals of the bootstrap over pairs.",
        data={"rows": len(pairs), "sha256": pairs.data_sha256},
        measures=list(measures),
        systems=systems,
        metrics=measures,
        ratings_Q=pairs.ratings,
    )


TASKS = dict.fromkeys(MEASURES, Task(read=read, measure=measure, expected=no_condition))
