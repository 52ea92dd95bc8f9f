"""Pairs of sentences without a condition: scored from 0 to 5 (STS), or related or not (MixSP, section 4.4).

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from raycase.data.rated import LABEL, SCORE, RatedPairs, read_scored
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import Correlation, auc, bootstrap_interval, paired_bootstrap, spearman
from raycase.evaluation.models import Model
from raycase.evaluation.plain_scores import load_scorer, plain_scores
from raycase.evaluation.plots import WIDTH, png
from raycase.evaluation.procedure import Embed, Measured
from raycase.evaluation.ranked import mean_interval
from raycase.evaluation.report import difference, interval, number, picture, provenance_lines, table
from raycase.evaluation.seeds import FiguresOf, seeds_section
from raycase.systems.mixsp import UPPER, MixSpConfig

GRID = 512  # points at which a density is computed
PICTURE = "ranges.png"
Densities = tuple[np.ndarray, np.ndarray, np.ndarray]  # grid, density of the lower range, of the upper one


def upper_range(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Spearman over the pairs scored `UPPER` or more: they mean nearly the same."""
    return spearman(scores_N[ratings_N >= UPPER], ratings_N[ratings_N >= UPPER])


def lower_range(scores_N: np.ndarray, ratings_N: np.ndarray) -> float:
    """Spearman over the pairs scored below `UPPER`."""
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
        "the same. `router`: how often MixSP's router takes a pair for one of the range of its score (table 5), by the "
        "mean of its probabilities for both sentences; beside it the share of the most frequent range."
    ),
    "pairs": "Area under the ROC curve x 100 of the model's score against the label 0 or 1.",
}


def densities(scores_N: np.ndarray, ratings_N: np.ndarray) -> Densities | None:
    """The grid, and the densities of both ranges' scores on it: (GRID,) each. None if a range's scores are all the
    same."""
    margin = 0.25 * np.ptp(scores_N)
    grid = np.linspace(scores_N.min() - margin, scores_N.max() + margin, GRID)
    parts = (scores_N[ratings_N < UPPER], scores_N[ratings_N >= UPPER])
    try:
        lower, upper = (gaussian_kde(part)(grid) for part in parts)
    except (ValueError, np.linalg.LinAlgError):
        return None
    return grid, lower, upper


