"""Fine-tuning jobs: read the data, fine-tune a system, save a model folder."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from raycase.data.provenance import provenance
from raycase.encoder.loading import bf16_is_native
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.model_card import tuned_card
from raycase.systems.model_folder import open_model_folder, write_folder
from raycase.training.encoder_fit import Objective, TuneRecipe, fit_tuned
from raycase.training.loop import restore
from raycase.training.projector_job import Source, Workers, fingerprints, fit_metrics, open_checkpoints
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
    def read_task(self, config: FineTunedConfig) -> Task:
        """Read the training and validation data. Raises RequestError."""


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
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "task": task.identity,
        "data": {part: values["sha256"] for part, values in task.data.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }
    prints = fingerprints(identity)
    name = prints["fingerprint"]
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    train, validation = task.texts()
    runner = open_runner(workers=job.workers, gpus_per_worker=job.gpus_per_worker, cache=job.cache_location)
    checkpoints = open_checkpoints(job, name)
    objective = replace(task.objective, compute=compute_of(job, on_gpu=runner.on_gpu))
    fitting = partial(fit_tuned, objective=objective)
    state = runner.fit(fitting, train, validation, job.recipe, seed=job.seed, checkpoints=checkpoints)
    metrics = {
        **prints,
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


def compute_of(job: Source, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format. Default: bfloat16 on GPUs and on processors that support it, else float32."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_native(torch.device("cpu")) else torch.float32
