"""Where each epoch of a fit is reported: on standard output, and to TensorBoard, MLflow or Weights & Biases.

MLflow and W&B read from the environment where the figures go (MLFLOW_TRACKING_URI, WANDB_MODE and others).
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from raycase.errors import RequestError, WorkError, lacks_package, named, visible
from raycase.names import Track
from raycase.training.loop import show
from raycase.training.recipe import Recipe

Report = Callable[[Sequence[dict[str, float]]], None]  # takes the history of a fit after each epoch
Put = Callable[[dict[str, float], int], object]  # takes the figures of an epoch, and its number

PROJECT = "raycase"  # of W&B, and the experiment of MLflow, where the environment names none
EVENTS = "tensorboard"  # folder in the output
CLIENTS = {"tensorboard": "tensorboardX:SummaryWriter", "mlflow": "mlflow:MlflowClient", "wandb": "wandb:init"}


def check_track(to: Track | None) -> None:
    """Refuse a package or a key that lacks, and a service that does not answer; name the project if nothing does."""
    if to is None:
        return
    try:
        client = resolve_name(CLIENTS[to])
    except (ImportError, AttributeError) as error:  # a folder `wandb` of runs can be imported, too
        raise lacks_package(CLIENTS[to].split(":")[0], "track", f"for --track {to}") from error
    if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & {*os.environ}:
        os.environ["MLFLOW_EXPERIMENT_NAME"] = PROJECT
    os.environ.setdefault("WANDB_PROJECT", PROJECT)
    has_key = to != "wandb" or os.environ.get("WANDB_MODE") in ("offline", "disabled")
    with _answering(to, RequestError):
        if to == "mlflow":
            client().search_experiments(max_results=1)
        has_key = has_key or resolve_name("wandb:login")(prompt=False)
    if not has_key:
        raise RequestError("--track wandb: expected a key of W&B, got none; set WANDB_API_KEY or run: wandb login")


@dataclass
class Tracker:
    """Prints the epochs of fits and sends them to a service, where one is named, each fit as a run."""

    to: Track | None
    folder: Path  # of the model
    facts: Mapping[str, Any]  # parameters that all its fits share
    fits: int = 0  # so far

    @contextmanager
    def open_run(self, recipe: Recipe, shown: int = 0) -> Iterator[Report]:
        """Open the run of a fit; gives what takes its history as that grows. shown: epochs that were printed before."""
        if not self.fits and self.to:  # of an earlier training; one that resumes sends all
            shutil.rmtree(self.folder / EVENTS, ignore_errors=True)
        self.fits += 1
        parameters = {**self.facts, "epochs": recipe.epochs, "seed": recipe.seed}
        sent = 0
        with ExitStack() as stack:
            with _answering(self.to, WorkError):
                put = stack.enter_context(RUNS[self.to](self.folder, self.fits, parameters))

            def report(history: Sequence[dict[str, float]]) -> None:
                nonlocal sent
                for line in history[sent:]:
                    if sent >= shown:
                        show(line)
                    with _answering(self.to, WorkError):
                        put(line, int(line["epoch"]))
                    sent += 1

            yield report


@contextmanager
def _tensorboard(folder: Path, fit: int, parameters: dict[str, Any]) -> Iterator[Put]:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder / EVENTS / f"fit-{fit}")) as writer:
        writer.add_text("parameters", json.dumps(parameters))
        yield lambda figures, epoch: [writer.add_scalar(name, value, epoch) for name, value in figures.items()]


@contextmanager
def _mlflow(folder: Path, fit: int, parameters: dict[str, Any]) -> Iterator[Put]:
    import mlflow

    with mlflow.start_run(run_name=f"{folder.name}-{fit}", nested=True):
        mlflow.log_params(parameters)
        yield lambda figures, epoch: mlflow.log_metrics(figures, step=epoch)


@contextmanager
def _wandb(folder: Path, fit: int, parameters: dict[str, Any]) -> Iterator[Put]:
    import wandb

    settings = wandb.Settings(console="off")  # it would send what is printed
    with wandb.init(name=f"{folder.name}-{fit}", group=folder.name, config=parameters, settings=settings) as run:
        yield lambda figures, epoch: run.log(figures, step=epoch)


RUNS: dict[Track | None, Callable[[Path, int, dict[str, Any]], AbstractContextManager[Put]]] = {
    None: lambda *_: nullcontext(lambda figures, epoch: None),
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


@contextmanager
def _answering(to: Track | None, error_type: type[Exception]) -> Iterator[None]:
    """Raise an error of this type where a service does not take what it is given."""
    try:
        yield
    except Exception as error:
        raise error_type(f"--track {to}: expected it to take the figures, got {visible(named(error))}") from error
