"""Trials of a sweep on Ray Tune, with shared data and reused processes. Does not use Tune's checkpoints."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.tune
import torch
from ray.train import ScalingConfig
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from raycase.data.storage import Location
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.fit import fit_on_ray
from raycase.distributed.train import CACHE, check_cache
from raycase.errors import RequestError, WorkError
from raycase.training import sweep
from raycase.training.checkpoint import Fitting
from raycase.training.loop import FitState
from raycase.training.sweep_cells import Cell
from raycase.training.sweep_job import Sweep
from raycase.training.trial_runner import Data, Record, Round, Search

GRACE, REDUCTION = 8, 3  # ASHA: no trial is stopped before epoch 8; a third of the trials passes each rung
METRICS = ("epoch", "loss", "seconds")  # besides `Cell.metric_names`
LOWEST = -200.0  # reported to search and ASHA for a trial without a score
FAILURES = 2  # tolerated failures of a trial's process


def tune(job: Sweep) -> dict[str, Any]:
    """Run a sweep on Ray Tune. Raises RequestError and WorkError."""
    if job.training.ray is False:
        raise RequestError("--no-ray: expected Ray, which runs the trials of a sweep, got none")
    return sweep.tune(job, open_trials)


def open_trials(*, cpus_per_trial: float | None, gpus_per_trial: float | None, cache: Location) -> RayTrials:
    """Join or start Ray. Raises RequestError if no node can run a trial, or for a local cache on several machines."""
    start_ray()
    check_cache(cache)
    alive = nodes()
    gpus = float(any(n.get("GPU") for n in alive)) if gpus_per_trial is None else gpus_per_trial
    cpus = cpus_of_a_trial(alive, gpus) if cpus_per_trial is None else cpus_per_trial
    if not any(n.get("CPU", 0) >= cpus and n.get("GPU", 0) >= gpus for n in alive):
        described = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in alive)
        raise RequestError(
            f"--cpus-per-trial, --gpus-per-trial: expected a node with {cpus:g} CPUs and {gpus:g} GPUs, got nodes with "
            f"{described}"
        )
    return RayTrials(cpus=cpus, gpus=gpus)


def cpus_of_a_trial(alive: Sequence[Mapping[str, float]], gpus: float) -> float:
    """All CPUs of the largest node; with GPUs the least share of a node's, so that each GPU has a trial."""
    if not gpus:
        return max(n.get("CPU", 0) for n in alive)
    shares = [n.get("CPU", 0) // (n["GPU"] // gpus) for n in alive if n.get("GPU", 0) >= gpus]
    return max(1, min(shares, default=1))


@dataclass(frozen=True, kw_only=True)
class RayTrials:
    """`raycase.training.trial_runner.TrialRunner` on the cluster that this process has joined."""

    cpus: float  # per trial
    gpus: float  # per trial
    vectors_of = staticmethod(CACHE.vectors_of)
    states_of = staticmethod(CACHE.states_of)
    scores_of = staticmethod(CACHE.scores_of)

    @property
    def on_gpu(self) -> bool:
        return self.gpus > 0

    def fit(
        self, fitting: Fitting, train: Any, validation: Any, recipe: Any, *, seed: int, checkpoints: Location
    ) -> FitState:
        """Run a fit on what a trial has."""
        resources = {"CPU": self.cpus} | ({"GPU": self.gpus} if self.on_gpu else {})
        scaling = ScalingConfig(num_workers=1, use_gpu=self.on_gpu, resources_per_worker=resources)
        return fit_on_ray(fitting, train, validation, recipe, seed=seed, scaling=scaling, checkpoints=checkpoints)

    def run(self, trials: Round, data: Data, record: Record) -> list[float]:
        """Run a round and record each trial at its end.

        Returns the seconds that each trial took beyond its fit, except for the first trial of each process.
        """
        # raycase writes its own table, and Tune's handler would treat an interrupt as the end of the sweep
        os.environ |= {
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
            "TUNE_DISABLE_SIGINT_HANDLER": "1",
            "RAY_AIR_NEW_OUTPUT": "0",
        }
        recorder = _Recorder(trials, record)
        # once a round in the object store, from which the trials of a node read the arrays without a copy
        refs = {read: [ray.put(part) for part in shared] for read, shared in data.items()}
        trainable = ray.tune.with_parameters(_trial, refs=refs, trials=trials, threads=int(self.cpus))
        grid = {"trial": ray.tune.grid_search(list(range(len(trials.trials))))}
        with tempfile.TemporaryDirectory() as scratch:
            tuner = ray.tune.Tuner(
                ray.tune.with_resources(trainable, {"cpu": self.cpus, "gpu": self.gpus}),
                param_space={} if trials.search else grid,
                tune_config=ray.tune.TuneConfig(
                    metric="best",
                    mode="max",
                    num_samples=trials.search.count if trials.search else 1,
                    search_alg=_optuna(trials.search) if trials.search else None,
                    scheduler=_scheduler(trials),
                    reuse_actors=True,
                ),
                run_config=ray.tune.RunConfig(
                    storage_path=scratch,
                    verbose=0,
                    callbacks=[recorder],
                    failure_config=ray.tune.FailureConfig(max_failures=FAILURES),
                ),
            )
            tuner.fit()
        return recorder.gaps


def _scheduler(trials: Round) -> TrialScheduler:
    """ASHA (Li et al., 2020), or none."""
    if not trials.asha:
        return FIFOScheduler()
    grace = min(GRACE, trials.epochs)
    return ASHAScheduler(time_attr="epoch", max_t=trials.epochs, grace_period=grace, reduction_factor=REDUCTION)


def _optuna(search: Search) -> Any:
    """Optuna's tree-structured Parzen estimator over the space, given the results of earlier trials."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {name: next(iter(sampler.items())) for name, sampler in search.space.items()}
    space = {
        name: ray.tune.choice(given) if kind == "choice" else getattr(ray.tune, kind)(*given)
        for name, (kind, given) in samplers.items()
    }
    return OptunaSearch(
        space=space,
        metric="best",
        mode="max",
        seed=search.sampler_seed,
        points_to_evaluate=[point for point, _ in search.points] or None,
        evaluated_rewards=[score for _, score in search.points] or None,
    )


def _cell(config: dict[str, Any], trials: Round) -> tuple[Cell, int]:
    """The cell and the seed of a trial's configuration in Tune."""
    if trials.search is None:
        return trials.trials[config["trial"]]
    return trials.search.base.drawn(config), trials.search.seed


def _trial(config: dict[str, Any], *, refs: dict[str, list[Any]], trials: Round, threads: int) -> None:
    """Run a trial and report each epoch to Tune."""
    torch.set_num_threads(max(1, threads))
    cell, seed = _cell(config, trials)
    shared = ray.get(refs[cell.data_key])
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    try:
        for state in cell.fit(shared, seed=seed, device=device):
            best = state.history[state.best_epoch - 1][cell.metric_names[0]] if state.best_epoch else LOWEST
            ray.tune.report(state.line | {"best": best})
    except (RequestError, WorkError) as error:  # a retry would not help
        ray.tune.report(dict.fromkeys(METRICS, math.nan) | {"epoch": 0, "best": LOWEST, "error": str(error)})


class _Recorder(ray.tune.Callback):
    """Collects the metrics of each trial's epochs and records the trial at its end."""

    def __init__(self, trials: Round, record: Record) -> None:
        self.trials, self.record = trials, record
        self.histories: dict[str, list[dict[str, float]]] = {}
        self.errors: dict[str, str] = {}
        self.ended: dict[int, float] = {}  # by process: the time at which its last trial ended
        self.gaps: list[float] = []

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Collect an epoch of a trial."""
        if result["epoch"] <= 1:  # the first, or restarted after a failure
            self.histories[trial.trial_id] = []
        if "error" in result:
            self.errors[trial.trial_id] = result["error"]
        else:
            names = (*METRICS, *_cell(trial.config, self.trials)[0].metric_names)
            self.histories[trial.trial_id].append({name: result[name] for name in names if name in result})

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a trial that ended or that ASHA stopped."""
        self._record(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a trial that failed finally, with the reason."""
        text = (trial.error_file and Path(trial.error_file).read_text(encoding="utf-8").strip()) or "the process died"
        self.errors[trial.trial_id] = text.splitlines()[-1]
        self._record(trial)

    def _record(self, trial: Any) -> None:
        cell, seed = _cell(trial.config, self.trials)
        history, error = self.histories.pop(trial.trial_id, []), self.errors.pop(trial.trial_id, None)
        self.record(cell, seed, history=history, error=error)
        process, now = trial.last_result.get("pid", 0), time.time()
        if process in self.ended:
            seconds = 0.0 if error else sum(line["seconds"] for line in history)
            self.gaps.append(now - self.ended[process] - seconds)
        self.ended[process] = now
