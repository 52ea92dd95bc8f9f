"""Training on Ray: vectors from the embedding job, fits on Ray Train.

Small, since Ray Train's controller and workers import this module.
"""

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray.exceptions import RayError
from ray.train import ScalingConfig, TrainingFailedError

from raycase.errors import RequestError
from raycase.io.storage import Location
from raycase.ray.capacity import Capacity
from raycase.ray.cluster import cause, join_cluster
from raycase.ray.runner import RayRunner
from raycase.training.loop import FitState, Learner, fit, rank
from raycase.training.procedure import STATE, Trainer
from raycase.training.recipe import Recipe
from raycase.training.tracking import Tracker
from raycase.training.vector_cache import VectorCache

POLL_S = 0.5  # seconds between two reads of the history
FAILURES = 3  # tolerated failures of workers; after each, the workers resume from the last checkpoint


def fit_on_ray(
    recipe: Recipe,
    learner: Callable[..., Learner],
    *data: Any,
    scaling: ScalingConfig,
    checkpoints: Location,
    tracker: Tracker,
) -> FitState:
    """`raycase.training.procedure.fit_here` on data-parallel workers."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")  # the default notices the end 2 s late
    if recipe.frozen:
        checkpoints.remove()
    filesystem = None if checkpoints.is_local else PyFileSystem(FSSpecHandler(checkpoints.fs))
    history = checkpoints / "history.json"
    trainer = ray.train.torch.TorchTrainer(
        _fit_worker,
        train_loop_config={
            "recipe": recipe,
            "learner": learner,
            "data": [ray.put(part) for part in data],
            "threads": int(scaling.resources_per_worker["CPU"]),
            "history": None if recipe.frozen else history,
        },
        scaling_config=scaling,
        run_config=ray.train.RunConfig(  # a run of this name and place goes on from its last checkpoint
            name="ray",
            failure_config=ray.train.FailureConfig(max_failures=FAILURES),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            storage_path=checkpoints.path,
            storage_filesystem=filesystem,
        ),
    )
    ended: list[Any] = []

    def run_trainer() -> None:
        try:
            ended.append(trainer.fit())
        except (RayError, TrainingFailedError) as error:
            ended.append(error)

    # In the main thread, Ray Train would handle SIGINT and end the process with status 0.
    run = threading.Thread(target=run_trainer, daemon=True)
    shown = len(history.read_json()) if history.exists() else 0
    with tracker.open_run(recipe, shown) as report:
        run.start()
        while run.is_alive():
            run.join(POLL_S)
            report(history.read_json() if history.exists() else [])
        [result] = ended
        if isinstance(result, Exception):
            failures = getattr(result, "worker_failures", {})
            raise cause(next(iter(failures.values()), result)) from result
        with result.checkpoint.as_directory() as folder:
            state = FitState.from_bytes((Path(folder) / STATE).read_bytes())
        report(state.history)
    return state


def _fit_worker(config: dict[str, Any]) -> None:
    """Run the fit in a worker; report a checkpoint after each epoch, or where there is no history, at the end."""
    torch.set_num_threads(max(1, config["threads"]))
    history: Location | None = config["history"]
    state = None
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = FitState.from_bytes((Path(folder) / STATE).read_bytes())
    recipe: Recipe = config["recipe"]
    learner = config["learner"](recipe, *ray.get(config["data"]))
    states = fit(recipe, learner, state=state, wrap=ray.train.torch.prepare_model)
    is_first = rank() == 0
    for state in states if history else deque(states, maxlen=1):
        with tempfile.TemporaryDirectory() as folder:
            if is_first:
                (Path(folder) / STATE).write_bytes(state.to_bytes())
            checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
            ray.train.report({"epoch": len(state.history)}, checkpoint=checkpoint)
        if history and is_first:
            history.put_json(state.history)


def ray_trainer(workers: int, gpus_per_worker: float | None, cache: Location) -> Trainer:
    """Join or start Ray."""
    scaling = make_scaling(workers, gpus_per_worker, join_cluster([("--cache", cache)]))
    return Trainer(on_gpu=scaling.use_gpu, fit=partial(fit_on_ray, scaling=scaling), vectors=VectorCache(RayRunner()))


def make_scaling(workers: int, gpus_per_worker: float | None, cluster: Capacity) -> ScalingConfig:
    """Divide the cluster's CPUs among the workers."""
    gpus = cluster.gpus(gpus_per_worker)
    if cluster.room(1, gpus) < workers:
        raise RequestError(
            f"--workers: expected room for {workers} with 1 CPU and {gpus:g} GPUs each, got room for "
            f"{cluster.room(1, gpus)}: {cluster}; ask for fewer workers or a larger cluster"
        )
    most = int(max(n.get("CPU", 0) for n in cluster.alive))
    cpus = next(c for c in range(most, 0, -1) if cluster.room(c, gpus) >= workers)
    return ScalingConfig(
        num_workers=workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    )
