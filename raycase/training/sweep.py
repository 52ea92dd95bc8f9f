"""A sweep over the projector's settings, by search or grid; writes a table of trials, a summary and the best model.

Independent of Ray: the runner of the trials is an argument.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raycase.data.provenance import provenance
from raycase.data.rated import RatedPairs
from raycase.data.storage import fingerprint
from raycase.errors import WorkError
from raycase.evaluation.plots import has_matplotlib
from raycase.systems.case import CaseConfig, write_model_folder
from raycase.systems.contracts import VectorsOf
from raycase.systems.pair_vectors import PairVectors, pair_vectors
from raycase.systems.projector import settings_of
from raycase.training.projector_fit import best_projector, fit_projector
from raycase.training.projector_job import model_metrics
from raycase.training.runner import OpenTrialRunner, Round, Search, TrialRunner, Vectors
from raycase.training.sweep_cells import SPACE, Cell, random_cells
from raycase.training.sweep_job import (
    TuneJob,
    check_folder,
    check_job,
    claim_folder,
    grid_cells,
    identity_of,
    search_prompts,
)
from raycase.training.sweep_plots import sweep_plots
from raycase.training.sweep_report import summary
from raycase.training.sweep_trials import (
    CellScore,
    Trial,
    best_cell,
    cell_scores,
    finalists,
    finished,
    make_trial,
    stopped_by,
)

SHOWN, EVERY_S = 8, 10.0  # cells in a progress report; seconds between two reports


def tune(job: TuneJob, open_trials: OpenTrialRunner) -> dict[str, Any]:
    """Run the sweep, write its tables, fit the best cell again and save it. Raises RequestError and WorkError."""
    began = time.time()
    check_job(job)
    config = (replace(job, prompt=job.prompts[0]) if job.prompts else job).config()
    grid = grid_cells(job, config)
    prompts = list(dict.fromkeys(c.prompt for c in grid)) if grid else search_prompts(job, config)
    systems = {p: replace(config, encoder=replace(config.encoder, prompt=p)) for p in prompts}
    for cell in grid or ():
        cell.recipe.projector(systems[cell.prompt].views_dim)  # refuses nested dimensions above its own
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    identity = identity_of(job, grid, systems, pairs)
    check_folder(job, identity["fingerprint"])
    runner = open_trials(cpus_per_trial=job.cpus_per_trial, gpus_per_trial=job.gpus_per_trial, cache=job.cache_location)
    vectors = _embed(job, systems, pairs, runner.vectors_of)
    embedded = time.time()
    claim_folder(job, identity)
    if grid:
        done = finished(job.table.read())
        missing = [(c, s) for s in job.trial_seeds for c in grid if (c.key, s) not in done]
        gaps = _run(job, runner, vectors, missing, phase="grid")
    else:
        gaps = _search(job, runner, vectors, prompts)
    trials = job.table.write()
    failed = [t for t in trials if t.spearman is None]
    if len(failed) == len(trials):
        raise WorkError(f"expected trials that end, got {len(failed)} that failed; the first: {failed[0].stopped}")
    best = best_cell(trials)
    values = {
        "trials": len(trials),
        "failed": len(failed),
        "cells": len(cell_scores(trials)),
        "best": {
            "key": best.first.key,
            "prompt": best.first.prompt,
            "spearman_mean": best.mean,
            "spearman_deviation": best.deviation,
            "seeds": len(best.scores),
        },
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "fit_seconds": round(sum(t.seconds for t in trials), 1),
        "overhead_per_trial": round(statistics.median(gaps), 3) if gaps else None,
    }
    _save_best(job, best, vectors[best.first.prompt], systems[best.first.prompt], pairs)
    _report(job, trials)
    return values | {"output": str(job.folder)}


def _report(job: TuneJob, trials: Sequence[Trial]) -> None:
    """Write `summary.md` and, if matplotlib is installed, the plots."""
    root = job.table.root
    plotted = has_matplotlib()
    (root / "summary.md").put(summary(trials, provenance(), grid=job.grid, plotted=plotted).encode())
    for name, image in (sweep_plots(trials) if plotted else {}).items():
        (root / name).put(image)


def _embed(
    job: TuneJob, systems: Mapping[str, CaseConfig], pairs: Mapping[str, RatedPairs], vectors_of: VectorsOf
) -> Vectors:
    """Embed training and validation pairs under every prompt."""
    vectors = {}
    for prompt, system in systems.items():
        train, validation = (
            pair_vectors(rated, system, vectors_of, cache=job.cache_location, compute=job.compute)
            for rated in pairs.values()
        )
        vectors[prompt] = train, validation
    return vectors


# --------------------------------------------------------------------------------------------------------- the trials


def _search(job: TuneJob, runner: TrialRunner, vectors: Vectors, prompts: Sequence[str]) -> list[float]:
    """Search with one seed, then run the best cells with the other seeds. Returns the overheads of `_run`."""
    gaps: list[float] = []
    earlier = [t for t in job.table.read() if t.phase == "search"]
    if job.search == "random":
        done = finished(earlier)
        cells = random_cells(job.recipe, prompts, job.samples, job.seed)
        missing = [(c, job.seed) for c in cells if (c.key, job.seed) not in done]
        gaps += _run(job, runner, vectors, missing, phase="search")
    elif len(earlier) < job.samples:
        search = Search(
            count=job.samples - len(earlier),
            base=job.recipe,
            prompts=prompts,
            seed=job.seed,
            sampler_seed=job.seed + len(earlier),  # else a resumed search would draw the first points again
            points=[
                ({n: getattr(t, n) for n in (*SPACE, "prompt")}, t.spearman) for t in earlier if t.spearman is not None
            ],
        )
        gaps += _run(job, runner, vectors, [], phase="search", search=search)
    trials = job.table.read()
    by_key = {t.key: t.cell(job.recipe) for t in trials}
    missing = [(by_key[key], seed) for key, seed in finalists(trials, job.finalists, job.trial_seeds)]
    return gaps + _run(job, runner, vectors, missing, phase="finals")


def _run(
    job: TuneJob,
    runner: TrialRunner,
    vectors: Vectors,
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
    progress = _Progress(job, vectors, phase, total=search.count if search else len(trials))
    epochs = max([cell.recipe.epochs for cell, _ in trials], default=job.epochs)
    asha = default and phase != "finals"
    gaps = runner.run(Round(trials=trials, search=search, epochs=epochs, asha=asha), vectors, progress.record)
    progress.show()
    return gaps


@dataclass
class _Progress:
    """Writes the finished trials of a round to the table, and prints the best cells so far."""

    job: TuneJob
    vectors: Vectors
    phase: str
    total: int
    finished: int = 0
    shown: float = field(default_factory=time.time)

    def record(self, cell: Cell, seed: int, *, history: Sequence[dict[str, float]], error: str | None) -> None:
        """Write a trial to the table: a `Record`."""
        dim = self.vectors[cell.prompt][0].dim
        if error:
            history, stopped = [], error
        else:
            stopped = stopped_by(history, cell.recipe)
        trial = make_trial(cell, seed=seed, phase=self.phase, input_dim=dim, history=history, stopped=stopped)
        self.job.table.put(trial)
        self.finished += 1
        if time.time() - self.shown > EVERY_S:
            self.show()

    def show(self) -> None:
        """Print the best cells so far."""
        self.shown = time.time()
        print(f"{self.phase}: {self.finished} of {self.total} trials; best so far", file=sys.stderr)
        for score in cell_scores(self.job.table.read())[:SHOWN]:
            print(f"  {score.text():<16} {score.first.describe()}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------ the best model


def _save_best(
    job: TuneJob,
    best: CellScore,
    vectors: tuple[PairVectors, PairVectors],
    system: CaseConfig,
    pairs: dict[str, RatedPairs],
) -> None:
    """Fit the best cell again with its first seed, and save it as a model folder."""
    trial = best.first
    recipe = trial.cell(job.recipe).recipe
    train, validation = vectors
    began = time.time()
    *_, state = fit_projector(train, validation, recipe, seed=trial.seed)
    shape = recipe.projector(train.dim)
    metrics = {"fingerprint": fingerprint([trial.key, trial.seed])} | model_metrics(state, validation, pairs)
    metrics |= {
        "recipe": settings_of(recipe) | {"dim": shape.output_dim},
        "seed": trial.seed,
        "workers": 1,
        "seconds": round(time.time() - began, 1),
        "sweep": {"spearman_mean": best.mean, "spearman": [t.spearman for t in best.trials]},
    }
    write_model_folder(job.folder / "best", replace(system, projector=shape), best_projector(state, shape), metrics)
