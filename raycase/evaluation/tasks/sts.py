"""Pairs of sentences without a condition: scored from 0 to 5 (STS), or related or not (MixSP, section 4.4).

Shapes: N pairs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from scipy.stats import gaussian_kde

from raycase.data.provenance import provenance
from raycase.data.rated import LABEL, SCORE, RatedPairs, read_scored
from raycase.data.storage import locate
from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.metrics import Correlation, auc, bootstrap_interval, paired_bootstrap, spearman
from raycase.evaluation.models import Model, find_models
from raycase.evaluation.plots import WIDTH, check_plots, png
from raycase.evaluation.report import difference, interval, made, table, write_report
from raycase.systems.contracts import VectorsOf
from raycase.systems.mixsp import UPPER
from raycase.systems.registry import embeds

GRID = 512  # points at which a density is looked at
Densities = tuple[np.ndarray, np.ndarray, np.ndarray]


def upper_range(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Spearman over pairs that mean the same."""
    return spearman(scores_N[ratings_N >= UPPER], ratings_N[ratings_N >= UPPER])


def lower_range(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Spearman over pairs that do not."""
    return spearman(scores_N[ratings_N < UPPER], ratings_N[ratings_N < UPPER])


MEASURES: dict[str, dict[str, Correlation]] = {
    "sts": {"spearman": spearman, "upper": upper_range, "lower": lower_range},
    "pairs": {"auc": auc},
}
TITLES = {"sts": "Semantic textual similarity", "pairs": "Are two sentences related"}
ABOUT = {
    "sts": (
        f"Spearman x 100 over all pairs, over the upper range (scores of {UPPER:g} and above) and over the lower one; "
        "the overlap of the two ranges' distributions of scores, by Gaussian kernel density (figure 1): 0 apart, 100 "
        "the same."
    ),
    "pairs": "Area under the ROC curve x 100 of the model's score against the label 0 or 1.",
}


def densities(scores_N: np.ndarray, ratings_N: np.ndarray) -> Densities | None:
    """Where they are looked at, and the densities of the lower and the upper range there: (GRID,) each; None where a
    range's scores are all the same."""
    margin = 0.25 * np.ptp(scores_N)
    grid = np.linspace(scores_N.min() - margin, scores_N.max() + margin, GRID)
    parts = (scores_N[ratings_N < UPPER], scores_N[ratings_N >= UPPER])
    try:
        lower, upper = (gaussian_kde(part)(grid) for part in parts)
    except (ValueError, np.linalg.LinAlgError):
        return None
    return grid, lower, upper


def overlap(grid: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """The area that two densities share, from 0 to 1."""
    return float(np.trapezoid(np.minimum(lower, upper), grid))


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, write the report, and give what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    folder = check_request(job)
    check_plots()
    pairs = read_scored(job.data, "--data", SCORE if job.task == "sts" else LABEL)
    _check(pairs, job.task)
    models = find_models(job)
    scores = {model.name: _scores(model, pairs, job, vectors_of) for model in models}
    first = scores[models[0].name]
    settings: dict[str, Any] = {"resamples": job.resamples, "seed": job.seed}
    systems, drawn = [], {}
    for model in models:
        own, line = scores[model.name], {"name": model.name, "what": model.config.label}
        found = {name: _figure(metric, own, pairs.ratings, settings) for name, metric in MEASURES[job.task].items()}
        line["figures"] = found
        if job.task == "sts":
            found_densities = densities(own, pairs.ratings)
            line["overlap"] = None
            if found_densities is not None:
                line["overlap"] = 100 * overlap(*found_densities)
                drawn[model.name] = found_densities
        if model is not models[0]:
            line["against"] = {
                name: _times100(paired_bootstrap(metric, own, first, pairs.ratings, **settings))
                for name, metric in MEASURES[job.task].items()
            }
        systems.append(line)
    metrics = {
        "task": job.task,
        "title": TITLES[job.task],
        "about": f"{len(pairs):,} pairs. {ABOUT[job.task]} With 95 % intervals of the bootstrap over pairs.",
        "data": {"rows": len(pairs), "sha256": pairs.data_sha256},
        "systems": systems,
        "settings": {**settings, "compute": job.compute},
        "provenance": provenance(),
        "seconds": round(time.time() - began, 1),
    }
    pictures = {}
    if drawn:
        pictures["ranges.png"] = _picture(drawn)
        metrics["pictures"] = list(pictures)
    write_report(locate(str(folder)), metrics, render, pictures)
    return metrics


def _check(pairs: RatedPairs, task: str) -> None:
    found = set(pairs.ratings.tolist())
    if task == "pairs" and found != {0.0, 1.0}:
        raise RequestError(f"--data: expected the labels 0 and 1, got {', '.join(f'{v:g}' for v in sorted(found)[:5])}")
    if task == "sts" and not min(found) < UPPER <= max(found):
        raise RequestError(
            f"--data: expected scores below {UPPER:g} and from there on, got {min(found):g} to {max(found):g}"
        )


def _scores(model: Model, pairs: RatedPairs, job: EvaluateJob, vectors_of: VectorsOf) -> np.ndarray:
    """Of a model that scores pairs its own, else the cosine of the plain vectors: (N,)."""
    if embeds(model.config):
        texts = list(dict.fromkeys([*pairs.sentences1, *pairs.sentences2]))
        place_of = {text: i for i, text in enumerate(texts)}
        vectors_TD = vectors_of(texts, model.config, name=pairs.uri, cache=model.cache, compute=job.compute)
        both = zip(pairs.sentences1, pairs.sentences2, strict=True)
        return pair_cosines(vectors_TD, np.array([[place_of[a], place_of[b]] for a, b in both]))
    scorer = model.config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
    try:
        return np.asarray(scorer.score(pairs.sentences1, pairs.sentences2), dtype=np.float64)
    except ValueError as error:
        raise RequestError(f"--data: expected texts that {model.name} can score, got {error}") from error


def _figure(metric: Correlation, scores_N: np.ndarray, ratings_N: np.ndarray, settings: Any) -> dict[str, float] | None:
    low, high = bootstrap_interval(metric, scores_N, ratings_N, **settings)
    return _times100({"value": metric(scores_N, ratings_N), "low": low, "high": high})


def _times100(found: dict[str, float]) -> dict[str, float] | None:
    """None where scores or ratings are all the same, and nothing correlates; JSON has no NaN."""
    if any(np.isnan(value) for value in found.values()):
        return None
    return {key: value if key == "p" else 100 * value for key, value in found.items()}


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown; every figure in it stands in `metrics`."""
    systems = metrics["systems"]
    names = list(systems[0]["figures"])
    header = ["", *names, *(["overlap"] if "overlap" in systems[0] else [])]
    rows = []
    for system in systems:
        cells = [system["name"], *(interval(system["figures"][name]) for name in names)]
        if "overlap" in system:
            cells.append("n/a" if system["overlap"] is None else f"{system['overlap']:.2f}")
        rows.append(cells)
    parts = [f"# {metrics['title']}", metrics["about"]]
    parts += [table(["system", "what"], [[s["name"], s["what"]] for s in systems]), table(header, rows)]
    if len(systems) > 1:
        least = 2 / metrics["settings"]["resamples"]
        rows = [[s["name"], *(difference(s["against"][name], least) for name in names)] for s in systems[1:]]
        parts += [f"Minus {systems[0]['name']}, by the paired bootstrap:", table(["", *names], rows)]
    parts += [f"![The two ranges]({name})" for name in metrics.get("pictures", [])]
    return "\n\n".join([*parts, "## How it was made", made(metrics)]) + "\n"


def _picture(drawn: dict[str, Densities]) -> bytes:
    """Both densities of each system (figure 1)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.0 * len(drawn) + 0.4), layout="constrained")
    column = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (name, (grid, lower, upper)) in zip(column, drawn.items(), strict=True):
        axes.plot(grid, lower, color="#0072B2", linewidth=1.6, label=f"below {UPPER:g}")
        axes.plot(grid, upper, color="#D55E00", linestyle="-.", linewidth=1.6, label=f"{UPPER:g} and above")
        axes.fill_between(grid, np.minimum(lower, upper), color="0.8")
        axes.set_title(f"{name[-45:]}: overlap {100 * overlap(grid, lower, upper):.1f} %", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("density")
    column[0].legend(frameon=False, fontsize=9, title="score", title_fontsize=9)
    column[-1].set_xlabel("similarity by the model")
    return png(figure)
