"""A sweep on Ray Tune: trials over shared vectors, in reused processes; the table of trials is the checkpoint."""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
import ray.tune
import torch
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from raycase.data.provenance import provenance
from raycase.data.rated import RatedPairs
from raycase.data.storage import check_paths, fingerprint, locate
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.train import check_cache
from raycase.distributed.vector_cache import vectors_of
from raycase.encoder.prompts import INSTRUCTED, PromptStyle, parse_views
from raycase.errors import RequestError, WorkError
from raycase.evaluation.plots import check_plots
from raycase.systems.case import CaseConfig, write_model_folder
from raycase.systems.pair_vectors import PairVectors, pair_vectors
from raycase.training.loop import best_epoch_of
from raycase.training.projector_fit import Recipe, best_projector, fit_projector
from raycase.training.projector_job import Frozen, is_tuned, model_metrics
from raycase.training.sweep_cells import SPACE, Cell, cell_of, figure4, grid_of, random_cells, table7
from raycase.training.sweep_plots import sweep_plots
from raycase.training.sweep_report import summary
from raycase.training.sweep_trials import CellScore, Table, best_cell, cell_scores, finalists, finished, make_trial

GRIDS = {"table7": table7, "figure4": figure4}
GRACE, REDUCTION = 8, 3  # ASHA: no trial is stopped before so many epochs; of each rung a third goes on
FIGURES = ("epoch", "loss", "spearman", "spearman_rated", "pearson", "seconds")
LOWEST = -200.0  # of a trial without a figure, for search and ASHA
SWEEP = "sweep.json"
RESULTS = ("trials", "trials.parquet", "trials.csv", "summary.md", "dimensions.png", "choices.png", "best")
FAILURES = 2  # of a trial's process, before the trial fails
SHOWN, EVERY_S = 8, 10.0  # cells in the table of progress; seconds between two of them


@dataclass(frozen=True, kw_only=True)
class TuneJob(Frozen, Recipe):
    """Search the choices of the projector on a frozen encoder, or run a grid; what is not swept is as the flags say.

    A sweep that was stopped goes on with the same command and --resume.
    """

    samples: int = 60
    """Cells of a search."""
    search: Literal["tpe", "random"] = "tpe"
    """How a search chooses: Optuna's tree-structured Parzen estimator, or at random."""
    grid: str | None = None
    """Instead of a search: table7, figure4, or a JSON file with lists, as {"dropout": [0.1, 0.3]}."""
    prompts: tuple[str, ...] | None = None
    """Prompts that a search chooses from. Default: --prompt; else the encoder's, and two views side by side."""
    seeds: int = 3
    """Runs of each cell of a grid, and of the finalists of a search."""
    finalists: int = 5
    """Cells of a search that are run with every seed in the end."""
    asha: bool | None = None
    """Whether ASHA stops trials that fall behind. Default: in a search, not in a grid."""
    cpus_per_trial: float = 1
    """CPUs, and threads, of a trial."""
    gpus_per_trial: float = 0
    """GPUs of a trial."""
    resume: bool = False
    """Go on with the sweep in the folder: run the trials that its table lacks."""

    @property
    def table(self) -> Table:
        return Table(root=locate(str(self.folder)))


@dataclass(frozen=True, kw_only=True)
class Data:
    """The vectors under each prompt, here and in the object store."""

    pairs: dict[str, RatedPairs]
    vectors: dict[str, tuple[PairVectors, PairVectors]]
    refs: dict[str, tuple[Any, Any]]


def tune(job: TuneJob) -> dict[str, Any]:
    """Run the sweep, write its tables, refit and save the best cell. Raises RequestError and WorkError."""
    began = time.time()
    _check(job)
    config = (replace(job, prompt=job.prompts[0]) if job.prompts else job).config()
    grid = _grid(job, config)
    prompts = list(dict.fromkeys(c.prompt for c in grid)) if grid else _prompts(job, config)
    systems = {p: replace(config, encoder=replace(config.encoder, prompt=p)) for p in prompts}
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    space: list[Any] = [{k: str(v) for k, v in SPACE.items()}, asdict(job.recipe), job.search, prompts]
    swept = [c.key for c in grid] if grid else space
    identity: dict[str, Any] = {
        "model": {prompt: system.describe() for prompt, system in systems.items()},
        "compute": job.compute,
        "data": [rated.data_sha256 for rated in pairs.values()],
        "swept": swept,
        "asha": job.asha,
        "seed": job.seed,
    }
    identity["fingerprint"] = fingerprint(identity)
    _check_folder(job, identity["fingerprint"])
    start_ray()
    check_cache(job.cache_location)
    _check_resources(job)
    data = _embed(job, systems, pairs)
    embedded = time.time()
    _open_folder(job, identity)
    gaps: list[float] = []
    if grid:
        done = finished(job.table.read())
        wanted = [(c, s) for s in range(job.seed, job.seed + job.seeds) for c in grid if (c.key, s) not in done]
        gaps += _run(job, data, wanted, phase="grid")
    else:
        gaps += _search(job, data, prompts)
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
    _save_best(job, best, data, systems)
    made = provenance()
    (job.table.root / "summary.md").put(summary(trials, made, grid=job.grid).encode())
    for name, image in sweep_plots(trials).items():
        (job.table.root / name).put(image)
    return values | {"output": str(job.folder)}


