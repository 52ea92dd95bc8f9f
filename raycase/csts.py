"""What systems are worth on rated pairs (C-STS): figures with intervals, comparison, ablation, case study; a report.

Shapes: P distinct (sentence, condition), N rated pairs, A pairs with answers, D and K dimensions before and after g.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from raycase.ablation import VectorsOf, ablation, encoder_name, setting
from raycase.fetch import is_remote
from raycase.inputs import find_input
from raycase.metrics import cosines, pair_cosines
from raycase.model_folder import METRICS, SYSTEM
from raycase.plots import check_plots
from raycase.pooling import Pooling
from raycase.projection import PairVectors, project
from raycase.projector import load_projector
from raycase.provenance import provenance
from raycase.published import ISOTROPY
from raycase.rated import NOT_APPLICABLE, SENTENCE1, SENTENCE2, RatedPairs, read_columns, read_rated, texts
from raycase.report import write_report
from raycase.request import Compute
from raycase.schema import CONDITION, RequestError
from raycase.scores import DIRECTIONS, compare, figures, worst_pairs
from raycase.storage import Place, check_paths, place
from raycase.systems import resolve
from raycase.systems.case import CaseConfig
from raycase.table import ENCODERS
from raycase.vectors import pair_vectors

ANSWER1, ANSWER2 = "answer1", "answer2"
Cases = dict[str, list[str]]  # a column each: two sentences, a condition, what each sentence says about it


@dataclass(frozen=True, kw_only=True)
class EvaluateJob:
    """Evaluate one model or several on rated pairs; writes metrics.json, report.md and plots."""

    model: tuple[str, ...]
    """Folders that training saved, or names in the table of encoders (zero-shot). The others are compared with the
    first."""
    data: str
    """Rated pairs: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label."""
    output: str
    """Folder of the report, on this machine. An earlier report in it is replaced."""
    task: Literal["csts"] = "csts"
    """csts: the cosine of two sentences under a condition, against people's rating of their similarity."""
    prompt: str | None = None
    """How sentence and condition become one text, or several ways side by side, a+b. Default: the model's."""
    subtract: bool | None = None
    """Whether the condition's own vector is taken away (eq. 1). Default: the model's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the model's."""
    cases: str | None = None
    """File with sentence1, sentence2, condition, answer1, answer2: the case study of Table 5."""
    ablate: bool = False
    """Each encoder zero-shot under every pooling and prompt, minus base or not (Table 10)."""
    resamples: int = 1000
    """Of the bootstrap."""
    seed: int = 0
    """Of the bootstrap, and of the directions that isotropy is measured in."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    cache: str | None = None
    """Folder or URI for the embedded pairs. Default: `cache` beside the model's folder, else beside the output."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the models, found and checked; its encoder's weights are not loaded."""

    name: str
    config: CaseConfig
    projector: nn.Module | None
    cache: Place


def evaluate(job: EvaluateJob, *, embed_pairs: Callable[..., PairVectors] = pair_vectors) -> dict[str, Any]:
    """Measure, then write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured.
    `embed_pairs` gives the vectors before g; by default the main job embeds what the cache lacks.
    """
    began = time.time()
    check_paths({"--data": job.data, "--output": job.output, "--cases": job.cases, "--cache": job.cache})
    folder = open_report_folder(job.output)
    check_plots()
    if job.seed < 0:
        raise RequestError(f"--seed: wanted 0 or more, found {job.seed}")
    if job.resamples < 100:
        raise RequestError(f"--resamples: wanted at least 100 for an interval of 95 %, found {job.resamples}")
    rated = read_rated(job.data, "--data")
    cases = read_cases(job.cases) if job.cases else None
    models = find_models(job)

    def vectors_of(model: Model) -> VectorsOf:
        return lambda config: embed_pairs(rated, config, cache=model.cache, compute=job.compute)

    studies = [case_study(model, cases, job.compute) if cases else [] for model in models]
    found = [evaluate_model(model, rated, vectors_of(model), job) for model in models]
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
        "ablation": [ablation(m.config, rated, vectors_of(m)) for m in encoders.values()] if job.ablate else [],
        "provenance": provenance(),
        "seconds": round(time.time() - began, 1),
    }
    write_report(place(str(folder)), metrics)
    return metrics


# ------------------------------------------------------------------------------------------------------ the request


def open_report_folder(output: str) -> Path:
    """The report's folder. Raises RequestError where it holds something else."""
    if "://" in output:
        raise RequestError(f"--output: wanted a folder on this machine, found {output}; copy the report there")
    folder = Path(output).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"--output: wanted a folder, found the file {folder}")
    found = "a model" if (folder / SYSTEM).exists() else None
    if found is None and (folder / METRICS).exists():
        try:
            earlier = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = None
        if not isinstance(earlier, dict) or "task" not in earlier:
            found = f"another {METRICS}"
    if found:
        raise RequestError(
            f"--output: wanted a new folder or one with an earlier report, found {found} in {folder}; "
            f"say --output {folder / 'report'}"
        )
    return folder


