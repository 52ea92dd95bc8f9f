"""The summary of a sweep, `summary.md`: its best cells, and the tables of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.training.checkpoint import TITLES
from raycase.training.sweep_cells import Cell, grid_of
from raycase.training.sweep_trials import CellScore, Trial, cell_scores

TOP = 20  # cells in the general table


def summary(
    trials: Sequence[Trial], made: dict[str, Any], *, base: Cell, grid: str | None, plotted: bool = True
) -> str:
    """The report of a sweep as markdown.

    made: its `provenance`; base: the cell of its flags; plotted: whether plots were written.
    """
    scores = cell_scores(trials)
    failed = [t for t in trials if t.score is None]
    parts = [
        "# Sweep\n",
        _head(trials, scores, made, titled(base)),
        *_grid(scores, base, grid),
        _cells(scores, base),
    ]
    if not plotted:
        parts.append("The plots were left out: matplotlib is not installed (pip install 'raycase[report]').\n")
    if failed:
        lines = "\n".join(f"- {t.key}, seed {t.seed}: {t.stopped} ({t.label})" for t in failed)
        parts.append(f"## Failed\n\n{lines}\n")
    return "\n".join(parts)


def titled(base: Cell) -> str:
    """The name of the metric by which cells are compared."""
    return TITLES[base.metric_names[0]]


def _head(trials: Sequence[Trial], scores: Sequence[CellScore], made: dict[str, Any], title: str) -> str:
    stopped = sum(t.stopped == "asha" for t in trials)
    return (
        f"{len(trials)} trials of {len(scores)} cells, {stopped} stopped early by ASHA. Figures: {title} x 100 over "
        "all validation data, of the best epoch; mean ± sample standard deviation over the seeds. These data also "
        "chose the epoch (and, in a search, the cell), so the best scores are optimistic.\n\n"
        f"    {made['command']}\n\n"
        f"Commit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}.\n"
    )


def _grid(scores: Sequence[CellScore], base: Cell, grid: str | None) -> list[str]:
    """A grid that has a name, in its order."""
    if grid is None or grid.endswith(".json"):
        return []
    place = {cell.name: i for i, cell in enumerate(grid_of(grid, base))}
    lines = [f"## {grid}\n", f"| | {titled(base)} | seeds |", "|---|---|---|"]
    for s in sorted(scores, key=lambda s: place.get(s.first.name, len(place))):
        lines.append(f"| {s.first.name} | {s.text()} | {len(s.trials)} |")
    return ["\n".join(lines) + "\n"]


def _cells(scores: Sequence[CellScore], base: Cell) -> str:
    lines = [
        f"## The best cells ({min(TOP, len(scores))} of {len(scores)})\n",
        f"| {titled(base)} | seeds | best epochs | cell |",
        "|---|---|---|---|",
    ]
    for s in scores[:TOP]:
        epochs = ", ".join(str(t.best_epoch) for t in s.trials)
        lines.append(f"| {s.text()} | {len(s.trials)} | {epochs} | {s.first.label} |")
    return "\n".join(lines) + "\n"
