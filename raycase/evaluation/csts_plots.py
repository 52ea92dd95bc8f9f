"""The plots of the report on rated pairs (C-STS), drawn from its metrics alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from raycase.evaluation.csts_report import has_vectors
from raycase.evaluation.plots import STYLES, WIDTH, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.9  # inches, the height of a model's panel


def draw(models: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """The plots as PNG by file name, with a panel for each model of `metrics.json`."""
    pictures = {"cosine_by_rating.png": png(_figure(models, by_rating_panel))}
    with_vectors = [model for model in models if has_vectors(model)]
    if with_vectors:
        pictures["cosines_to_mean.png"] = png(_figure(with_vectors, to_mean_panel))
    trained = [model for model in models if model["training"]]
    if trained:
        pictures["training.png"] = png(training_curves(trained))
    return pictures


def _figure(models: Sequence[dict[str, Any]], panel: Callable[[Axes, dict[str, Any]], None]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PANEL * len(models) + 0.4), layout="constrained")
    column = figure.subplots(len(models), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, model in zip(column, models, strict=True):
        panel(axes, model)
        axes.set_title(model["name"][-45:], fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in column[:-1]:
        axes.set_xlabel("")
    return figure


def to_mean_panel(axes: Axes, model: dict[str, Any]) -> None:
    """Distribution of cos(x, mean) of each kind of vector (figures 5 and 6)."""
    for style, (name, variant) in zip(STYLES, model["variants"].items(), strict=False):
        to_mean = variant["to_mean"]
        low, width, counts = (to_mean["histogram"][key] for key in ("low", "bin", "counts"))
        edges = [low + i * width for i in range(len(counts) + 1)]
        shares = [100 * count / sum(counts) for count in counts]
        axes.stairs(
            shares, edges, linewidth=1.8, label=f"{name}:  {to_mean['mean']:.2f} ± {to_mean['std']:.2f}", **style
        )
    axes.set_xlabel("cosine of a vector to the mean of all")
    axes.set_ylabel(f"share of the vectors (%)\nper {width:g} of cosine")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, title="mean ± standard deviation", title_fontsize=9)


def by_rating_panel(axes: Axes, model: dict[str, Any]) -> None:
    """Cosines of the pairs of each rating, before and after g: boxes of the quartiles, whiskers from 5 % to 95 %."""
    names = list(dict.fromkeys([model["own"], model["system"]]))
    ratings = [row["rating"] for row in model["variants"][names[0]]["by_rating"]]
    width = min(0.4, 0.7 / len(names))
    for k, name in enumerate(names):
        rows = model["variants"][name]["by_rating"]
        boxes = [
            {"whislo": row["low"], "q1": row["q1"], "med": row["median"], "q3": row["q3"], "whishi": row["high"]}
            for row in rows
        ]
        color = STYLES[1 + k]["color"]
        axes.bxp(
            boxes,
            positions=[i + (k - (len(names) - 1) / 2) * width for i in range(len(rows))],
            widths=0.85 * width,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": color, "alpha": 0.35 + 0.25 * k, "edgecolor": color},
            medianprops={"color": "black", "linewidth": 1.6},
            whiskerprops={"color": color},
            capprops={"color": color},
        )
        axes.plot([], [], "s", color=color, alpha=0.35 + 0.25 * k, label=name)
    pairs = [row["pairs"] for row in model["variants"][names[0]]["by_rating"]]
    words = ["does not\napply" if rating == -1 else f"{rating:g}" for rating in ratings]
    axes.set_xticks(range(len(ratings)), [f"{word}\n(n = {n})" for word, n in zip(words, pairs, strict=True)])
    axes.set_xlabel("people's rating (box: quartiles; whiskers: 5 % to 95 % of the pairs)")
    axes.set_ylabel("cosine of the pair")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, ncols=len(names), loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)


def training_curves(models: Sequence[dict[str, Any]]) -> Figure:
    """Spearman and loss after each epoch, a line for each model; a dot at its best epoch (figure 3 of CASE)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2 * PANEL), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for i, (style, model) in enumerate(zip(cycle(STYLES), models, strict=False)):
        curve = model["training"]
        epochs, losses, spearman = ([line[name] for line in curve["history"]] for name in ("epoch", "loss", "spearman"))
        best, start = curve["best_epoch"], [] if curve["before"] is None else [curve["before"]]
        style = style | {"linewidth": 1.8 if i < len(STYLES) else 0.9}
        upper.plot([0] * len(start) + epochs, start + spearman, label=model["name"][-45:], **style)
        upper.plot([best], [spearman[best - 1]], "o", color=style["color"], markersize=5)
        lower.plot(epochs, losses, **style)
    upper.set_ylabel("Spearman x 100, validation")
    lower.set_ylabel("loss, training")
    lower.set_xlabel("epoch")
    for axes in (upper, lower):
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    return figure