def overlap(grid: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """The area under both of two densities, from 0 to 1 (MixSP, figure 1)."""
    return float(np.trapezoid(np.minimum(lower, upper), grid))


def read(job: EvaluateJob) -> RatedPairs:
    """Read the pairs. Raises RequestError for labels other than 0 and 1, and for scores of one range alone."""
    pairs = read_scored(job.data, "--data", SCORE if job.task == "sts" else LABEL)
    ratings = sorted(set(pairs.ratings.tolist()))
    if job.task == "pairs" and ratings != [0.0, 1.0]:
        raise RequestError(f"--data: expected the labels 0 and 1, got {', '.join(f'{v:g}' for v in ratings[:5])}")
    if job.task == "sts" and not ratings[0] < UPPER <= ratings[-1]:
        raise RequestError(
            f"--data: expected scores below {UPPER:g} and from there on, got {ratings[0]:g} to {ratings[-1]:g}"
        )
    return pairs


def measure(job: EvaluateJob, pairs: RatedPairs, models: Sequence[Model], embed: Embed) -> Measured:
    """Figures of each model with intervals, and their differences from the first model's."""
    settings: dict[str, Any] = {"resamples": job.resamples, "seed": job.seed}
    measures = MEASURES[job.task]
    scores = {model.name: plain_scores(model, pairs.sentences1, pairs.sentences2, job, embed) for model in models}
    first_N = scores[models[0].name]
    systems: list[dict[str, Any]] = []
    densities_of: dict[str, Densities] = {}
    for model in models:
        scores_N = scores[model.name]
        figures = {name: _figure(metric, scores_N, pairs.ratings, settings) for name, metric in measures.items()}
        system: dict[str, Any] = {"name": model.name, "what": model.config.label, "figures": figures}
        if job.task == "sts":
            curves = densities(scores_N, pairs.ratings)
            system["overlap"] = None if curves is None else 100 * overlap(*curves)
            if curves is not None:
                densities_of[model.name] = curves
            system["router"] = router_figure(model, pairs, job) if isinstance(model.config, MixSpConfig) else None
        if model is not models[0]:
            system["against"] = {
                name: _times100(paired_bootstrap(metric, scores_N, first_N, pairs.ratings, **settings))
                for name, metric in measures.items()
            }
        systems.append(system)
    metrics = {
        "title": TITLES[job.task],
        "about": f"{len(pairs):,} pairs. {ABOUT[job.task]} With 95 % intervals of the bootstrap over pairs.",
        "data": {"rows": len(pairs), "sha256": pairs.data_sha256},
        "systems": systems,
        "settings": {**settings, "compute": job.compute},
    }
    if not densities_of:
        return Measured(metrics=metrics)
    return Measured(metrics=metrics, draw=lambda: {PICTURE: _draw_densities(densities_of)}, lists_plots=True)


def router_figure(model: Model, pairs: RatedPairs, job: EvaluateJob) -> dict[str, float]:
    """Accuracy x 100 of a MixSP's router on its own ranges, with its interval; the share of the most frequent range."""
    ranges_N = load_scorer(model, job).ranges(pairs.sentences1, pairs.sentences2)
    wanted_N = np.digitize(pairs.ratings, np.array(model.config.ranges, dtype=pairs.ratings.dtype))
    right_N = 100.0 * (ranges_N == wanted_N)
    most_frequent = 100 * np.bincount(wanted_N).max() / len(wanted_N)
    return mean_interval(right_N, resamples=job.resamples, seed=job.seed) | {"most_frequent": float(most_frequent)}


def _figure(metric: Correlation, scores_N: np.ndarray, ratings_N: np.ndarray, settings: Any) -> dict[str, float] | None:
    low, high = bootstrap_interval(metric, scores_N, ratings_N, **settings)
    return _times100({"value": metric(scores_N, ratings_N), "low": low, "high": high})


def _times100(figure: dict[str, float]) -> dict[str, float] | None:
    """All but p x 100; None if the scores or ratings are all the same, for JSON has no NaN."""
    if any(np.isnan(value) for value in figure.values()):
        return None
    return {key: value if key == "p" else 100 * value for key, value in figure.items()}


def figures(metrics: dict[str, Any]) -> FiguresOf:
    """The figures of each system, for the comparison of seeds."""
    found: FiguresOf = {}
    for system in metrics["systems"]:
        known = system["figures"] | ({"router": system["router"]} if system.get("router") else {})
        found[system["name"]] = {name: figure and figure["value"] for name, figure in known.items()}
        if "overlap" in system:
            found[system["name"]]["overlap"] = system["overlap"]
    return found


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown; `metrics` holds every figure in it."""
    systems = metrics["systems"]
    names = list(systems[0]["figures"])
    routed = any(system.get("router") for system in systems)
    header = ["", *names, *(["overlap"] if "overlap" in systems[0] else [])]
    header += ["router", "most frequent range"] if routed else []
    rows = []
    for system in systems:
        cells = [system["name"], *(interval(system["figures"][name]) for name in names)]
        if "overlap" in system:
            cells.append(number(system["overlap"]))
        if routed:
            router = system["router"] or {}
            cells += [interval(router or None), number(router.get("most_frequent"))]
        rows.append(cells)
    parts = [f"# {metrics['title']}", metrics["about"]]
    parts += [table(["system", "what"], [[s["name"], s["what"]] for s in systems]), table(header, rows)]
    if len(systems) > 1:
        least = 2 / metrics["settings"]["resamples"]
        rows = [[s["name"], *(difference(s["against"][name], least) for name in names)] for s in systems[1:]]
        parts += [f"Minus {systems[0]['name']}, by the paired bootstrap:", table(["", *names], rows)]
    for name in metrics.get("pictures", []):
        parts += picture(metrics, "The two ranges", name)
    return "\n\n".join([*parts, *seeds_section(metrics), "## How it was made", provenance_lines(metrics)]) + "\n"


def _draw_densities(densities_of: dict[str, Densities]) -> bytes:
    """Both densities of each system (MixSP, figure 1) as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.0 * len(densities_of) + 0.4), layout="constrained")
    column = figure.subplots(len(densities_of), 1, squeeze=False)[:, 0]
    for axes, (name, (grid, lower, upper)) in zip(column, densities_of.items(), strict=True):
        axes.plot(grid, lower, color="#0072B2", linewidth=1.6, label=f"below {UPPER:g}")
        axes.plot(grid, upper, color="#D55E00", linestyle="-.", linewidth=1.6, label=f"{UPPER:g} and above")
        axes.fill_between(grid, np.minimum(lower, upper), color="0.8")
        axes.set_title(f"{name[-45:]}: overlap {100 * overlap(grid, lower, upper):.1f} %", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("density")
    column[0].legend(frameon=False, fontsize=9, title="score", title_fontsize=9)
    column[-1].set_xlabel("similarity by the model")
    return png(figure)
