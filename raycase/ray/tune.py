"""Sweeps on Ray Tune: function trainables over shared data; Optuna chooses the cells of a search, ASHA stops trials."""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import ray
import ray.tune
import torch
from ray.tune.schedulers import ASHAScheduler

from raycase.errors import MOST_SEED, RequestError, WorkError, needs_package, note
from raycase.io.places import begin, claim
from raycase.io.provenance import provenance
from raycase.io.storage import fingerprint, locate
from raycase.models.model_folder import METRICS
from raycase.ray.cluster import capacity
from raycase.ray.train import make_scaling, open_trainer
from raycase.training.job import TrainFlags, train
from raycase.training.sweep import BEST, RESULTS, SWEEP, Choices, Space, Sweep, by_cell, changed, text_of

FINALISTS = 3  # cells of a search that are run with every seed
GRACE, REDUCTION = 8, 3  # ASHA: no trial is stopped before epoch 8; a third of the trials passes each rung
LOWEST = -200.0  # reported to search and ASHA for a trial without a score
FAILURES = 2  # tolerated failures of a trial's process


def tune(job: Sweep) -> dict[str, Any]:
    """Run a sweep, write its results, train the best cell again and save it. Raises RequestError and WorkError."""
    began = time.time()
    training = job.training
    if training.ray is False:
        raise RequestError("--no-ray: expected Ray, which runs the trials of a sweep, got none")
    job.check()
    cells, space = (job.cells(), {}) if job.grid else ([], job.search_space())
    parts = training.read_parts()
    sharing = _sharing(training, cells, space)
    identity = training.identity(training.config(), parts) | {"cells": cells, "space": space}
    identity |= {"models": {key: each.config().describe() for key, each in sharing.items()}}
    identity |= {"fingerprint": fingerprint(identity)}
    overwrite = training.overwrite
    claim(job.root, SWEEP, identity["fingerprint"], job="this very sweep", results=RESULTS, overwrite=overwrite)
    trainer = open_trainer(training)
    shared = {key: ray.put(each.shared(each.config(), parts, trainer.vectors)) for key, each in sharing.items()}
    begin(job.root, SWEEP, identity | {"provenance": provenance()}, RESULTS, overwrite=overwrite)
    if not job.grid:
        _search(job, shared, space)
        searched = [t for t in job.read_trials() if t["phase"] == "search"]
        cells = [of[0]["choices"] for _, of in by_cell(searched)[:FINALISTS]]
    _run(job, shared, [(cell, seed) for seed in job.trial_seeds for cell in cells], "grid" if job.grid else "finals")
    trials = job.read_trials()
    job.write_results(trials)
    scores, best = by_cell(trials)[0]
    if not scores:
        raise WorkError(f"expected trials that finish, got {len(trials)} that failed; the first: {best[0]['error']}")
    cell = changed(training, best[0]["choices"])
    cell = replace(cell, output=f"{training.folder}/{BEST}", cache=training.cache_uri, overwrite=False)
    metrics = locate(cell.output) / METRICS
    if metrics.exists() and metrics.read_json()["fingerprint"] != fingerprint(cell.identity(cell.config(), parts)):
        locate(cell.output).remove()  # the best of fewer trials
    train(cell, lambda _: trainer)
    return {
        "trials": len(trials),
        "failed": sum(t["score"] is None for t in trials),
        "best": {
            "cell": text_of(best[0]["choices"]),
            "mean": statistics.fmean(scores),
            "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
            "seeds": len(scores),
        },
        "seconds": round(time.time() - began, 1),
        "fit_seconds": round(sum(t.get("seconds", 0) for t in trials), 1),
        "output": str(training.folder),
    }


