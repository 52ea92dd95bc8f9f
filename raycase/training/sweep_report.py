"""The summary of a sweep, `summary.md`: tables in the paper's layout, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.evaluation.published import TABLE7
from raycase.systems.projector import Activation
from raycase.training.sweep_trials import CellScore, Trial, cell_scores, varied_choices

NAMES = {
    Activation.RELU: "ReLU",
    Activation.GELU: "GELU",
    Activation.SILU: "SiLU",
    Activation.LEAKY_RELU: "LeakyReLU",
}
TOP = 20  # cells in the general table


def summary(trials: Sequence[Trial], made: dict[str, Any], *, grid: str | None, plotted: bool = True) -> str:
    """The report of a sweep as markdown; `made`: its `provenance`; `plotted`: whether plots were written."""
    scores = cell_scores(trials)
    failed = [t for t in trials if t.spearman is None]
    parts = ["# Sweep\n", _head(trials, scores, made)]
    if grid == "table7":
        parts.append(_table7(scores))
    elif varied_choices(trials) == ["dim"]:
        parts.append(_dimensions(scores))
    parts.append(_cells(scores))
    if not plotted:
        parts.append("The plots were left out: matplotlib is not installed (pip install 'raycase[report]').\n")
    if failed:
        lines = "\n".join(f"- {t.key}, seed {t.seed}: {t.stopped} ({t.describe()})" for t in failed)
        parts.append(f"## Failed\n\n{lines}\n")
    return "\n".join(parts)


def _head(trials: Sequence[Trial], scores: Sequence[CellScore], made: dict[str, Any]) -> str:
    stopped = sum(t.stopped == "asha" for t in trials)
    return (
        f"{len(trials)} trials of {len(scores)} cells, {stopped} stopped early by ASHA. Figures: Spearman x 100 over "
        "all validation pairs, of the best epoch; mean ± sample standard deviation over the seeds. These pairs also "
        "chose the epoch (and, in a search, the cell), so the best figures are optimistic.\n\n"
        f"    {made['command']}\n\n"
        f"Commit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}. "
        "`*`: g's dimension is above its input's.\n"
    )


def _table7(scores: Sequence[CellScore]) -> str:
    by_shape = {
        (s.first.layers, s.first.activation if s.first.layers else None, s.first.dropout > 0): s for s in scores
    }
    shape = scores[0].first
    lines = [
        "## Table 7: linear and non-linear projectors\n",
        "The paper's: NV-Embed-v2, test set, single figures. Dropout: 20 % linear, 15 % else.\n",
        "| | with dropout | without | paper, with | paper, without |",
        "|---|---|---|---|---|",
    ]
    titles = {0: "Linear ({d} → {k})", 2: "Two layers ({d} → 1024 → {k})", 1: "One layer ({d} → {k})"}
    for (layers, activation), paper in TABLE7.items():
        title = titles[layers].format(d=shape.input_dim, k=shape.dim) + (
            f", {NAMES[Activation(activation)]}" if activation else ""
        )
        row = [by_shape.get((layers, activation, dropout)) for dropout in (True, False)]
        cells = [s.text() if s else "" for s in row]
        lines.append(f"| {title} | {' | '.join(cells)} | {paper[0]:.2f} | {paper[1]:.2f} |")
    return "\n".join(lines) + "\n"


def _dimensions(scores: Sequence[CellScore]) -> str:
    lines = [
        "## Figure 4: Spearman against the dimension of g\n",
        "The paper's (a plot; NV-Embed-v2, test set) is above 72.12, fine-tuned SimCSE-base, from 200 dimensions on. "
        "`dimensions.png` is this table as a plot.\n",
        "| dimension | Spearman | without label -1 |",
        "|---|---|---|",
    ]
    for s in sorted(scores, key=lambda s: s.first.dim):
        rated = [t.spearman_rated for t in s.trials if t.spearman_rated is not None]
        lines.append(f"| {s.first.dim} | {s.text()} | {sum(rated) / max(1, len(rated)):.2f} |")
    return "\n".join(lines) + "\n"


def _cells(scores: Sequence[CellScore]) -> str:
    lines = [
        f"## The best cells ({min(TOP, len(scores))} of {len(scores)})\n",
        "| Spearman | seeds | best epochs | cell |",
        "|---|---|---|---|",
    ]
    for s in scores[:TOP]:
        epochs = ", ".join(str(t.best_epoch) for t in s.trials)
        lines.append(f"| {s.text()} | {len(s.trials)} | {epochs} | {s.first.describe()} |")
    return "\n".join(lines) + "\n"
