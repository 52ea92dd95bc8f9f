"""C-STS: cosines of sentence pairs under a condition against people's ratings.

Shapes: P distinct (sentence, condition), N rated pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import (
    CORRELATIONS,
    DIRECTIONS,
    correlation_estimates,
    vector_spread,
)
from raycase.evaluation.models import Model, any_condition, before_g, encoder_name, is_case, setting, training_metrics
from raycase.evaluation.procedure import Task
from raycase.evaluation.report import (
    NOT_AVAILABLE,
    ValuesBySystem,
    difference,
    interval,
    number,
    provenance_lines,
    table,
)
from raycase.heads.projector import recorded_settings
from raycase.io.rated import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.io.vectors import pair_cosines
from raycase.models.registry import embeds

NO_VECTORS = {"dim": None, "isotropy": None, "to_mean": None}  # the `vector_spread` of a system that scores pairs


def read(job: EvaluateJob) -> RatedPairs:
    """Read `--data`. Raises RequestError."""
    return read_rated(job.data, "--data")


def measure(job: EvaluateJob, rated: RatedPairs, models: Sequence[Model]) -> dict[str, Any]:
    """Correlations of each model with intervals, and their differences from the first model's."""
    bootstrap: dict[str, Any] = {"resamples": job.resamples, "seed": job.seed}
    measured = [measure_model(job, rated, model) for model in models]
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
            | correlation_estimates(rated, scores_N, first_N, **bootstrap)
            for model, (_, scores_N) in zip(models[1:], measured[1:], strict=True)
        ],
    }


def measure_model(job: EvaluateJob, rated: RatedPairs, model: Model) -> tuple[dict[str, Any], np.ndarray]:
    """The model's part of `metrics.json`, and its cosines or scores of the pairs, (N,)."""
    config = model.config
    bootstrap: dict[str, Any] = {"resamples": job.resamples, "seed": job.seed}
    if embeds(config):
        vectors = vectors_by_formula(rated, model)
        scores = {formula: pair_cosines(vectors_PD, rated.pair_index) for formula, vectors_PD in vectors.items()}
        spreads = {formula: vector_spread(vectors_PD, seed=job.seed) for formula, vectors_PD in vectors.items()}
    else:
        scored_N = model.scores(rated.sentences1, rated.sentences2, rated.conditions)
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
            formula: spreads[formula] | correlation_estimates(rated, scores_N, **bootstrap)
            for formula, scores_N in scores.items()
        },
    }
    return part, scores[config.formula]


def vectors_by_formula(rated: RatedPairs, model: Model) -> dict[str, np.ndarray]:
    """The model's vectors of the distinct pairs, (P, D), by formula; of CASE also those of each step before the last:
    f and, where the prompt has a base, f - base."""
    config = model.config
    if not is_case(config):
        return {config.formula: model.embed(rated.distinct)}
    steps = [before_g(config, subtract=False)]
    if all(prompts.base is not None for prompts in config.prompts):
        steps.append(before_g(config, subtract=True))
    vectors = {step.formula: model.embed(rated.distinct, step) for step in steps}
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


TITLES = {
    "spearman": "Spearman",
    "spearman_rated": "Spearman without -1",
    "pearson": "Pearson",
    "pearson_rated": "Pearson without -1",
}
SEEN = {"train": "was trained on these very pairs", "validation": "had its epoch chosen on these very pairs"}


def render_csts(metrics: dict[str, Any]) -> str:
    """The report in Markdown; `metrics` holds every number in it."""
    data, models = metrics["data"], metrics["models"]
    parts = [
        f"# {', '.join(model['name'] for model in models)} on {data['file']}",
        f"Conditional semantic textual similarity: the cosine of two sentences' vectors under a condition, against "
        f"people's rating; {data['rows']:,} pairs, to {data['not_applicable']:,} of which the condition does not apply "
        f"(label -1). Correlations are x 100, with 95 % intervals of the bootstrap over sentence pairs.",
        _summary(models),
        *(f"{model['name']} {SEEN[model['seen']]}." for model in models if model["seen"]),
        *(_differences(metrics) if metrics["comparison"] else []),
        "## Vectors",
        "`f` is the encoder's vector, `base` the condition's own (eq. 1), `g` the projector. Isotropy is I_iso of "
        f"eq. 5 over {metrics['settings']['directions']:,} directions, 1 where vectors point everywhere; cos to mean "
        "is the cosine of a vector to the mean of all (appendix C).",
        _vectors(models),
        "## How it was made",
        f"{provenance_lines(metrics)}\n- {data['file']}: {data['rows']:,} pairs of {data['distinct']:,} distinct "
        f"(sentence, condition); sha256 of what was read\n  `{data['sha256']}`\n"
        + "\n".join(f"- {model['name']}: encoder weights `{model['weights']}`" for model in models),
    ]
    return "\n\n".join(parts) + "\n"


def csts_values(metrics: dict[str, Any]) -> ValuesBySystem:
    """The correlations of each model."""
    own = {model["name"]: model["variants"][model["system"]] for model in metrics["models"]}
    return {
        model: {name: estimates[name] and estimates[name]["value"] for name in CORRELATIONS}
        for model, estimates in own.items()
    }


def _summary(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        own = model["variants"][model["system"]]
        encoder = f"{model['encoder']}, {model['setting']}, {model['pooling']}"
        columns = [model["name"], encoder, f"`{model['system']}`", str(own["dim"] or NOT_AVAILABLE)]
        rows.append([*columns, *(interval(own[name]) for name in TITLES)])
    return table(["model", "encoder", "vector", "dimensions", *TITLES.values()], rows)


def _differences(metrics: dict[str, Any]) -> list[str]:
    least, names = 2 / metrics["settings"]["resamples"], list(TITLES)[:3]
    rows = [
        [f"{line['model']} - {line['against']}", *(difference(line[name], least) for name in names)]
        for line in metrics["comparison"]
    ]
    return [
        "## Differences",
        "By the paired bootstrap over the same resamples; above 0 the model before the minus is better; p: two-sided.",
        table(["difference", *(TITLES[name] for name in names)], rows),
    ]


def _vectors(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        for formula, v in model["variants"].items():
            to_mean = v["to_mean"]
            mean = f"{to_mean['mean']:.3f} ± {to_mean['std']:.3f}" if to_mean else NOT_AVAILABLE
            correlations = (interval(v[name]) for name in ("spearman", "spearman_rated"))
            dim = str(v["dim"] or NOT_AVAILABLE)
            rows.append([model["name"], f"`{formula}`", dim, *correlations, number(v["isotropy"], 4), mean])
    header = ["model", "vectors", "dimensions", "Spearman", "Spearman without -1", "isotropy", "cos to mean"]
    return table(header, rows)


TASK = Task(read=read, measure=measure, expected=any_condition, values=csts_values, render=render_csts)
