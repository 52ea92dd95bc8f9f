"""Fine-tuning jobs: read the data, fine-tune a system, save a model folder."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from raycase.data.provenance import provenance
from raycase.data.storage import fingerprint
from raycase.encoder.loading import bf16_is_faster
from raycase.errors import note
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.model_card import tuned_card
from raycase.systems.model_folder import open_model_folder, write_folder
from raycase.training.encoder_fit import Objective, TuneRecipe, fit_tuned
from raycase.training.loop import restore
from raycase.training.projector_job import Source, Workers, fit_metrics, open_checkpoints
from raycase.training.runner import OpenRunner


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(Source, Workers, ABC):
    """Fine-tune an encoder and save a model folder.

    A run that was stopped resumes from its last epoch when the same command is run again.
    """

    @property
    @abstractmethod
    def recipe(self) -> TuneRecipe:
        """Everything that determines the weights besides the data, the system and the seed."""

    @abstractmethod
    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""

    @abstractmethod
    def objective(self, config: FineTunedConfig) -> Objective:
        """What the system is fine-tuned for. Raises RequestError for flags that contradict each other."""

    @abstractmethod
    def read_parts(self) -> tuple[Any, Any]:
        """Read the training and the validation data. Raises RequestError."""

    @abstractmethod
    def task_of(self, config: FineTunedConfig, train: Any, validation: Any) -> Task:
        """The task on data that `read_parts` read."""

    def read_task(self, config: FineTunedConfig) -> Task:
        """Read the data. Raises RequestError, first of all for flags."""
        self.objective(config)
        return self.task_of(config, *self.read_parts())


@dataclass(frozen=True, kw_only=True)
class Task:
    """Training and validation data, and what to fine-tune for on them."""

    identity: list[Any]  # the task's name, then everything besides the recipe that determines the weights
    data: dict[str, dict[str, Any]]  # of each part, for `metrics.json`
    texts: Callable[[], Sequence[Any]]  # training and validation, tokenised
    objective: Objective


def fine_tune(job: FineTuneJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Fine-tune and save; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    began = time.time()
    job.check_source()
    job.recipe.check()
    job.check_workers()
    config = job.config()
    task = job.read_task(config)
    identity = identity_of(job, config, task)
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        note(f"{job.folder}: trained before; nothing to do")
        return done
    train, validation = task.texts()
    runner = open_runner(workers=job.workers, gpus_per_worker=job.gpus_per_worker, cache=job.cache_location)
    checkpoints = open_checkpoints(job, name)
    objective = objective_of(job, task, on_gpu=runner.on_gpu)
    fitting = partial(fit_tuned, objective=objective)
    state = runner.fit(fitting, train, validation, job.recipe, seed=job.seed, checkpoints=checkpoints)
    metrics = {
        "fingerprint": name,
        "unseeded": fingerprint(identity | {"seed": None}),  # equal for the seeds of one system
        "system": config.SYSTEM,
        "task": task.identity[0],
        **fit_metrics(state),
        "data": task.data,
        "parameters": sum(t.numel() for t in state.weights.values()),
        "compute": str(objective.compute).removeprefix("torch."),
        "recipe": asdict(job.recipe),
        "seed": job.seed,
        "workers": job.workers,
        "seconds": round(time.time() - began, 1),
        "provenance": provenance(),
    }
    system = config.trainable(job.recipe.dropout)  # in 32 bits, in which adapters are merged
    restore(objective.module(system), state.best)
    write_folder(job.folder, metrics, tuned_card(job.folder.name, config.label, metrics), system.save)
    checkpoints.remove()
    return metrics


def identity_of(job: FineTuneJob, config: FineTunedConfig, task: Task) -> dict[str, Any]:
    """Everything that determines the weights."""
    return {
        "model": config.describe(),
        "compute": job.compute,
        "task": task.identity,
        "data": {part: values["sha256"] for part, values in task.data.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }


def objective_of(job: FineTuneJob, task: Task, *, on_gpu: bool) -> Objective:
    """The objective in the number format of the processor."""
    return replace(task.objective, compute=compute_of(job, on_gpu=on_gpu))


def compute_of(job: Source, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format. Default: bfloat16 on GPUs and on processors that are faster with it."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_faster(torch.device("cpu")) else torch.float32
