"""What systems are worth on rated pairs (C-STS): figures with intervals, comparison, ablation, case study; a report.

Shapes: P distinct (sentence, condition), N rated pairs, A pairs with answers, D and K dimensions before and after g.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.data.inputs import find_input
from raycase.data.provenance import provenance
from raycase.data.rated import NOT_APPLICABLE, SENTENCE1, SENTENCE2, RatedPairs, read_columns, read_rated, texts
from raycase.data.schema import CONDITION
from raycase.data.storage import locate
from raycase.encoder.cosines import cosines, pair_cosines
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.evaluation.ablation import PairVectorsOf, ablation
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import Model, before_g, encoder_name, find_models, is_case, setting
from raycase.evaluation.plots import check_plots, plots
from raycase.evaluation.published import ISOTROPY
from raycase.evaluation.report import render, write_report
from raycase.evaluation.scores import DIRECTIONS, compare, figures, score_figures, worst_pairs
from raycase.systems.case import CaseConfig
from raycase.systems.contracts import Compute, VectorsOf
from raycase.systems.model_folder import METRICS
from raycase.systems.pair_vectors import pair_vectors
from raycase.systems.projector import project
from raycase.systems.registry import embeds

ANSWER1, ANSWER2 = "answer1", "answer2"
Cases = dict[str, list[str]]  # a column each: two sentences, a condition, what each sentence says about it


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, then write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured.
    """
    began = time.time()
    folder = check_request(job)
    check_plots()
    rated = read_rated(job.data, "--data")
    cases = read_cases(job.cases) if job.cases else None
    models = find_models(job)

    def pairs_of(model: Model) -> PairVectorsOf:
        return lambda config: pair_vectors(rated, config, vectors_of, cache=model.cache, compute=job.compute)

    studies = [case_study(model, cases, job.compute) if cases else [] for model in models]
    found = [evaluate_model(model, rated, pairs_of(model), job) for model in models]
    encoders = {model.config.describe()["weights"]: model for model in models}
    metrics = {
        "task": job.task,
        "data": {
            "file": Path(rated.uri).name,
            "rows": len(rated),
            "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
            "distinct": len(rated.distinct),
            "sha256": rated.data_sha256,
        },
        "settings": {
            "resamples": job.resamples,
            "directions": DIRECTIONS,
            "seed": job.seed,
            "compute": job.compute,
        },
        "models": [part | {"cases": study} for (part, _), study in zip(found, studies, strict=True)],
        "comparison": [
            {"model": model.name, "against": models[0].name}
            | compare(scores_N, found[0][1], rated, resamples=job.resamples, seed=job.seed)
            for model, (_, scores_N) in zip(models[1:], found[1:], strict=True)
        ],
        "ablation": [ablation(m.config, rated, pairs_of(m)) for m in encoders.values()] if job.ablate else [],
        "provenance": provenance(),
        "seconds": round(time.time() - began, 1),
    }
    write_report(locate(str(folder)), metrics, render, plots(metrics))
    return metrics


# ------------------------------------------------------------------------------------------------------------ cases


def read_cases(uri: str) -> Cases:
    """Sentences with answers. Raises RequestError for a missing column, an empty text, a file without rows."""
    cases: Cases = {name: [] for name in (SENTENCE1, SENTENCE2, CONDITION, ANSWER1, ANSWER2)}
    for file in find_input(uri, "--cases"):
        found = read_columns(file, tuple(cases), "--cases")
        for name, values in cases.items():
            values += texts(found[name], f"--cases: {file.uri}", name)
    if not cases[CONDITION]:
        raise RequestError(f"--cases: expected sentences with answers in {uri}, got no rows")
    return cases


# -------------------------------------------------------------------------------------------------------- one model