def find_models(job: EvaluateJob) -> list[Model]:
    """The models asked for, with g. Raises RequestError for an unknown or broken one, and for one that comes twice."""
    if not job.model:
        raise RequestError("--model: wanted at least one, found none")
    configs: list[CaseConfig] = []
    for name in job.model:
        known = is_remote(name) or "/" not in name or Path(name).exists()
        if not (known or (job.prompt and job.pooling)):  # else a Hugging Face id
            raise RequestError(f"--model: wanted a model folder or one of {', '.join(ENCODERS)}, found no {name}")
        config = resolve(name, prompt=job.prompt, subtract=job.subtract, pooling=job.pooling)
        assert isinstance(config, CaseConfig), "the only system with folders"
        for other, same in zip(job.model, configs, strict=False):
            if same.describe() == config.describe():
                raise RequestError(f"--model: wanted each model once, found the same as {other} and as {name}")
        configs.append(config)
    short = tuple(
        posixpath.basename(c.folder) if c.folder else name for c, name in zip(configs, job.model, strict=True)
    )
    names = short if len(set(short)) == len(short) else job.model
    here = [None if c.folder is None or is_remote(c.folder) else Path(c.folder) for c in configs]
    first = next(filter(None, here), Path(job.output).absolute())
    return [
        Model(
            name=name,
            config=config,
            projector=load_projector(config.projector, config.local) if config.projector and config.local else None,
            cache=place(job.cache or str(_cache_beside(folder or first))),
        )
        for name, config, folder in zip(names, configs, here, strict=True)
    ]


def _cache_beside(folder: Path) -> Path:
    """Where training put its vectors: beside the folder, or for the best of a sweep beside the sweep's."""
    above = folder.parent.parent / "cache"
    return above if above.exists() and not (folder.parent / "cache").exists() else folder.parent / "cache"


def read_cases(uri: str) -> Cases:
    """Sentences with answers. Raises RequestError for a missing column, an empty text, a file without rows."""
    cases: Cases = {name: [] for name in (SENTENCE1, SENTENCE2, CONDITION, ANSWER1, ANSWER2)}
    for file in find_input(uri, "--cases"):
        found = read_columns(file, tuple(cases), "--cases")
        for name, values in cases.items():
            values += texts(found[name], f"--cases: {file.uri}", name)
    if not cases[CONDITION]:
        raise RequestError(f"--cases: wanted sentences with answers in {uri}, found no rows")
    return cases


# -------------------------------------------------------------------------------------------------------- one model


def evaluate_model(
    model: Model, rated: RatedPairs, vectors_of: VectorsOf, job: EvaluateJob
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of f, of f - base, and of g of the one that g was fitted on; and the model's own cosines, (N,)."""
    config = model.config
    own = "f - base" if config.subtract else "f"
    vectors: dict[str, np.ndarray] = {}
    published: dict[str, dict[str, float] | None] = {}
    for formula, subtract in (("f", False), ("f - base", True)):
        variant = replace(config, subtract=subtract, projector=None, folder=None)
        vectors[formula] = vectors_of(variant).vectors
        published[formula] = _published_isotropy(variant)
    system = own
    if model.projector is not None:
        system = f"g({own})"
        vectors[system] = project(model.projector, vectors[own])
    scores_N = pair_cosines(vectors[system], rated.places)
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


def _published_isotropy(config: CaseConfig) -> dict[str, float] | None:
    """What the paper has of this encoder in this setting, under the encoder's own pooling."""
    row = ENCODERS.get(encoder_name(config))
    found = ISOTROPY.get(encoder_name(config), {}).get(setting(config))
    if row is None or found is None or row.pooling[0] is not config.encoder.pooling[0]:
        return None
    return dict(zip(("isotropy", "mean", "std"), found, strict=True))


def _seen(config: CaseConfig, rated: RatedPairs) -> str | None:
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
    plain = replace(model.config, projector=None, folder=None)
    system = plain.load(dtype=None if compute is None else getattr(torch, compute))
    sides = (SENTENCE1, SENTENCE2, ANSWER1, ANSWER2)
    try:
        unconditional_A = cosines(*(system.embed(cases[side], None) for side in sides[:2]))
        before = {side: system.embed(cases[side], cases[CONDITION]) for side in sides}
    except ValueError as error:
        raise RequestError(f"--cases: wanted texts that {model.name} can embed, found {error}") from error
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
