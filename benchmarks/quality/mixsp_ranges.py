"""MixSP's two ranges (Ponwitayarat et al., 2024): how far a model's scores of both overlap (figure 1), and how often
the router takes a pair for one of the range of its score (table 5).

    python -m benchmarks.quality.mixsp_ranges --model runs/mixsp-0 minilm --data cdsc_r/validation.csv \\
        --output runs/ranges

The overlap is that of the two distributions, by Gaussian kernel density: 0 apart, 100 the same. The router's accuracy
is by the mean of its probabilities for both sentences; beside it stands the share of the most frequent range. Writes
ranges.png where matplotlib is installed.
"""

from pathlib import Path

import numpy as np
from scipy.stats import gaussian_kde

from benchmarks.quality.reports import job_of, models_of, number, report_parser
from benchmarks.turns import finish, has_matplotlib, png
from raycase.evaluation.metrics import estimate, mean_of
from raycase.evaluation.models import no_condition
from raycase.evaluation.report import interval, table
from raycase.papers.mixsp import task as sts
from raycase.papers.mixsp.model import UPPER, MixSpConfig

GRID = 512  # points at which a density is computed


def densities(scores_N, ratings_N):
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


def overlap(grid, lower, upper):
    """The area under both of two densities, from 0 to 1 (MixSP, figure 1)."""
    return float(np.trapezoid(np.minimum(lower, upper), grid))


def router_accuracy(model, pairs, job):
    """Accuracy x 100 of a MixSP's router on the two ranges, with its interval; the share of the most frequent range."""
    scorer = model.load()
    lowest_N = scorer.figures(scorer.config.tokenize_pairs(pairs.sentences1, pairs.sentences2))[0][:, 1]
    upper_N = pairs.ratings >= UPPER
    right_N = (lowest_N >= UPPER) == upper_N
    most_frequent = 100 * max(upper_N.mean(), 1 - upper_N.mean())
    found = estimate(mean_of, right_N, right_N, resamples=job.resamples, seed=job.seed) or {}
    return found | {"most_frequent": float(most_frequent)}


def draw(densities_of):
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
    job = job_of(arguments, task="sts")
    pairs, found, drawn = sts.TASKS["sts"].read(job.data), {}, {}
    for model in models_of(job, no_condition):
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
    finish(models=found)


if __name__ == "__main__":
    main(report_parser(__doc__, "pairs with sentence1, sentence2, score (0 to 5)").parse_args())
