"""The plot of a sweep: the score against each setting that varies. matplotlib is an optional extra."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raycase.training.sweep_trials import Trial, varied_choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#E69F00"
COLUMNS, PANEL = 3, (3.2, 2.4)  # inches
LONGEST = 14  # characters of a label


def has_matplotlib() -> bool:
    """Whether plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def choices_plot(trials: Sequence[Trial], title: str) -> bytes | None:
    """Every trial against each setting that varies, as PNG; the line joins medians by value, or by quarter of many
    values. None where nothing varies. title: of the score.
    """
    scored = [t for t in trials if t.score is not None]
    varied = varied_choices(scored)
    return _choices(scored, varied, title) if varied else None


def _score(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score


def _choices(trials: Sequence[Trial], varied: Sequence[str], title: str) -> bytes:
    from matplotlib.figure import Figure

    rows = -(-len(varied) // COLUMNS)
    figure = Figure(figsize=(PANEL[0] * min(COLUMNS, len(varied)), PANEL[1] * rows), layout="constrained")
    panels = figure.subplots(rows, min(COLUMNS, len(varied)), squeeze=False, sharey=True).ravel()
    for axes in panels[len(varied) :]:
        axes.set_visible(False)
    best = sorted(_score(t) for t in trials)
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
        groups = {float(i): [_score(t) for t, p in zip(trials, x_values, strict=True) if p == i] for i in set(x_values)}
    else:
        x_values = values
        if name == "learning_rate":
            axes.set_xscale("log")
        ordered = sorted(trials, key=lambda t: t.settings[name])
        quarters = [ordered[len(ordered) * q // 4 : len(ordered) * (q + 1) // 4] for q in range(4)]
        groups = {statistics.median(t.settings[name] for t in q): [_score(t) for t in q] for q in quarters if q}
    axes.plot(x_values, [_score(t) for t in trials], ".", color=BLUE, alpha=0.5, markersize=5)
    middle = sorted((x, statistics.median(scores)) for x, scores in groups.items())
    axes.plot([x for x, _ in middle], [y for _, y in middle], "-", color=ORANGE, linewidth=1.8)


def _label(value: object) -> str:
    text = f"{value:g}" if isinstance(value, (int, float)) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _tidy(axes: Axes) -> None:
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