def evaluate_model(
    model: Model, rated: RatedPairs, pairs_of: PairVectorsOf, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of f, of f - base, and of g of the one that g was fitted on; and the model's own cosines, (N,)."""
    if not is_case(model.config):
        return _evaluate_tuned(model, rated, pairs_of, job)
    config = model.config
    own = "f - base" if config.subtract else "f"
    vectors: dict[str, np.ndarray] = {}
    published: dict[str, dict[str, float] | None] = {}
    for formula, subtract in (("f", False), ("f - base", True)):
        variant = replace(config, subtract=subtract, projector=None, folder=None)
        vectors[formula] = pairs_of(variant).vectors
        published[formula] = _published_isotropy(variant)
    system = own
    if model.projector is not None:
        system = f"g({own})"
        vectors[system] = project(model.projector, vectors[own])
    scores_N = pair_cosines(vectors[system], rated.pair_index)
    part = {
        "name": model.name,
        "encoder": encoder_name(config),
        "setting": setting(config),
        "prompt": config.encoder.prompt,
        "pooling": str(config.encoder.pooling[0]),
        "weights": config.describe()["weights"],
        "projector": asdict(config.projector) if config.projector else None,
        "seen": _seen(config, rated),
        "system": system,
        "own": own,
        "variants": {
            name: figures(vectors_PD, rated, resamples=job.resamples, seed=job.seed)
            | {"published": published.get(name)}
            for name, vectors_PD in vectors.items()
        },
        "worst": worst_pairs(scores_N, rated),
    }
    return part, scores_N


def _evaluate_tuned(
    model: Model, rated: RatedPairs, pairs_of: PairVectorsOf, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """The same of a fine-tuned encoder: of its vectors, or of its scores where it has none."""
    config, settings = model.config, {"resamples": job.resamples, "seed": job.seed}
    if embeds(config):
        vectors_PD = pairs_of(config).vectors
        scores_N = pair_cosines(vectors_PD, rated.pair_index)
        found = figures(vectors_PD, rated, **settings)
    else:
        scorer = config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
        try:
            scores_N = scorer.score(rated.sentences1, rated.sentences2, rated.conditions)
        except ValueError as error:
            raise RequestError(f"--data: expected texts that {model.name} can score, got {error}") from error
        found = score_figures(scores_N, rated, **settings)
    part = {
        "name": model.name,
        "encoder": config.SYSTEM,
        "setting": setting(config),
        "prompt": config.encoder.prompt,
        "pooling": str(config.encoder.pooling[0]),
        "weights": config.describe()["weights"],
        "projector": None,
        "seen": _seen(config, rated),
        "system": config.formula,
        "own": config.formula,
        "variants": {config.formula: found | {"published": None}},
        "worst": worst_pairs(scores_N, rated),
    }
    return part, scores_N


def _published_isotropy(config: CaseConfig) -> dict[str, float] | None:
    """What the paper has of this encoder in this setting, under the encoder's own pooling."""
    row = ENCODERS.get(encoder_name(config))
    found = ISOTROPY.get(encoder_name(config), {}).get(setting(config))
    if row is None or found is None or row.pooling[0] is not config.encoder.pooling[0]:
        return None
    return dict(zip(("isotropy", "mean", "std"), found, strict=True))


def _seen(config: Any, rated: RatedPairs) -> str | None:
    """The part that these very pairs had in training (`train` or `validation`), by the metrics in the model folder."""
    if config.local is None:
        return None
    try:
        data = json.loads((config.local / METRICS).read_text(encoding="utf-8"))["data"]
        return next((part for part in ("train", "validation") if data[part]["sha256"] == rated.data_sha256), None)
    except (OSError, ValueError, KeyError, TypeError):  # a folder that was saved without training
        return None


def case_study(model: Model, cases: Cases, compute: Compute | None) -> list[dict[str, Any]]:
    """Table 5: cosines before and after g of the two sentences, and of each with its answer, under the condition.

    The answer is embedded as a sentence under the same condition. Plain vectors have no g, so `unconditional` is one
    number; without g `after` is None. Runs in this process. Raises RequestError for what cannot be embedded.
    """
    system = before_g(model.config).load(dtype=None if compute is None else getattr(torch, compute))
    sides = (SENTENCE1, SENTENCE2, ANSWER1, ANSWER2)
    try:
        unconditional_A = cosines(*(system.embed(cases[side], None) for side in sides[:2]))
        before = {side: system.embed(cases[side], cases[CONDITION]) for side in sides}
    except ValueError as error:
        raise RequestError(f"--cases: expected texts that {model.name} can embed, got {error}") from error
    after = model.projector and {side: project(model.projector, before[side]) for side in sides}
    pairs = {"sentences": (SENTENCE1, SENTENCE2), ANSWER1: (SENTENCE1, ANSWER1), ANSWER2: (SENTENCE2, ANSWER2)}
    before_A = {name: cosines(before[a], before[b]) for name, (a, b) in pairs.items()}
    after_A = {name: cosines(after[a], after[b]) for name, (a, b) in pairs.items()} if after else {}
    return [
        {name: column[i] for name, column in cases.items()}
        | {
            "cosines": {"unconditional": float(unconditional_A[i])}
            | {
                name: {"before": float(before_A[name][i]), "after": float(after_A[name][i]) if after else None}
                for name in pairs
            }
        }
        for i in range(len(unconditional_A))
    ]