def _sharing(training: TrainFlags, cells: Sequence[Choices], space: Space) -> dict[str, TrainFlags]:
    """A job for each of what cells share, as vectors, by its key."""
    if not cells:
        varied = {flag: space[flag]["choice"] for flag in training.SHARED_BY if flag in space}
        cells = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    jobs = [changed(training, {f: v for f, v in cell.items() if f in training.SHARED_BY}) for cell in cells]
    return {_shared_key(job): job for job in jobs}


def _shared_key(training: TrainFlags) -> str:
    return str([getattr(training, flag) for flag in training.SHARED_BY])


def _search(job: Sweep, shared: Mapping[str, Any], space: Space) -> None:
    """Search with the first seed. Optuna is told the trials that ended before."""
    with needs_package("optuna", "tune", "for a search; --grid needs none"):
        import optuna
        from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    earlier = [t for t in job.read_trials() if t["phase"] == "search"]
    told = [t for t in earlier if t["score"] is not None]
    missing = (job.trials or (60 if job.training.FROZEN else 20)) - len(earlier)
    if missing <= 0:
        return
    samplers = {flag: next(iter(sampler.items())) for flag, sampler in space.items()}
    domains = {
        flag: ray.tune.choice(given) if kind == "choice" else getattr(ray.tune, kind)(*given)
        for flag, (kind, given) in samplers.items()
    }
    searcher = OptunaSearch(
        seed=(job.training.seed + len(earlier)) % (MOST_SEED + 1),  # else it would draw the first points again
        points_to_evaluate=[t["choices"] for t in told] or None,
        evaluated_rewards=[t["score"] for t in told] or None,
    )
    epochs = max([job.training.epochs, *samplers.get("epochs", ("", []))[1]])
    asha = ASHAScheduler(time_attr="epoch", max_t=epochs, grace_period=min(GRACE, epochs), reduction_factor=REDUCTION)
    _tuned(job, shared, "search", domains, num_samples=missing, search_alg=searcher, scheduler=asha)


def _run(job: Sweep, shared: Mapping[str, Any], trials: Sequence[tuple[Choices, int]], phase: str) -> None:
    """Run the trials that have no score yet."""
    done = [(t["choices"], t["seed"]) for t in job.read_trials() if t["score"] is not None]
    missing = [{"choices": cell, "seed": seed} for cell, seed in trials if (cell, seed) not in done]
    if missing:
        _tuned(job, shared, phase, {"trial": ray.tune.grid_search(missing)})


def _tuned(job: Sweep, shared: Mapping[str, Any], phase: str, space: dict[str, Any], **how: Any) -> None:
    """Run trials on Ray Tune; each is recorded at its end. Tune's own loggers write into the folder `tune`."""
    # Tune's handler would treat an interrupt as the end of the sweep; its new output has tables of every trial; in a
    # folder of its own, a trial would not find a relative --model
    os.environ |= {"TUNE_DISABLE_SIGINT_HANDLER": "1", "RAY_AIR_NEW_OUTPUT": "0", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks of what is recorded in a line
    cpus, gpus = resources(job.training)
    trainable = ray.tune.with_parameters(_trial, shared=shared, training=job.training, threads=int(cpus))
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(trainable, {"cpu": cpus, "gpu": gpus}),
        param_space=space,
        tune_config=ray.tune.TuneConfig(metric="score", mode="max", reuse_actors=True, **how),
        run_config=ray.tune.RunConfig(
            name="tune",
            storage_path=str(job.training.folder),
            verbose=0,
            callbacks=[_Recorder(job, phase), *_trackers(job.training)],
            failure_config=ray.tune.FailureConfig(max_failures=FAILURES),
        ),
    )
    tuner.fit()
    for file in (job.training.folder / "tune").rglob("*.pkl"):  # Tune's own, which nothing reads again
        file.unlink()


