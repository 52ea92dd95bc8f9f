"""A sweep over the settings of a fit, by search or grid; writes a table of trials, a summary and the best model.

Independent of Ray: the runner of the trials is an argument. What is fitted, the job says (`SweepJob`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raycase.data.provenance import provenance
from raycase.errors import MOST_SEED, WorkError, note, visible
from raycase.evaluation.plots import has_matplotlib
from raycase.training.runner import Data, OpenTrialRunner, Round, Search, TrialRunner
from raycase.training.sweep_cells import Cell, Space, random_cells
from raycase.training.sweep_job import SweepJob, check_folder, claim_folder, grid_cells, identity_of
from raycase.training.sweep_plots import sweep_plots
from raycase.training.sweep_report import summary, titled
from raycase.training.sweep_trials import (
    Trial,
    best_cell,
    cell_scores,
    finalists,
    finished,
    make_trial,
    stopped_by,
)

MOST_CELLS, EVERY_S = 8, 10.0  # cells in a progress report; seconds between two reports


def tune(job: SweepJob, open_trials: OpenTrialRunner) -> dict[str, Any]:
    """Run the sweep, write its tables, fit the best cell again and save it. Raises RequestError and WorkError."""
    began = time.time()
    job.check_sweep()
    config = job.config()
    base = job.base(config)
    grid = grid_cells(job, base)
    space = job.search_space(config)
    systems = {read: job.system(config, read) for read in ([c.read for c in grid] if grid else space[base.source])}
    for cell in grid or ():
        cell.check(systems[cell.read])
    parts = dict(zip(("train", "validation"), job.read_parts(), strict=True))
    models = {read: system.describe() for read, system in systems.items()}
    identity = identity_of(job, grid, models, [part.data_sha256 for part in parts.values()])
    check_folder(job, identity["fingerprint"])
    runner = open_trials(cpus_per_trial=job.cpus_per_trial, gpus_per_trial=job.gpus_per_trial, cache=job.cache_location)
    data: dict[str, Any] = {
        read: tuple(job.embed(part, system, runner) for part in parts.values()) for read, system in systems.items()
    }
    embedded = time.time()
    claim_folder(job, identity)
    if grid:
        done = finished(job.table.read())
        missing = [(c, s) for s in job.trial_seeds for c in grid if (c.key, s) not in done]
        gaps = _run(job, runner, data, missing, phase="grid")
    else:
        gaps = _search(job, runner, data, base, space)
    trials = job.table.write()
    failed = [t for t in trials if t.score is None]
    if len(failed) == len(trials):
        raise WorkError(f"expected trials that end, got {len(failed)} that failed; the first: {failed[0].stopped}")
    best, figure = best_cell(trials), job.cells.figures[0]
    values = {
        "trials": len(trials),
        "failed": len(failed),
        "cells": len(cell_scores(trials)),
        "best": {
            "key": best.first.key,
            base.source: best.first.settings[base.source],
            f"{figure}_mean": best.mean,
            f"{figure}_deviation": best.deviation,
            "seeds": len(best.scores),
        },
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "fit_seconds": round(sum(t.seconds for t in trials), 1),
        "overhead_per_trial": round(statistics.median(gaps), 3) if gaps else None,
    }
    cell = best.first.cell(base)
    job.save_best(best, cell, systems[cell.read], data[cell.read], parts, runner)
    _report(job, trials)
    return values | {"output": str(job.folder)}


def _report(job: SweepJob, trials: Sequence[Trial]) -> None:
    """Write `summary.md` and, if matplotlib is installed, the plots."""
    root = job.table.root
    plotted = has_matplotlib()
    cells = job.cells
    (root / "summary.md").put(summary(trials, provenance(), cells=cells, grid=job.grid, plotted=plotted).encode())
    for name, image in (sweep_plots(trials, titled(cells)) if plotted else {}).items():
        (root / name).put(image)


# --------------------------------------------------------------------------------------------------------- the trials


def _search(job: SweepJob, runner: TrialRunner, data: Data, base: Cell, space: Space) -> list[float]:
    """Search with one seed, then run the best cells with the other seeds. Returns the overheads of `_run`."""
    gaps: list[float] = []
    earlier = [t for t in job.table.read() if t.phase == "search"]
    if job.search == "random":
        done = finished(earlier)
        cells = random_cells(base, space, job.samples, job.seed)
        missing = [(c, job.seed) for c in cells if (c.key, job.seed) not in done]
        gaps += _run(job, runner, data, missing, phase="search")
    elif len(earlier) < job.samples:
        search = Search(
            count=job.samples - len(earlier),
            base=base,
            space=space,
            seed=job.seed,
            # by the earlier trials, else a resumed search would draw the first points again
            sampler_seed=(job.seed + len(earlier)) % (MOST_SEED + 1),
            points=[({n: t.settings[n] for n in space}, t.score) for t in earlier if t.score is not None],
        )
        gaps += _run(job, runner, data, [], phase="search", search=search)
    trials = job.table.read()
    by_key = {t.key: t.cell(base) for t in trials}
    missing = [(by_key[key], seed) for key, seed in finalists(trials, job.finalists, job.trial_seeds)]
    return gaps + _run(job, runner, data, missing, phase="finals")


def _run(
    job: SweepJob,
    runner: TrialRunner,
    data: Data,
    trials: Sequence[tuple[Cell, int]],
    *,
    phase: str,
    search: Search | None = None,
) -> list[float]:
    """Run a round, write each finished trial to the table and print the best cells from time to time.

    Returns the overhead of trials beyond their fits, in seconds.
    """
    if not trials and search is None:
        return []
    default = phase == "search" if job.asha is None else job.asha
    progress = _Progress(job, data, phase, total=search.count if search else len(trials))
    epochs = max([cell.recipe.epochs for cell, _ in trials], default=job.recipe.epochs)
    asha = default and phase != "finals"
    gaps = runner.run(Round(trials=trials, search=search, epochs=epochs, asha=asha), data, progress.record)
    progress.show()
    return gaps


@dataclass
class _Progress:
    """Writes the finished trials of a round to the table, and prints the best cells so far."""

    job: SweepJob
    data: Data
    phase: str
    total: int
    finished: int = 0
    shown: float = field(default_factory=time.time)

    def record(self, cell: Cell, seed: int, *, history: Sequence[dict[str, float]], error: str | None) -> None:
        """Write a trial to the table: a `Record`."""
        dim = getattr(self.data[cell.read][0], "dim", 0)  # texts have none
        if error:
            history, stopped = [], error
        else:
            stopped = stopped_by(history, cell)
        trial = make_trial(cell, seed=seed, phase=self.phase, input_dim=dim, history=history, stopped=stopped)
        self.job.table.put(trial)
        if trial.score is None:
            note(f"trial {trial.key}, seed {seed}, failed: {visible(stopped)}")
        self.finished += 1
        if time.time() - self.shown > EVERY_S:
            self.show()

    def show(self) -> None:
        """Print the best cells so far."""
        self.shown = time.time()
        note(f"{self.phase}: {self.finished} of {self.total} trials; best so far")
        for score in cell_scores(self.job.table.read())[:MOST_CELLS]:
            note(f"  {score.text():<16} {self.job.cells.describe(score.first.settings)}")
