"""C-STS: cosines of sentence pairs under a condition against people's ratings.

Shapes: P distinct (sentence, condition), N rated pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raycase.data.rated import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.encoder.cosines import pair_cosines
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model, before_g, encoder_name, is_case, setting
from raycase.evaluation.procedure import EmbedPairs
from raycase.evaluation.scores import DIRECTIONS, correlation_differences, correlation_estimates, vector_spread
from raycase.evaluation.scoring import scores_by_scorer
from raycase.evaluation.training_record import training_metrics
from raycase.systems.projector import recorded_settings
from raycase.systems.registry import embeds

NO_VECTORS = {"dim": None, "isotropy": None, "to_mean": None}  # the `vector_spread` of a system that scores pairs


def read(job: EvaluateJob) -> RatedPairs:
    """Read `--data`. Raises RequestError."""
    return read_rated(job.data, "--data")


def measure(job: EvaluateJob, rated: RatedPairs, models: Sequence[Model], embed: EmbedPairs) -> dict[str, Any]:
    """Correlations of each model with intervals, and their differences from the first model's."""
    bootstrap = {"resamples": job.resamples, "seed": job.seed}
    measured = [measure_model(job, rated, model, embed) for model in models]
    first_N = measured[0][1]
    return {
        "data": {
            "file": Path(rated.uri).name,
            "rows": len(rated),
            "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
            "distinct": len(rated.distinct),
            "sha256": rated.data_sha256,
        },
        "settings": bootstrap | {"directions": DIRECTIONS, "compute": job.compute},
        "models": [part for part, _ in measured],
        "comparison": [
            {"model": model.name, "against": models[0].name}
            | correlation_differences(scores_N, first_N, rated, **bootstrap)
            for model, (_, scores_N) in zip(models[1:], measured[1:], strict=True)
        ],
    }


def measure_model(
    job: EvaluateJob, rated: RatedPairs, model: Model, embed: EmbedPairs
) -> tuple[dict[str, Any], np.ndarray]:
    """The model's part of `metrics.json`, and its cosines or scores of the pairs, (N,)."""
    config = model.config
    bootstrap = {"resamples": job.resamples, "seed": job.seed}
    if embeds(config):
        vectors = vectors_by_formula(rated, model, embed)
        scores = {formula: pair_cosines(vectors_PD, rated.pair_index) for formula, vectors_PD in vectors.items()}
        spreads = {formula: vector_spread(vectors_PD, seed=job.seed) for formula, vectors_PD in vectors.items()}
    else:
        scored_N = scores_by_scorer(job, model, rated.sentences1, rated.sentences2, rated.conditions)
        scores, spreads = {config.formula: scored_N}, {config.formula: NO_VECTORS}
    part = {
        "name": model.name,
        "encoder": encoder_name(config) if is_case(config) else config.SYSTEM,
        "setting": setting(config),
        "prompt": config.encoder.prompt,
        "pooling": str(config.encoder.pooling[0]),
        "weights": config.describe()["weights"],
        "projector": recorded_settings(config.projector) if is_case(config) and config.projector else None,
        "seen": _seen_in_training(model, rated),
        "system": config.formula,
        "variants": {
            formula: spreads[formula] | correlation_estimates(scores_N, rated, **bootstrap)
            for formula, scores_N in scores.items()
        },
    }
    return part, scores[config.formula]


def vectors_by_formula(rated: RatedPairs, model: Model, embed: EmbedPairs) -> dict[str, np.ndarray]:
    """The model's vectors of the distinct pairs, (P, D), by formula; of CASE also those of each step before the last:
    f and, where the prompt has a base, f - base."""
    config = model.config
    if not is_case(config):
        return {config.formula: embed(rated.distinct, model)}
    steps = [before_g(config, subtract=False)]
    if all(prompts.base is not None for prompts in config.prompts):
        steps.append(before_g(config, subtract=True))
    vectors = {step.formula: embed(rated.distinct, model, step) for step in steps}
    if model.projector is not None:
        vectors[config.formula] = model.project(vectors[before_g(config).formula])
    return vectors


def _seen_in_training(model: Model, rated: RatedPairs) -> str | None:
    """`train` or `validation` if training used these very pairs as such, by the metrics in the model folder."""
    try:
        data = training_metrics(model.config)["data"]
        return next((part for part in ("train", "validation") if data[part]["sha256"] == rated.data_sha256), None)
    except (KeyError, TypeError):  # a folder that was saved without training
        return None
