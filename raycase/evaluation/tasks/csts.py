"""C-STS: scores of sentence pairs under a condition against people's ratings. Shapes: N rated pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raycase.evaluation.metrics import Correlation, pearson, spearman
from raycase.evaluation.models import Model, training_metrics
from raycase.evaluation.report import RankedSystem, Settings, rank_systems
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs


def rated_alone(metric: Correlation) -> Correlation:
    """The metric without the pairs to which the condition does not apply."""

    def without(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
        rated_N = ratings_N != NOT_APPLICABLE
        return metric(scores_N[rated_N], ratings_N[rated_N])

    return without


CORRELATIONS = {
    "spearman": spearman,
    "spearman_rated": rated_alone(spearman),
    "pearson": pearson,
    "pearson_rated": rated_alone(pearson),
}
SEEN = {"train": ", trained on these very pairs", "validation": ", with its epoch chosen on these very pairs"}


def measure(settings: Settings, rated: RatedPairs, models: Sequence[Model]) -> dict[str, Any]:
    """`CORRELATIONS` of each model with intervals, and their differences from the first model's."""
    not_applicable = int((rated.ratings == NOT_APPLICABLE).sum())
    return compare_scores(
        settings,
        rated,
        models,
        rated.conditions,
        title="Conditional semantic textual similarity",
        about=f"{len(rated):,} pairs. A model's score of two sentences under a condition, or the cosine of their "
        f"vectors, against people's rating. To {not_applicable:,} pairs the condition does not apply (label -1); "
        "`_rated` leaves them out. Correlations are x 100, with 95 % intervals of the bootstrap over sentence pairs.",
        metrics=CORRELATIONS,
    )


def compare_scores(
    settings: Settings,
    rated: RatedPairs,
    models: Sequence[Model],
    conditions: Sequence[str] | None = None,
    *,
    title: str,
    about: str,
    metrics: Mapping[str, Correlation],
) -> dict[str, Any]:
    """`rank_systems` by metrics of each model's scores of the pairs."""
    systems = []
    for model in models:
        scores_N = model.scores(rated.sentences1, rated.sentences2, conditions)
        what = f"{model.config.label}: `{model.config.formula}`{_seen_in_training(model, rated)}"
        systems.append(RankedSystem(name=model.name, what=what, values={"all": np.stack([scores_N] * len(metrics), 1)}))
    return rank_systems(
        settings,
        title=title,
        about=about,
        data={"file": Path(rated.uri).name, "rows": len(rated), "sha256": rated.data_sha256},
        measures=list(metrics),
        systems=systems,
        metrics=metrics,
        ratings_Q=rated.ratings,
        groups_Q=rated.groups,
    )


def _seen_in_training(model: Model, rated: RatedPairs) -> str:
    """Whether training used these very pairs, by the metrics in the model folder."""
    try:
        data = training_metrics(model.config)["data"]
        return next((words for part, words in SEEN.items() if data[part]["sha256"] == rated.data_sha256), "")
    except (KeyError, TypeError):  # a folder that was saved without training
        return ""
