"""Pairs of sentences without a condition, scored from 0 to 5 (STS; MixSP, section 4.4)."""

from collections.abc import Sequence
from typing import Any

from raycase.evaluation.metrics import Correlation, spearman
from raycase.evaluation.models import Model, no_condition
from raycase.evaluation.report import Settings
from raycase.evaluation.tasks import Task
from raycase.evaluation.tasks.csts import compare_scores
from raycase.io.rated_pairs import SCORE, RatedPairs, read_rated
from raycase.papers.mixsp.model import UPPER

MEASURES: dict[str, Correlation] = {  # upper: pairs that mean nearly the same
    "spearman": spearman,
    "upper": lambda scores_N, ratings_N: spearman(scores_N[ratings_N >= UPPER], ratings_N[ratings_N >= UPPER]),
    "lower": lambda scores_N, ratings_N: spearman(scores_N[ratings_N < UPPER], ratings_N[ratings_N < UPPER]),
}


def measure(settings: Settings, pairs: RatedPairs, models: Sequence[Model]) -> dict[str, Any]:
    """`MEASURES` of each model with intervals, and their differences from the first model's."""
    return compare_scores(
        settings,
        pairs,
        models,
        title="Semantic textual similarity",
        about=f"{len(pairs):,} pairs. Spearman x 100 over all pairs, over those scored {UPPER:g} and above (`upper`) "
        "and over the others. With 95 % intervals of the bootstrap over pairs.",
        metrics=MEASURES,
    )


TASKS = {
    "sts": Task(
        read=lambda data: read_rated(data, "--data", condition=None, number=SCORE),
        measure=measure,
        expected=no_condition,
    )
}