# --------------------------------------------------------------------------------------------------------------- checks


def _check(job: TuneJob) -> None:
    check_plots()
    check_paths({"--grid": None if job.grid in GRIDS else job.grid})
    if job.grid is None and job.search == "tpe":
        _optuna([], [job.prompt or ""], 0)  # whether it is there
    if job.prompts is not None and (job.grid is not None or job.prompt is not None):
        raise RequestError("--prompts: expected it for a search, without --prompt, got --grid or --prompt beside it")
    job.recipe.check()
    for flag, value in (("samples", job.samples), ("seeds", job.seeds), ("finalists", job.finalists)):
        if value < 1:
            raise RequestError(f"--{flag}: expected at least 1, got {value}")
    if job.cpus_per_trial <= 0 or job.gpus_per_trial < 0:
        raise RequestError(
            "--cpus-per-trial, --gpus-per-trial: expected some CPUs and 0 or more GPUs, "
            f"got {job.cpus_per_trial:g} and {job.gpus_per_trial:g}"
        )


def _check_resources(job: TuneJob) -> None:
    alive = nodes()
    if not any(n.get("CPU", 0) >= job.cpus_per_trial and n.get("GPU", 0) >= job.gpus_per_trial for n in alive):
        found = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in alive)
        raise RequestError(
            f"--cpus-per-trial, --gpus-per-trial: expected a node with {job.cpus_per_trial:g} CPUs and "
            f"{job.gpus_per_trial:g} GPUs, got nodes with {found}"
        )


def _grid(job: TuneJob, config: CaseConfig) -> list[Cell] | None:
    if job.grid is None:
        return None
    prompt = config.encoder.prompt
    cells = GRIDS[job.grid](job.recipe, prompt) if job.grid in GRIDS else grid_of(job.grid, job.recipe, prompt)
    return list({c.key: c for c in cells}.values())


def _prompts(job: TuneJob, config: CaseConfig) -> list[str]:
    own = config.encoder.prompt
    if job.prompts is None:
        if job.prompt is not None or is_tuned(job.model):
            return [own]
        if own in INSTRUCTED:
            return [own, "+".join(INSTRUCTED)]
        return [own, f"{PromptStyle.QUESTION}+{PromptStyle.STATEMENT}"]  # results/csts_minilm.md
    for prompt in job.prompts:
        parse_views(prompt)
    return list(dict.fromkeys(job.prompts))


def _check_folder(job: TuneJob, name: str) -> None:
    """Raise RequestError where another sweep, or this one without --resume, is in the folder."""
    root = job.table.root
    if job.overwrite:
        return
    if (root / SWEEP).exists():
        found = (root / SWEEP).read_json()
        if not isinstance(found, dict) or found.get("fingerprint") != name:
            raise RequestError(
                f"--output: expected the sweep of this search space, encoder and data in {root.uri}, got another one; "
                "choose another folder or pass --overwrite"
            )
        if not job.resume:
            raise RequestError(
                f"--output: expected a new sweep, got this one begun in {root.uri}; "
                "say --resume to go on, or --overwrite"
            )
        return
    for part in RESULTS:
        if (root / part).exists():
            raise RequestError(
                f"--output: expected an empty folder, got {part} without {SWEEP} in {root.uri}; choose another folder"
            )


def _open_folder(job: TuneJob, identity: dict[str, Any]) -> None:
    """Take the folder for this sweep: everything that could be wrong with the request has been found by now."""
    root = job.table.root
    if job.overwrite:
        for part in (SWEEP, *RESULTS):
            (root / part).remove()
    (root / SWEEP).put_json(identity | {"provenance": provenance()})


