"""Trials of a sweep on Ray Tune: function trainables over shared data; Optuna chooses the cells of a search, ASHA stops
trials."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.tune
import torch
from ray.tune.schedulers import ASHAScheduler

from raycase.errors import MOST_SEED, RequestError, WorkError, needs_package, note
from raycase.names import Track
from raycase.ray.cluster import capacity
from raycase.ray.train import make_scaling
from raycase.training.loop import fit
from raycase.training.procedure import Training
from raycase.training.recipe import Recipe
from raycase.training.sweep import Choices, SweepResults, text_of

GRACE, REDUCTION = 8, 3  # ASHA: no trial is stopped before epoch 8; a third of the trials passes each rung
LOWEST = -200.0  # reported to search and ASHA for a trial without a score
FAILURES = 2  # tolerated failures of a trial's process
TrainingOf = Callable[[Choices, int], tuple[str, Training]]  # of a cell and a seed: what it shares, what it trains by


@dataclass(kw_only=True)
class Trials:
    """Runs the trials of a sweep. shared: data of `Training.share`, by key; recipe: of the sweep's own flags."""

    results: SweepResults
    training_of: TrainingOf
    shared: Mapping[str, Any]
    recipe: Recipe
    gpus_per_worker: float | None
    track: Track | None

    def __post_init__(self) -> None:
        self.shared = {key: ray.put(data) for key, data in self.shared.items()}

    def search(self, space: Mapping[str, Mapping[str, list[Any]]], count: int) -> None:
        """Search with the first seed, up to so many trials. Optuna is given those that ended before."""
        with needs_package("optuna", "tune", "for a search; --grid needs none"):
            import optuna
            from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        earlier = [t for t in self.results.read_trials() if t["phase"] == "search"]
        scored = [t for t in earlier if t["score"] is not None]
        if (missing := count - len(earlier)) <= 0:
            return
        samplers = {flag: next(iter(sampler.items())) for flag, sampler in space.items()}
        domains = {
            flag: ray.tune.choice(given) if name == "choice" else getattr(ray.tune, name)(*given)
            for flag, (name, given) in samplers.items()
        }
        searcher = OptunaSearch(
            seed=(self.recipe.seed + len(earlier)) % (MOST_SEED + 1),  # else it would draw the first points again
            points_to_evaluate=[t["choices"] for t in scored] or None,
            evaluated_rewards=[t["score"] for t in scored] or None,
        )
        epochs = max([self.recipe.epochs, *samplers.get("epochs", ("", []))[1]])
        grace = min(GRACE, epochs)
        asha = ASHAScheduler(time_attr="epoch", max_t=epochs, grace_period=grace, reduction_factor=REDUCTION)
        self._tune("search", domains, num_samples=missing, search_alg=searcher, scheduler=asha)

    def run(self, trials: Sequence[tuple[Choices, int]], phase: str) -> None:
        """Run the trials that have no score yet."""
        done = [(t["choices"], t["seed"]) for t in self.results.read_trials() if t["score"] is not None]
        missing = [{"choices": cell, "seed": seed} for cell, seed in trials if (cell, seed) not in done]
        if missing:
            self._tune(phase, {"trial": ray.tune.grid_search(missing)})

    def _tune(self, phase: str, space: dict[str, Any], **how: Any) -> None:
        """Run trials on Ray Tune; each is recorded at its end. Tune's own loggers write into the folder `tune`."""
        # Tune's handler would treat an interrupt as the end of the sweep; its new output has tables of every trial; in
        # a folder of its own, a trial would not find a relative --model
        os.environ |= {"TUNE_DISABLE_SIGINT_HANDLER": "1", "RAY_AIR_NEW_OUTPUT": "0", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks of what is recorded in a line
        cpus, gpus = resources(self.gpus_per_worker, frozen=self.recipe.frozen)
        given = {"shared": self.shared, "training_of": self.training_of, "first_seed": self.recipe.seed}
        trainable = ray.tune.with_parameters(_trial, **given, threads=int(cpus))
        folder = Path(self.results.root.path)
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(trainable, {"cpu": cpus, "gpu": gpus}),
            param_space=space,
            tune_config=ray.tune.TuneConfig(metric="score", mode="max", reuse_actors=True, **how),
            run_config=ray.tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                verbose=0,
                callbacks=[_Recorder(self.results, phase, self.recipe.seed), *trackers(self.track, folder.name)],
                failure_config=ray.tune.FailureConfig(max_failures=FAILURES),
            ),
        )
        tuner.fit()
        for file in (folder / "tune").rglob("*.pkl"):  # Tune's own, which nothing reads again
            file.unlink()


def trackers(track: Track | None, group: str) -> list[ray.tune.Callback]:
    """Ray's callback of the service that trials report to; that of TensorBoard is one of Tune's own loggers."""
    if track == "mlflow":
        import mlflow
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        return [MLflowLoggerCallback(mlflow.get_tracking_uri(), experiment_name=name)]
    if track == "wandb":
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

        return [WithoutKey(os.environ["WANDB_PROJECT"], group, mode=os.environ.get("WANDB_MODE"))]
    return []


def resources(gpus_per_worker: float | None, *, frozen: bool) -> tuple[float, float]:
    """CPUs and GPUs of a trial: one CPU on a frozen encoder; else what `train` takes, but each GPU has a trial."""
    if frozen:
        return 1, 0
    cluster = capacity()
    gpus = cluster.gpus(gpus_per_worker)
    at_once = cluster.room(1, gpus) if gpus else 1
    return make_scaling(at_once, gpus, cluster).resources_per_worker["CPU"], gpus


def _drawn(config: dict[str, Any], first_seed: int) -> tuple[Choices, int]:
    """The cell and the seed of a trial's configuration: of a grid, or by a search."""
    trial = config.get("trial", {"choices": config, "seed": first_seed})
    return trial["choices"], trial["seed"]


def _trial(
    config: dict[str, Any], *, shared: Mapping[str, Any], training_of: TrainingOf, first_seed: int, threads: int
) -> None:
    """Run a trial and report each epoch to Tune."""
    torch.set_num_threads(max(1, threads))
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    try:
        key, training = training_of(*_drawn(config, first_seed))
        training = training.on(gpu=device != "cpu")
        learner = training.learner(training.recipe, *training.data(ray.get(shared[key])))
        for state in fit(training.recipe, learner, wrap=lambda module: module.to(device)):
            found = state.best_line if state.best_epoch else {state.select: LOWEST}
            ended = {"epochs": len(state.history), "seconds": sum(line["seconds"] for line in state.history)}
            figures = {"score": found[state.select], "metric": state.select} | found | ended
            ray.tune.report(state.line | {"score": figures["score"], "figures": json.dumps(figures)})
    except (RequestError, WorkError) as error:  # a retry would not help
        ray.tune.report({"score": LOWEST, "epoch": 0, "figures": json.dumps({"error": str(error)})})


class _Recorder(ray.tune.Callback):
    """Records each trial at its end."""

    def __init__(self, results: SweepResults, phase: str, first_seed: int) -> None:
        self.results, self.phase, self.first_seed = results, phase, first_seed

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
        choices, seed = _drawn(trial.config, self.first_seed)
        row = {"choices": choices, "seed": seed, "phase": self.phase, "error": "", "score": None} | figures
        self.results.put_trial(row)
        ended = f"{row['metric']} {row['score']:.2f}" if row["score"] is not None else row["error"]
        note(f"{self.phase}: {ended}, seed {seed}, {text_of(choices)}")