def _trackers(training: TrainFlags) -> list[ray.tune.Callback]:
    """Ray's callback of the service that trials report to; that of TensorBoard is one of Tune's own loggers."""
    if training.track == "mlflow":
        import mlflow
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        return [MLflowLoggerCallback(mlflow.get_tracking_uri(), experiment_name=name)]
    if training.track == "wandb":
        import wandb
        from ray.air.integrations.wandb import WandbLoggerCallback

        class WithoutKey(WandbLoggerCallback):
            """Ray's would give its actors the key as a variable of the environment, which Ray writes into its logs."""

            def _start_logging_actor(self, *args: Any, **options: Any) -> None:
                key = os.environ.pop("WANDB_API_KEY", None)
                try:
                    super()._start_logging_actor(*args, settings=wandb.Settings(api_key=key), **options)
                finally:
                    os.environ |= {"WANDB_API_KEY": key} if key else {}

        group, mode = training.folder.name, os.environ.get("WANDB_MODE")
        return [WithoutKey(os.environ["WANDB_PROJECT"], group, mode=mode)]
    return []


def resources(training: TrainFlags) -> tuple[float, float]:
    """CPUs and GPUs of a trial: one CPU on a frozen encoder; else what `train` takes, but each GPU has a trial."""
    if training.FROZEN:
        return 1, 0
    cluster = capacity()
    gpus = cluster.gpus(training.gpus_per_worker)
    at_once = cluster.room(1, gpus) if gpus else 1
    return make_scaling(at_once, gpus, cluster).resources_per_worker["CPU"], gpus


def _drawn(config: dict[str, Any], training: TrainFlags) -> tuple[Choices, int]:
    """The cell and the seed of a trial's configuration: of a grid, or by a search."""
    trial = config.get("trial", {"choices": config, "seed": training.seed})
    return trial["choices"], trial["seed"]


def _trial(config: dict[str, Any], *, shared: Mapping[str, Any], training: TrainFlags, threads: int) -> None:
    """Run a trial and report each epoch to Tune."""
    torch.set_num_threads(max(1, threads))
    choices, seed = _drawn(config, training)
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    try:
        job = replace(changed(training, choices), seed=seed)
        data, how = job.fit_data(ray.get(shared[_shared_key(job)])), {"on_gpu": device != "cpu"}
        system = None if job.FROZEN else job.config()  # a frozen encoder may be out of reach here
        for state in job.fit_epochs(system, *data, wrap=lambda module: module.to(device), **how):
            found = state.best_line if state.best_epoch else {state.select: LOWEST}
            ended = {"epochs": len(state.history), "seconds": sum(line["seconds"] for line in state.history)}
            figures = {"score": found[state.select], "metric": state.select} | found | ended
            ray.tune.report(state.line | {"score": figures["score"], "figures": json.dumps(figures)})
    except (RequestError, WorkError) as error:  # a retry would not help
        ray.tune.report({"score": LOWEST, "epoch": 0, "figures": json.dumps({"error": str(error)})})


class _Recorder(ray.tune.Callback):
    """Records each trial at its end."""

    def __init__(self, job: Sweep, phase: str) -> None:
        self.job, self.phase = job, phase

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a trial that ended or that ASHA stopped."""
        figures = json.loads(trial.last_result["figures"])
        is_scored = figures.get("score", LOWEST) > LOWEST
        self._record(trial, figures if is_scored else {"error": "no epoch has a score"} | figures | {"score": None})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a trial that failed finally, with the reason."""
        text = (trial.error_file and Path(trial.error_file).read_text(encoding="utf-8").strip()) or "the process died"
        self._record(trial, {"error": text.splitlines()[-1]})

    def _record(self, trial: Any, figures: dict[str, Any]) -> None:
        choices, seed = _drawn(trial.config, self.job.training)
        row = {"choices": choices, "seed": seed, "phase": self.phase, "error": "", "score": None} | figures
        self.job.put_trial(row)
        said = f"{row['metric']} {row['score']:.2f}" if row["score"] is not None else row["error"]
        note(f"{self.phase}: {said}, seed {seed}, {text_of(choices)}")