def _embed(job: TuneJob, systems: dict[str, CaseConfig], pairs: dict[str, RatedPairs]) -> Data:
    """The vectors of every prompt, put into the object store once: trials on a node read them without a copy."""
    vectors = {}
    for prompt, system in systems.items():
        train, validation = (
            pair_vectors(rated, system, vectors_of, cache=job.cache_location, compute=job.compute)
            for rated in pairs.values()
        )
        vectors[prompt] = train, validation
    refs = {prompt: (ray.put(train), ray.put(validation)) for prompt, (train, validation) in vectors.items()}
    return Data(pairs=pairs, vectors=vectors, refs=refs)


# --------------------------------------------------------------------------------------------------------------- trials


def _search(job: TuneJob, data: Data, prompts: Sequence[str]) -> list[float]:
    """A search with one seed, then the other seeds of its best cells; gives what `_run` does."""
    gaps: list[float] = []
    found = [t for t in job.table.read() if t.phase == "search"]
    if job.search == "random":
        done = finished(found)
        cells = random_cells(job.recipe, prompts, job.samples, job.seed)
        gaps += _run(job, data, [(c, job.seed) for c in cells if (c.key, job.seed) not in done], phase="search")
    elif len(found) < job.samples:
        points = [({n: getattr(t, n) for n in (*SPACE, "prompt")}, t.spearman) for t in found if t.spearman is not None]
        # a generator begun anew would draw the first points again
        searcher = _optuna(points, prompts, job.seed + len(found))
        gaps += _run(job, data, [], phase="search", more=job.samples - len(found), searcher=searcher)
    trials = job.table.read()
    by_key = {t.key: t.cell(job.recipe) for t in trials}
    seeds = range(job.seed, job.seed + job.seeds)
    wanted = [(by_key[key], seed) for key, seed in finalists(trials, job.finalists, seeds)]
    return gaps + _run(job, data, wanted, phase="finals")


def _run(
    job: TuneJob,
    data: Data,
    wanted: Sequence[tuple[Cell, int]],
    *,
    phase: str,
    more: int = 0,
    searcher: Any = None,
) -> list[float]:
    """Run the trials wanted, or as many `more` as the searcher chooses.

    Returns the seconds that each trial took beyond its fit, the first of each process left out.
    """
    if not wanted and not more:
        return []
    # The table is ours; and Tune's own handler would take a stop for an end.
    os.environ |= {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
    }
    asha = phase != "finals" and (job.asha if job.asha is not None else phase == "search")
    most = max([cell.recipe.epochs for cell, _ in wanted], default=job.epochs)
    keeper = _Keeper(job, data, wanted, phase, total=len(wanted) or more)
    trainable = ray.tune.with_parameters(
        _trial, refs=data.refs, wanted=list(wanted), base=job.recipe, seed=job.seed, threads=int(job.cpus_per_trial)
    )
    with tempfile.TemporaryDirectory() as scratch:
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(trainable, {"cpu": job.cpus_per_trial, "gpu": job.gpus_per_trial}),
            param_space={"trial": ray.tune.grid_search(list(range(len(wanted))))} if wanted else {},
            tune_config=ray.tune.TuneConfig(
                metric="best",
                mode="max",
                num_samples=1 if wanted else more,
                search_alg=searcher,
                scheduler=ASHAScheduler(
                    time_attr="epoch", max_t=most, grace_period=min(GRACE, most), reduction_factor=REDUCTION
                )
                if asha
                else FIFOScheduler(),
                reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(
                storage_path=scratch,
                verbose=0,
                callbacks=[keeper],
                failure_config=ray.tune.FailureConfig(max_failures=FAILURES),
            ),
        )
        tuner.fit()
    keeper.show()
    return keeper.gaps


def _optuna(points: Sequence[tuple[dict[str, Any], float]], prompts: Sequence[str], seed: int) -> Any:
    """Optuna's TPE over `SPACE`, told what is known."""
    try:
        import optuna
        from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    except ImportError as error:
        raise RequestError(
            "--search tpe: expected the package optuna, got none; install it with: pip install 'raycase[tune]', "
            "or say --search random"
        ) from error
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space: dict[str, BaseDistribution] = {}
    for name, choices in (SPACE | {"prompt": list(prompts)}).items():
        match choices:
            case list():
                space[name] = CategoricalDistribution([str(c) if isinstance(c, str) else c for c in choices])
            case ("log", low, high):
                space[name] = FloatDistribution(low, high, log=True)
            case (low, high):
                space[name] = FloatDistribution(low, high)
    return OptunaSearch(
        space=space,
        metric="best",
        mode="max",
        seed=seed,
        points_to_evaluate=[point for point, _ in points] or None,
        evaluated_rewards=[score for _, score in points] or None,
    )


