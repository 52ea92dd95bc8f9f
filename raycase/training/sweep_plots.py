"""The plots of a sweep: the score against the dimension of the vectors, and against each setting that varies."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raycase.evaluation.plots import png
from raycase.training.sweep_trials import Trial, cell_scores, varied_choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE = "#0072B2", "#E69F00"
COLUMNS, PANEL = 3, (3.2, 2.4)  # inches
LONGEST = 14  # characters of a label


def sweep_plots(trials: Sequence[Trial], title: str = "Spearman") -> dict[str, bytes]:
    """PNGs by file name: `dimensions.png` if only the dimension varies, else `choices.png`; `title`: of the score."""
    scored = [t for t in trials if t.score is not None]
    varied = varied_choices(scored)
    if varied == ["dim"]:
        return {"dimensions.png": _dimensions(scored)}
    return {"choices.png": _choices(scored, varied, title)} if varied else {}


def score(trial: Trial) -> float:
    """The score of a trial that did not fail."""
    assert trial.score is not None
    return trial.score


def _dimensions(trials: Sequence[Trial]) -> bytes:
    """Figure 4: mean and standard deviation over the seeds, and each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    scores = sorted(cell_scores(trials), key=lambda s: s.first.settings["dim"])
    dims, means = [s.first.settings["dim"] for s in scores], [s.mean for s in scores]
    spreads = [s.deviation or 0.0 for s in scores]
    low, high = ([m + sign * d for m, d in zip(means, spreads, strict=True)] for sign in (-1, 1))
    axes.fill_between(dims, low, high, color=BLUE, alpha=0.2, label="± standard deviation over the seeds")
    axes.plot(dims, means, "o-", color=BLUE, label="mean over the seeds")
    axes.plot(
        [t.settings["dim"] for t in trials],
        [score(t) for t in trials],
        ".",
        color="0.5",
        markersize=4,
        label="single runs",
    )
    axes.axvline(scores[0].first.settings["input_dim"], color=ORANGE, linestyle="--", label="dimension of the input")
    axes.set_xlabel("dimension of the vectors")
    axes.set_ylabel("Spearman x 100, validation")
    _tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)


def _choices(trials: Sequence[Trial], varied: Sequence[str], title: str) -> bytes:
    """Every trial against each setting that varies; the line joins medians by value, or by quarter of many values."""
    from matplotlib.figure import Figure

    rows = -(-len(varied) // COLUMNS)
    figure = Figure(figsize=(PANEL[0] * min(COLUMNS, len(varied)), PANEL[1] * rows), layout="constrained")
    panels = figure.subplots(rows, min(COLUMNS, len(varied)), squeeze=False, sharey=True).ravel()
    for axes in panels[len(varied) :]:
        axes.set_visible(False)
    best = sorted(score(t) for t in trials)
    floor = best[len(best) // 10]  # leaves out the worst tenth, which would flatten the rest
    for index, (axes, name) in enumerate(zip(panels, varied, strict=False)):
        _panel(axes, trials, name)
        axes.set_ylim(bottom=floor - 1)
        axes.set_title(name.replace("_", " "), fontsize=10, loc="left")
        if index % COLUMNS == 0:
            axes.set_ylabel(f"{title} x 100")
        _tidy(axes)
    return png(figure)


def _panel(axes: Axes, trials: Sequence[Trial], name: str) -> None:
    values = [t.settings[name] for t in trials]
    distinct = sorted(set(values), key=lambda v: (str(type(v)), v))
    if isinstance(values[0], str) or len(distinct) <= 11:
        x_values = [distinct.index(v) for v in values]
        axes.set_xticks(range(len(distinct)), [_label(v) for v in distinct], fontsize=7, rotation=30, ha="right")
        groups = {float(i): [score(t) for t, p in zip(trials, x_values, strict=True) if p == i] for i in set(x_values)}
    else:
        x_values = values
        if name == "learning_rate":
            axes.set_xscale("log")
        ordered = sorted(trials, key=lambda t: t.settings[name])
        quarters = [ordered[len(ordered) * q // 4 : len(ordered) * (q + 1) // 4] for q in range(4)]
        groups = {statistics.median(t.settings[name] for t in q): [score(t) for t in q] for q in quarters if q}
    axes.plot(x_values, [score(t) for t in trials], ".", color=BLUE, alpha=0.5, markersize=5)
    middle = sorted((x, statistics.median(scores)) for x, scores in groups.items())
    axes.plot([x for x, _ in middle], [y for _, y in middle], "-", color=ORANGE, linewidth=1.8)


def _label(value: object) -> str:
    text = f"{value:g}" if isinstance(value, (int, float)) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _tidy(axes: Axes) -> None:
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
