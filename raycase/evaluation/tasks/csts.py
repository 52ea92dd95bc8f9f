"""C-STS: cosines of sentence pairs under a condition against people's ratings, with ablation and case study.

Shapes: P distinct (sentence, condition), N rated pairs, A pairs with answers, D and K dimensions before and after g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.data.inputs import find_input
from raycase.data.rated import NOT_APPLICABLE, SENTENCE1, SENTENCE2, RatedPairs, read_columns, read_rated, texts
from raycase.data.schema import CONDITION
from raycase.encoder.cosines import cosines, pair_cosines
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.evaluation.ablation import VectorsBy, ablation
from raycase.evaluation.conditions import condition_data, condition_figures
from raycase.evaluation.csts_plots import draw
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model, before_g, encoder_name, is_case, setting
from raycase.evaluation.procedure import Embed, Measured
from raycase.evaluation.published import ISOTROPY
from raycase.evaluation.scores import DIRECTIONS, compare, figures, score_figures, worst_pairs
from raycase.evaluation.training_curves import training_curve
from raycase.evaluation.training_record import training_metrics
from raycase.systems.case import CaseConfig
from raycase.systems.contracts import Compute
from raycase.systems.projector import settings_of
from raycase.systems.registry import embeds

ANSWER1, ANSWER2 = "answer1", "answer2"
Cases = dict[str, list[str]]  # a column each: two sentences, a condition, what each sentence says about it


@dataclass(frozen=True, kw_only=True)
class CstsData:
    """Rated pairs, the training data whose conditions are counted, and the sentences of the case study."""

    rated: RatedPairs
    train: RatedPairs | None
    cases: Cases | None

    @property
    def uri(self) -> str:
        return self.rated.uri


def read(job: EvaluateJob) -> CstsData:
    """Read `--data`, `--train` and `--cases`. Raises RequestError."""
    return CstsData(
        rated=read_rated(job.data, "--data"),
        train=read_rated(job.train, "--train") if job.train else None,
        cases=read_cases(job.cases) if job.cases else None,
    )


def read_cases(uri: str) -> Cases:
    """Sentences with answers. Raises RequestError for a missing column, an empty text, a file without rows."""
    cases: Cases = {name: [] for name in (SENTENCE1, SENTENCE2, CONDITION, ANSWER1, ANSWER2)}
    for file in find_input(uri, "--cases"):
        columns = read_columns(file, tuple(cases), "--cases")
        for name, values in cases.items():
            values += texts(columns[name], f"--cases: {file.uri}", name)
    if not cases[CONDITION]:
        raise RequestError(f"--cases: expected sentences with answers in {uri}, got no rows")
    return cases


def measure(job: EvaluateJob, data: CstsData, models: Sequence[Model], embed: Embed) -> Measured:
    """Figures of each model with intervals, and their differences from the first model's."""
    rated = data.rated

    def vectors_by(model: Model) -> VectorsBy:
        return lambda config: embed(rated.distinct, model, config)

    studies = [case_study(model, data.cases, job.compute) if data.cases else [] for model in models]
    measured = [measure_model(model, rated, vectors_by(model), job) for model in models]
    first_scores_N = measured[0][1]
    by_condition = [
        condition_figures(scores_N, rated, data.train, resamples=job.resamples, seed=job.seed)
        for _, scores_N in measured
    ]
    encoders = {model.config.describe()["weights"]: model for model in models}
    metrics: dict[str, Any] = {
        "data": {
            "file": Path(rated.uri).name,
            "rows": len(rated),
            "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
            "distinct": len(rated.distinct),
            "sha256": rated.data_sha256,
        },
        "conditions": condition_data(rated, data.train),
        "settings": {
            "resamples": job.resamples,
            "directions": DIRECTIONS,
            "seed": job.seed,
            "compute": job.compute,
        },
        "models": [
            part | more | {"cases": study}
            for (part, _), more, study in zip(measured, by_condition, studies, strict=True)
        ],
        "comparison": [
            {"model": model.name, "against": models[0].name}
            | compare(scores_N, first_scores_N, rated, resamples=job.resamples, seed=job.seed)
            for model, (_, scores_N) in zip(models[1:], measured[1:], strict=True)
        ],
        "ablation": [ablation(m.config, rated, vectors_by(m)) for m in encoders.values()] if job.ablate else [],
    }
    return Measured(metrics=metrics, draw=lambda: draw(metrics["models"]))


# -------------------------------------------------------------------------------------------------------- one model


