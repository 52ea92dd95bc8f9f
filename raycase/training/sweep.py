"""The results of a sweep. A cell is a choice of flags, a trial a cell with a seed; each trial that ended is a file in
`trials/`, put atomically."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raycase.io.provenance import provenance
from raycase.io.storage import Location, fingerprint

SWEEP, BEST, TRIALS = "sweep.json", "best", "trials"
RESULTS = (TRIALS, "results.parquet", "results.md", "tune", BEST)

Choices = Mapping[str, Any]  # flag -> value, as a grid or a search gave it
Trial = dict[str, Any]  # choices, seed, phase, error; score (None where it failed) and other figures of the best epoch


@dataclass(frozen=True)
class SweepResults:
    """The output folder of a sweep."""

    root: Location

    def read_trials(self) -> list[Trial]:
        """Every trial that ended."""
        folder = self.root / TRIALS
        return [(folder / name).read_json() for name in sorted(folder.list())]

    def put_trial(self, trial: Trial) -> None:
        """Write a trial that ended."""
        name = fingerprint(trial["choices"])[:10]
        (self.root / TRIALS / f"{name}-{trial['seed']}.json").put_json(trial)

    def write_tables(self, trials: Sequence[Trial]) -> None:
        """Write `results.parquet`, a row for each trial, and `results.md`, one for each cell."""
        rows = [t | {f"config/{name}": v for name, v in t["choices"].items()} for _, of in by_cell(trials) for t in of]
        table = pd.DataFrame(rows).drop(columns="choices")
        (self.root / "results.parquet").put(table.to_parquet(index=False))
        made, metric = provenance(), next((t["metric"] for t in trials if "metric" in t), "score")
        lines = [
            "# Sweep\n",
            f"{len(trials)} trials. Figures: {metric} x 100 on the validation data, of the best epoch; mean ± sample "
            "standard deviation over the seeds. These data also chose epoch and cell, so the best are optimistic.\n",
            f"    {made['command']}\n\nCommit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}.\n",
            f"| {metric} | seeds | failed | cell |\n|---|---|---|---|",
        ]
        for scores, of in by_cell(trials):
            mean = f"{statistics.fmean(scores):.2f}" if scores else ""
            spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
            lines.append(f"| {mean}{spread} | {len(scores)} | {len(of) - len(scores)} | {text_of(of[0]['choices'])} |")
        (self.root / "results.md").put(("\n".join(lines) + "\n").encode())


def text_of(choices: Choices) -> str:
    """Choices in a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in choices.items()) or "as the flags"


def by_cell(trials: Sequence[Trial]) -> list[tuple[list[float], list[Trial]]]:
    """The scores and the trials of each cell, the best first: by their mean, among the cells of the most seeds."""
    cells: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t["seed"]):
        cells.setdefault(text_of(trial["choices"]), []).append(trial)
    scored = [([t["score"] for t in of if t["score"] is not None], of) for of in cells.values()]
    return sorted(scored, key=lambda cell: (len(cell[0]), statistics.fmean(cell[0] or [0])), reverse=True)
