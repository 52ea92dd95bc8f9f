"""MixSP's two ranges (Ponwitayarat et al., 2024): how far a model's scores of both overlap (figure 1), and how often
the router takes a pair for one of the range of its score (table 5).

    .venv/bin/python benchmarks/mixsp_ranges.py --model runs/mixsp-0 minilm --data cdsc_r/validation.csv \\
        --output runs/ranges

The overlap is that of the two distributions, by Gaussian kernel density: 0 apart, 100 the same. The router's accuracy
is by the mean of its probabilities for both sentences; beside it stands the share of the most frequent range. Writes
ranges.png where matplotlib is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from reports import number
from scipy.stats import gaussian_kde
from turns import finish, has_matplotlib, png

from raycase.commands.place import AutoRunner
from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.metrics import estimate, mean_of
from raycase.evaluation.models import Model, find_models, no_condition
from raycase.evaluation.report import interval, table
from raycase.io.rated_pairs import RatedPairs
from raycase.papers.mixsp import task as sts
from raycase.papers.mixsp.model import UPPER, MixSpConfig
from raycase.training.vector_cache import VectorCache

GRID = 512  # points at which a density is computed
Densities = tuple[np.ndarray, np.ndarray, np.ndarray]  # grid, density of the lower range, of the upper one


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


def router_accuracy(model: Model, pairs: RatedPairs, flags: EvaluateFlags) -> dict[str, float]:
    """Accuracy x 100 of a MixSP's router on the two ranges, with its interval; the share of the most frequent range."""
    scorer = model.load()
    lowest_N = scorer.figures(scorer.config.tokenize_pairs(pairs.sentences1, pairs.sentences2))[0][:, 1]
    upper_N = pairs.ratings >= UPPER
    right_N = (lowest_N >= UPPER) == upper_N
    most_frequent = 100 * max(upper_N.mean(), 1 - upper_N.mean())
    found = estimate(mean_of, right_N, right_N, resamples=flags.resamples, seed=flags.seed) or {}
    return found | {"most_frequent": float(most_frequent)}


def draw(densities_of: dict[str, Densities]) -> bytes:
    """Both densities of each system (MixSP, figure 1) as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 2.0 * len(densities_of) + 0.4), layout="constrained")
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


def main(arguments):
    """Measure, print and draw."""
    job = EvaluateFlags(
        task="sts",
        model=tuple(arguments.model),
        data=arguments.data,
        output=arguments.output,
        compute=arguments.compute,
    )
    pairs, vectors_of = sts.read(job), VectorCache(AutoRunner()).vectors_of
    found, drawn = {}, {}
    for model in find_models(job, no_condition, vectors_of):
        curves = densities(model.scores(pairs.sentences1, pairs.sentences2), pairs.ratings)
        router = router_accuracy(model, pairs, job) if isinstance(model.config, MixSpConfig) else None
        found[model.name] = {"overlap": curves and 100 * overlap(*curves), "router": router}
        if curves:
            drawn[model.name] = curves
    rows = [
        [name, number(f["overlap"]), interval(f["router"]), number((f["router"] or {}).get("most_frequent"))]
        for name, f in found.items()
    ]
    print(table(["", "overlap", "router", "most frequent range"], rows))
    if drawn and has_matplotlib():
        folder = Path(arguments.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ranges.png").write_bytes(draw(drawn))
    finish({"ratios": {}, "models": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--data", required=True, help="pairs with sentence1, sentence2, score (0 to 5)")
    parser.add_argument("--output", required=True, help="folder of ranges.png")
    parser.add_argument("--compute", choices=("float32", "bfloat16"))
    main(parser.parse_args())