def measure_model(
    model: Model, rated: RatedPairs, vectors_by: VectorsBy, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """The model's part of `metrics.json`, and its cosines or scores of the pairs, (N,)."""
    if is_case(model.config):
        return _measure_case(model, rated, vectors_by, job)
    return _measure_tuned(model, rated, vectors_by, job)


def _measure_case(
    model: Model, rated: RatedPairs, vectors_by: VectorsBy, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of f, of f - base, and of g applied to the one that g was fitted on."""
    config = model.config
    before = "f - base" if config.subtract else "f"  # what the model has before g
    vectors: dict[str, np.ndarray] = {}
    published: dict[str, dict[str, float] | None] = {}
    has_base = all(prompts.base is not None for prompts in config.prompts)  # a prompt of one's own may have none
    for formula, subtract in (("f", False), *([("f - base", True)] if has_base else [])):
        variant = replace(config, subtract=subtract, projector=None, folder=None)
        vectors[formula] = vectors_by(variant)
        published[formula] = _published_isotropy(variant)
    system = before
    if model.projector is not None:
        system = f"g({before})"
        vectors[system] = model.project(vectors[before])
    scores_N = pair_cosines(vectors[system], rated.pair_index)
    variants = {
        name: figures(vectors_PD, rated, resamples=job.resamples, seed=job.seed) | {"published": published.get(name)}
        for name, vectors_PD in vectors.items()
    }
    part = _model_part(model, rated, scores_N, encoder_name(config), before, system, variants)
    return part, scores_N


def _measure_tuned(
    model: Model, rated: RatedPairs, vectors_by: VectorsBy, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of a fine-tuned encoder: of its vectors, or of its scores if it has none."""
    config = model.config
    if embeds(config):
        vectors_PD = vectors_by(config)
        scores_N = pair_cosines(vectors_PD, rated.pair_index)
        variant = figures(vectors_PD, rated, resamples=job.resamples, seed=job.seed)
    else:
        scorer = config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
        try:
            scores_N = scorer.score(rated.sentences1, rated.sentences2, rated.conditions)
        except ValueError as error:
            raise RequestError(f"--data: expected texts that {model.name} can score, got {error}") from error
        variant = score_figures(scores_N, rated, resamples=job.resamples, seed=job.seed)
    formula = config.formula
    variants = {formula: variant | {"published": None}}
    return _model_part(model, rated, scores_N, config.SYSTEM, formula, formula, variants), scores_N


def _model_part(
    model: Model,
    rated: RatedPairs,
    scores_N: np.ndarray,
    encoder: str,
    before: str,
    system: str,
    variants: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """What `metrics.json` holds of one model; `variants` maps a formula to its figures."""
    config = model.config
    trained = training_metrics(config)
    return {
        "name": model.name,
        "encoder": encoder,
        "setting": setting(config),
        "prompt": config.encoder.prompt,
        "pooling": str(config.encoder.pooling[0]),
        "weights": config.describe()["weights"],
        "projector": settings_of(config.projector) if is_case(config) and config.projector else None,
        "seen": _seen(trained, rated),
        "training": training_curve(trained),
        "system": system,
        "own": before,
        "variants": variants,
        "worst": worst_pairs(scores_N, rated),
    }


def _published_isotropy(config: CaseConfig) -> dict[str, float] | None:
    """The paper's figures of this encoder in this setting; it has them for the encoder's default pooling."""
    row = ENCODERS.get(encoder_name(config))
    published = ISOTROPY.get(encoder_name(config), {}).get(setting(config))
    if row is None or published is None or row.pooling[0] is not config.encoder.pooling[0]:
        return None
    return dict(zip(("isotropy", "mean", "std"), published, strict=True))


def _seen(trained: Any, rated: RatedPairs) -> str | None:
    """`train` or `validation` if training used these very pairs as such, by the metrics in the model folder."""
    try:
        data = trained["data"]
        return next((part for part in ("train", "validation") if data[part]["sha256"] == rated.data_sha256), None)
    except (KeyError, TypeError):  # a folder that was saved without training
        return None


# ------------------------------------------------------------------------------------------------------ case study


def case_study(model: Model, cases: Cases, compute: Compute | None) -> list[dict[str, Any]]:
    """Table 5: cosines before and after g of the two sentences, and of each with its answer, under the condition.

    `unconditional` is the cosine of the two sentences' plain vectors; as in the paper, g of one view projects them too.
    The answer is embedded as a sentence under the same condition. Without g, `after` is None. Runs in this process.
    Raises RequestError for a text without a vector.
    """
    system = before_g(model.config).load(dtype=None if compute is None else getattr(torch, compute))
    sides = (SENTENCE1, SENTENCE2, ANSWER1, ANSWER2)
    try:
        plain = {side: system.embed(cases[side], None) for side in sides[:2]}
        before = {side: system.embed(cases[side], cases[CONDITION]) for side in sides}
    except ValueError as error:
        raise RequestError(f"--cases: expected texts that {model.name} can embed, got {error}") from error
    one_view = model.projector is not None and model.config.views_dim == model.config.plain_dim
    after = {side: model.project(before[side]) for side in sides} if model.projector else {}
    plain_after = {side: model.project(plain[side]) for side in plain} if one_view else {}
    both = {
        "unconditional": _moved(plain, plain_after, SENTENCE1, SENTENCE2),
        "sentences": _moved(before, after, SENTENCE1, SENTENCE2),
        ANSWER1: _moved(before, after, SENTENCE1, ANSWER1),
        ANSWER2: _moved(before, after, SENTENCE2, ANSWER2),
    }
    return [
        {name: column[i] for name, column in cases.items()}
        | {"cosines": {name: moved[i] for name, moved in both.items()}}
        for i in range(len(cases[CONDITION]))
    ]


def _moved(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], first: str, second: str
) -> list[dict[str, float | None]]:
    """The cosine of each case's two texts before and after g; None without vectors after it."""
    before_A = cosines(before[first], before[second]).tolist()
    after_A = cosines(after[first], after[second]).tolist() if after else [None] * len(before_A)
    return [{"before": b, "after": a} for b, a in zip(before_A, after_A, strict=True)]
