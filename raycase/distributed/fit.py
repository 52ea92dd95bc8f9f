"""The training loop on Ray Train. Small, since Ray Train's controller and workers import this module."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import Any

import ray
import ray.train.torch
import torch
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray.exceptions import RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train.torch import TorchTrainer

from raycase.data.storage import Location
from raycase.distributed.cluster import cause, nodes
from raycase.errors import RequestError, WorkError
from raycase.training.checkpoint import Checkpoint, Fitting, resumed, show
from raycase.training.loop import FitState, rank

POLL_S, FAR_POLL_S = 0.2, 5.0  # seconds between two reads of the history, on a local disk and on object storage
FAILURES = 3  # tolerated failures of workers; after each, the workers resume from the last state


def fit_on_ray(
    fitting: Fitting,
    train: Any,
    validation: Any,
    recipe: Any,
    *,
    seed: int,
    scaling: ScalingConfig,
    checkpoints: Location,
) -> FitState:
    """Run `fitting` on data-parallel workers, from the state in `checkpoints` if any; prints a line for each epoch.

    The state is one safetensors file, which rank 0 writes atomically: a run killed while writing keeps the previous
    state. (Ray Train's snapshots are not atomic, and each of its reports waits for the next poll of the controller.)
    Raises WorkError.
    """
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")  # the default notices the end 2 s late
    checkpoint = Checkpoint(checkpoints)
    checkpoint.failure.remove()
    storage: dict[str, Any] = {"storage_path": checkpoints.path}
    if not checkpoints.is_local:
        storage["storage_filesystem"] = PyFileSystem(FSSpecHandler(checkpoints.fs))
    trainer = TorchTrainer(
        _fit_worker,
        train_loop_config={
            "fitting": fitting,
            "train": ray.put(train),
            "validation": ray.put(validation),
            "recipe": recipe,
            "seed": seed,
            "threads": int(scaling.resources_per_worker["CPU"]),
            "checkpoint": checkpoint,
        },
        scaling_config=scaling,
        run_config=RunConfig(name="ray", failure_config=FailureConfig(max_failures=FAILURES), **storage),
    )
    ended: list[Exception | None] = []
    # In the main thread, Ray Train would handle SIGINT and end the process with status 0.
    threading.Thread(target=lambda: ended.append(_error_of(trainer)), daemon=True).start()
    shown = len(checkpoint.read_history())
    while True:
        is_over = bool(ended)
        for line in checkpoint.read_history()[shown:]:
            show(line)
            shown += 1
        if is_over:
            break
        time.sleep(POLL_S if checkpoints.is_local else FAR_POLL_S)
    if checkpoint.failure.exists():
        raise WorkError(checkpoint.failure.read_json()["error"])
    if ended[0] is not None:
        raise cause(ended[0]) from ended[0]
    state = checkpoint.read()
    assert state is not None, "a fit that ended has written its state"
    return state


def _error_of(trainer: TorchTrainer) -> Exception | None:
    """Run the training; returns its error, or that of the first failed worker, or None."""
    try:
        trainer.fit()
    except WorkerGroupError as error:
        return next(iter(error.worker_failures.values()), error)
    except (RayError, TrainingFailedError) as error:
        return error
    return None


def _fit_worker(config: dict[str, Any]) -> None:
    """Run the fit in a worker and write its states to the checkpoint."""
    torch.set_num_threads(max(1, config["threads"]))
    checkpoint: Checkpoint = config["checkpoint"]
    train, validation = ray.get([config["train"], config["validation"]])
    states = resumed(
        config["fitting"],
        train,
        validation,
        config["recipe"],
        seed=config["seed"],
        checkpoint=checkpoint,
        wrap=ray.train.torch.prepare_model,
    )
    try:
        deque(states, maxlen=0)
    except WorkError as error:  # every worker gets the same loss, so a restart would not help
        if rank() == 0:
            checkpoint.failure.put_json({"error": str(error)})


def make_scaling(workers: int, gpus_per_worker: float | None) -> ScalingConfig:
    """Divide the cluster's CPUs among the workers. Raises RequestError for workers that do not fit."""
    alive = nodes()
    gpus = gpus_per_worker if gpus_per_worker is not None else float(any(n.get("GPU") for n in alive))
    if gpus < 0:
        raise RequestError(f"--gpus-per-worker: expected 0 or more, got {gpus}")

    def fitting_workers(cpus: int) -> int:
        """Number of workers with `cpus` CPUs each that fit."""
        return sum(int(min(n.get("CPU", 0) / cpus, n.get("GPU", 0) / gpus if gpus else math.inf)) for n in alive)

    if fitting_workers(1) < workers:
        described = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in alive)
        raise RequestError(
            f"--workers: expected {workers} with 1 CPU and {gpus:g} GPUs each, got nodes with {described}; "
            "ask for fewer workers or a larger cluster"
        )
    most = int(max(n.get("CPU", 0) for n in alive))
    cpus = next(c for c in range(most, 0, -1) if fitting_workers(c) >= workers)
    return ScalingConfig(
        num_workers=workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    )
