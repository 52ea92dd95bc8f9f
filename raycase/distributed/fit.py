"""Ray Train around the training loop. Its controller and its workers import this module: it stays small."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from raycase.training.loop import FitState, rank

LOOK_S, FAR_LOOK_S = 0.2, 5.0  # between two looks at the lines, on a local disk and on object storage
KEEP_S = 1.0  # between two states; a run that is killed loses so much at most
SHOWN = {"spearman": "Spearman", "pearson": "Pearson", "mrr": "MRR", "hits@1": "hits@1", "hits@10": "hits@10"}
SHOWN |= {"rte": "RTE", "eis": "EIS"}
FAILURES = 3  # of workers, before the run fails; each goes on from the last epoch


def fit_on_ray(
    fitting: Callable[..., Iterator[FitState]],
    train: Any,
    validation: Any,
    recipe: Any,
    *,
    seed: int,
    scaling: ScalingConfig,
    checkpoints: Location,
) -> FitState:
    """`fitting` over data-parallel workers; goes on from the state in `checkpoints`. Prints a line an epoch.

    `fitting` is called as `fit_projector` is: (train, validation, recipe, seed=, state=, wrap=).

    The state is one safetensors file, put as a whole by the first worker after an epoch, once a second at most: a run
    that is killed while it writes has the one before. (Ray Train's own snapshot is not written atomically, and each of
    its reports waits for the controller's next look.) Raises WorkError.
    """
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")  # else the end is noticed 2 s late
    files = Files(checkpoints)
    files.failure.remove()
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
            "files": files,
        },
        scaling_config=scaling,
        run_config=RunConfig(name="ray", failure_config=FailureConfig(max_failures=FAILURES), **storage),
    )
    ended: list[Exception | None] = []
    # Outside of the main thread, Ray Train leaves SIGINT alone; its handler would end the process with status 0.
    threading.Thread(target=lambda: ended.append(_error_of(trainer)), daemon=True).start()
    shown = len(files.lines())
    while True:
        over = bool(ended)
        for line in files.lines()[shown:]:
            show(line)
            shown += 1
        if over:
            break
        time.sleep(LOOK_S if checkpoints.is_local else FAR_LOOK_S)
    if files.failure.exists():
        raise WorkError(files.failure.read_json()["error"])
    if ended[0] is not None:
        raise cause(ended[0]) from ended[0]
    return FitState.from_bytes(files.state.read())


@dataclass(frozen=True)
class Files:
    """What a fit keeps while it runs: where it stands, its lines, and what made it impossible."""

    root: Location

    @property
    def state(self) -> Location:
        return self.root / "state.safetensors"

    @property
    def history(self) -> Location:
        return self.root / "history.json"

    @property
    def failure(self) -> Location:
        return self.root / "failure.json"

    def keep(self, state: FitState) -> None:
        """Put the state, then its lines."""
        self.state.put(state.to_bytes())
        self.history.put_json(state.history)

    def lines(self) -> list[dict[str, float]]:
        """The lines of the epochs so far."""
        return list(self.history.read_json()) if self.history.exists() else []


def _error_of(trainer: TorchTrainer) -> Exception | None:
    """What the training ended with; of failed workers, the first one's error."""
    try:
        trainer.fit()
    except WorkerGroupError as error:
        return next(iter(error.worker_failures.values()), error)
    except (RayError, TrainingFailedError) as error:
        return error
    return None


def show(line: dict[str, float]) -> None:
    """Print an epoch's line."""
    scores = "".join(f"{said} {line[name]:6.2f}  " for name, said in SHOWN.items() if name in line)
    print(
        f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}  {scores}{line['seconds']:.2f} s  {line['mib']:,} MiB",
        flush=True,
    )


def _fit_worker(config: dict[str, Any]) -> None:
    """What each worker runs: the fit, keeping where it stands."""
    torch.set_num_threads(max(1, config["threads"]))
    files: Files = config["files"]
    state = FitState.from_bytes(files.state.read()) if files.state.exists() else None
    train, validation = ray.get([config["train"], config["validation"]])
    fitting = config["fitting"](
        train, validation, config["recipe"], seed=config["seed"], state=state, wrap=ray.train.torch.prepare_model
    )
    kept = time.monotonic()
    last: FitState | None = None
    try:
        for last in fitting:
            if rank() == 0 and time.monotonic() - kept >= KEEP_S:
                files.keep(last)
                kept = time.monotonic()
        if rank() == 0 and last is not None:
            files.keep(last)
    except WorkError as error:  # every worker sees the same loss; starting them again would not help
        if rank() == 0:
            files.failure.put_json({"error": str(error)})


def make_scaling(workers: int, gpus_per_worker: float | None) -> ScalingConfig:
    """Share the cluster's CPUs out among the workers. Raises RequestError where they do not fit."""
    alive = nodes()
    gpus = gpus_per_worker if gpus_per_worker is not None else float(any(n.get("GPU") for n in alive))
    if gpus < 0:
        raise RequestError(f"--gpus-per-worker: expected 0 or more, got {gpus}")

    def room(cpus: int) -> int:
        """How many workers with so many CPUs fit."""
        return sum(int(min(n.get("CPU", 0) / cpus, n.get("GPU", 0) / gpus if gpus else math.inf)) for n in alive)

    if room(1) < workers:
        found = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in alive)
        raise RequestError(
            f"--workers: expected {workers} with 1 CPU and {gpus:g} GPUs each, got nodes with {found}; "
            "ask for fewer workers or a larger cluster"
        )
    most = int(max(n.get("CPU", 0) for n in alive))
    cpus = next(c for c in range(most, 0, -1) if room(c) >= workers)
    return ScalingConfig(
        num_workers=workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    )
