"""A sweep over the settings of a fit, by search or grid; writes a table of trials, a summary and the best model.

Independent of Ray: the runner of the trials is an argument. What is fitted, the training job says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raycase.data.provenance import provenance
from raycase.data.storage import fingerprint, locate
from raycase.errors import MOST_SEED, WorkError, note, visible
from raycase.systems.model_folder import METRICS
from raycase.training.job import train
from raycase.training.runner import Runner
from raycase.training.sweep_cells import Cell, Space, most_epochs
from raycase.training.sweep_job import Sweep
from raycase.training.sweep_plots import choices_plot, has_matplotlib
from raycase.training.sweep_report import summary, titled
from raycase.training.sweep_trials import (
    Table,
    Trial,
    best_cell,
    cell_scores,
    finalists,
    finished_trials,
    make_trial,
    stopped_by,
)
from raycase.training.trial_runner import Data, OpenTrialRunner, Round, Search, TrialRunner

MOST_SHOWN, EVERY_S = 8, 10.0  # cells in a progress report; seconds between two reports


def tune(job: Sweep, open_trials: OpenTrialRunner) -> dict[str, Any]:
    """Run the sweep, write its tables, train the best cell again and save it. Raises RequestError and WorkError."""
    began = time.time()
    job.check()
    config = job.training.config()
    base = Cell(job=job.training.named(config))
    grid, space, sharing = job.cells(base)
    configs = {cell.data_key: cell.job.config() for cell in sharing}
    for cell in (base, *sharing, *(grid or ())):
        cell.job.check_system(configs.get(cell.data_key, config))
    parts = job.training.read_parts()
    models = {key: system.describe() for key, system in configs.items()}
    identity = job.identity(base, grid, space, models, [part.data_sha256 for part in parts])
    job.check_folder(identity["fingerprint"])
    runner = open_trials(**job.resources, cache=job.training.cache_location)
    data = {cell.data_key: cell.job.shared(configs[cell.data_key], parts, runner) for cell in sharing}
    embedded = time.time()
    job.claim_folder(identity)
    table = job.table(base)
    work = _Work(job=job, base=base, table=table, runner=runner, data=data)
    if grid:
        done = finished_trials(table.read())
        cells = {cell.key: cell for cell in grid}
        gaps = work.run([(c, s) for s in job.trial_seeds for c in grid if (c.key, s) not in done], phase="grid")
    else:
        assert space is not None
        gaps = work.search(space)
        cells = {t.key: t.cell(base) for t in table.read()}
    trials = table.write()
    failed = [t for t in trials if t.score is None]
    if len(failed) == len(trials):
        raise WorkError(f"expected trials that end, got {len(failed)} that failed; the first: {failed[0].stopped}")
    best, metric = best_cell(trials), base.metric_names[0]
    values = {
        "trials": len(trials),
        "failed": len(failed),
        "cells": len(cell_scores(trials)),
        "best": {
            "key": best.first.key,
            base.job.SHARED_BY: best.first.settings.get(base.job.SHARED_BY),
            f"{metric}_mean": best.mean,
            f"{metric}_deviation": best.deviation,
            "seeds": len(best.scores),
        },
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "fit_seconds": round(sum(t.seconds for t in trials), 1),
        "overhead_per_trial": round(statistics.median(gaps), 3) if gaps else None,
    }
    _save_best(job, cells[best.first.key], best.first.seed, parts, runner)
    _report(job, base, table, trials)
    return values | {"output": str(job.training.folder)}


def _save_best(job: Sweep, cell: Cell, seed: int, parts: Sequence[Any], runner: Runner) -> None:
    """Train the best cell with its first seed, as `train` does, into `best`; a stopped training resumes."""
    folder = job.training.folder / "best"
    cache = job.training.cache_location.uri
    training = cell.job.replaced(seed=seed, output=str(folder), cache=cache, overwrite=False)
    metrics = locate(str(folder)) / METRICS
    if metrics.exists():
        name = fingerprint(training.identity(training.config(), parts))
        if metrics.read_json().get("fingerprint") != name:  # the best of fewer trials
            locate(str(folder)).remove()
    train(training, lambda **_: runner)


def _report(job: Sweep, base: Cell, table: Table, trials: Sequence[Trial]) -> None:
    """Write `summary.md` and, if matplotlib is installed, the plot."""
    plotted = has_matplotlib()
    text = summary(trials, provenance(), base=base, grid=job.grid, plotted=plotted)
    (table.root / "summary.md").put(text.encode())
    if plotted and (image := choices_plot(trials, titled(base))):
        (table.root / "choices.png").put(image)


# --------------------------------------------------------------------------------------------------------- the trials


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The trials of a sweep, on its runner."""

    job: Sweep
    base: Cell
    table: Table
    runner: TrialRunner
    data: Data

    def search(self, space: Space) -> list[float]:
        """Search with one seed, then run the best cells with the other seeds. Returns the overheads of `run`."""
        gaps: list[float] = []
        seed = self.job.training.seed
        earlier = [t for t in self.table.read() if t.phase == "search"]
        if len(earlier) < self.job.count:
            search = Search(
                count=self.job.count - len(earlier),
                base=self.base,
                space=space,
                seed=seed,
                # by the earlier trials, else a resumed search would draw the first points again
                sampler_seed=(seed + len(earlier)) % (MOST_SEED + 1),
                points=[(t.chosen, t.score) for t in earlier if t.score is not None],
            )
            gaps += self.run([], phase="search", search=search)
        trials = self.table.read()
        by_key = {t.key: t.cell(self.base) for t in trials}
        best = finalists(trials, self.job.finalists, self.job.trial_seeds)
        return gaps + self.run([(by_key[key], seed) for key, seed in best], phase="finals")

    def run(self, trials: Sequence[tuple[Cell, int]], *, phase: str, search: Search | None = None) -> list[float]:
        """Run a round, write each finished trial to the table and print the best cells from time to time.

        Returns the overhead of trials beyond their fits, in seconds.
        """
        if not trials and search is None:
            return []
        default = phase == "search" if self.job.asha is None else self.job.asha
        total = search.count if search else len(trials)
        progress = _Progress(self.base, self.table, self.data, phase, total=total)
        longest = most_epochs(search.space, self.base) if search else 0
        epochs = max([longest, *(cell.job.recipe.epochs for cell, _ in trials)])
        asha = default and phase != "finals"
        asked = Round(trials=trials, search=search, epochs=epochs, asha=asha)
        gaps = self.runner.run(asked, self.data, progress.record)
        progress.show()
        return gaps


@dataclass
class _Progress:
    """Writes the finished trials of a round to the table, and prints the best cells so far."""

    base: Cell
    table: Table
    data: Data
    phase: str
    total: int
    finished: int = 0
    shown: float = field(default_factory=time.time)

    def record(self, cell: Cell, seed: int, *, history: Sequence[dict[str, float]], error: str | None) -> None:
        """Write a trial to the table: a `Record`."""
        dim = getattr(self.data[cell.data_key][0], "dim", 0)  # texts have none
        if error:
            history, stopped = [], error
        else:
            stopped = stopped_by(history, cell)
        trial = make_trial(cell, seed=seed, phase=self.phase, input_dim=dim, history=history, stopped=stopped)
        self.table.put(trial)
        if trial.score is None:
            note(f"trial {trial.key}, seed {seed}, failed: {visible(stopped)}")
        self.finished += 1
        if time.time() - self.shown > EVERY_S:
            self.show()

    def show(self) -> None:
        """Print the best cells so far."""
        self.shown = time.time()
        note(f"{self.phase}: {self.finished} of {self.total} trials; best so far")
        for score in cell_scores(self.table.read())[:MOST_SHOWN]:
            note(f"  {score.text():<16} {score.first.label}")
