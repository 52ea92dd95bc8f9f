"""The summary of a sweep, `summary.md`: its best cells, and the tables of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.training.checkpoint import TITLES
from raycase.training.sweep_cells import Cell
from raycase.training.sweep_trials import CellScore, Trial, cell_scores

TOP = 20  # cells in the general table


def summary(
    trials: Sequence[Trial], made: dict[str, Any], *, cells: Cell, grid: str | None, plotted: bool = True
) -> str:
    """The report of a sweep as markdown.

    made: its `provenance`; cells: the cell of its flags; plotted: whether plots were written.
    """
    scores = cell_scores(trials)
    failed = [t for t in trials if t.score is None]
    parts = [
        "# Sweep\n",
        _head(trials, scores, made, titled(cells)),
        *cells.tables(scores, grid),
        _cells(scores, cells),
    ]
    if not plotted:
        parts.append("The plots were left out: matplotlib is not installed (pip install 'raycase[report]').\n")
    if failed:
        lines = "\n".join(f"- {t.key}, seed {t.seed}: {t.stopped} ({cells.describe(t.settings)})" for t in failed)
        parts.append(f"## Failed\n\n{lines}\n")
    return "\n".join(parts)


def titled(cells: Cell) -> str:
    """The name of the figure by which cells are compared."""
    return TITLES[cells.figures[0]]


def _head(trials: Sequence[Trial], scores: Sequence[CellScore], made: dict[str, Any], title: str) -> str:
    stopped = sum(t.stopped == "asha" for t in trials)
    marked = " `*`: g's dimension is above its input's." if "above_encoder" in trials[0].settings else ""
    return (
        f"{len(trials)} trials of {len(scores)} cells, {stopped} stopped early by ASHA. Figures: {title} x 100 over "
        "all validation data, of the best epoch; mean ± sample standard deviation over the seeds. These data also "
        "chose the epoch (and, in a search, the cell), so the best figures are optimistic.\n\n"
        f"    {made['command']}\n\n"
        f"Commit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}.{marked}\n"
    )


def _cells(scores: Sequence[CellScore], cells: Cell) -> str:
    lines = [
        f"## The best cells ({min(TOP, len(scores))} of {len(scores)})\n",
        f"| {titled(cells)} | seeds | best epochs | cell |",
        "|---|---|---|---|",
    ]
    for s in scores[:TOP]:
        epochs = ", ".join(str(t.best_epoch) for t in s.trials)
        lines.append(f"| {s.text()} | {len(s.trials)} | {epochs} | {cells.describe(s.first.settings)} |")
    return "\n".join(lines) + "\n"