def _trial(
    config: dict[str, Any],
    *,
    refs: dict[str, tuple[Any, Any]],
    wanted: list[tuple[Cell, int]],
    base: Recipe,
    seed: int,
    threads: int,
) -> None:
    """What a trial's process runs."""
    torch.set_num_threads(max(1, threads))
    cell, seed = wanted[config["trial"]] if wanted else (cell_of(config, base), seed)
    train, validation = ray.get(list(refs[cell.prompt]))
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    try:
        for state in fit_projector(train, validation, cell.recipe, seed=seed, wrap=lambda module: module.to(device)):
            best = state.history[state.best_epoch - 1]["spearman"]
            ray.tune.report(state.line | {"best": LOWEST if math.isnan(best) else best})
    except WorkError as error:  # trying again would not help
        ray.tune.report(dict.fromkeys(FIGURES, math.nan) | {"epoch": 0, "best": LOWEST, "error": str(error)})


class _Keeper(ray.tune.Callback):
    """Writes each finished trial to the table, and shows the best cells so far."""

    def __init__(self, job: TuneJob, data: Data, wanted: Sequence[tuple[Cell, int]], phase: str, *, total: int) -> None:
        self.job, self.data, self.wanted, self.phase, self.total = job, data, wanted, phase, total
        self.histories: dict[str, list[dict[str, float]]] = {}
        self.errors: dict[str, str] = {}
        self.ended: dict[int, float] = {}  # when each process ended its last trial
        self.gaps: list[float] = []
        self.finished = 0
        self.shown = time.time()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """An epoch of a trial."""
        if result["epoch"] <= 1:  # begun again after a failure
            self.histories[trial.trial_id] = []
        if "error" in result:
            self.errors[trial.trial_id] = result["error"]
        else:
            self.histories[trial.trial_id].append({name: result[name] for name in FIGURES})

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """A trial that ended, or that ASHA stopped."""
        self._keep(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """A trial that failed for good: it is kept with its reason."""
        said = (trial.error_file and Path(trial.error_file).read_text(encoding="utf-8").strip()) or "the process died"
        self.errors[trial.trial_id] = said.splitlines()[-1]
        self._keep(trial)

    def _keep(self, trial: Any) -> None:
        index = trial.config.get("trial")
        job = self.job
        cell, seed = self.wanted[index] if index is not None else (cell_of(trial.config, job.recipe), job.seed)
        history, error = self.histories.pop(trial.trial_id, []), self.errors.pop(trial.trial_id, None)
        if error:
            history, stopped = [], error
        elif len(history) >= cell.recipe.epochs:
            stopped = "epochs"
        else:
            stopped = "patience" if len(history) - best_epoch_of(history) >= cell.recipe.patience else "asha"
        dim = self.data.vectors[cell.prompt][0].dim
        line = make_trial(cell, seed=seed, phase=self.phase, input_dim=dim, history=history, stopped=stopped)
        job.table.put(line)
        self.finished += 1
        process, now = trial.last_result.get("pid", 0), time.time()
        if process in self.ended:
            self.gaps.append(now - self.ended[process] - line.seconds)
        self.ended[process] = now
        if time.time() - self.shown > EVERY_S:
            self.show()

    def show(self) -> None:
        """Print the best cells so far."""
        self.shown = time.time()
        print(f"{self.phase}: {self.finished} of {self.total} trials; best so far", file=sys.stderr)
        for score in cell_scores(self.job.table.read())[:SHOWN]:
            print(f"  {score.text():<16} {score.first.describe()}", file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------------------------- best


def _save_best(job: TuneJob, best: CellScore, data: Data, systems: dict[str, CaseConfig]) -> None:
    """Fit the best cell once more, with its first seed, and save it as a model folder."""
    trial = best.first
    recipe = trial.cell(job.recipe).recipe
    train, validation = data.vectors[trial.prompt]
    began = time.time()
    for state in fit_projector(train, validation, recipe, seed=trial.seed):  # noqa: B007 (the last one is used)
        pass
    shape = recipe.projector(train.dim)
    metrics = {"fingerprint": fingerprint([trial.key, trial.seed])} | model_metrics(state, validation, data.pairs)
    metrics |= {
        "recipe": asdict(recipe) | {"dim": shape.output_dim},
        "seed": trial.seed,
        "workers": 1,
        "seconds": round(time.time() - began, 1),
        "sweep": {"spearman_mean": best.mean, "spearman": [t.spearman for t in best.trials]},
    }
    write_model_folder(
        job.folder / "best", replace(systems[trial.prompt], projector=shape), best_projector(state, shape), metrics
    )
