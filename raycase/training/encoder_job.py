"""Fine-tuning: a job reads its data, fine-tunes an encoder by a system, saves a model folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from raycase.data.provenance import provenance
from raycase.data.storage import fingerprint
from raycase.encoder.loading import bf16_is_native
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.model_card import tuned_card
from raycase.systems.model_folder import open_model_folder, write_folder
from raycase.training.encoder_fit import TuneRecipe
from raycase.training.loop import FitState, restore
from raycase.training.projector_job import Source, Workers, fit_metrics, open_checkpoints
from raycase.training.runner import OpenRunner


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(Source, Workers):
    """Fine-tune an encoder and save a model folder; each system adds its choices.

    A stopped run resumes from its last epoch when the same command is run again.
    """

    @property
    def recipe(self) -> TuneRecipe:
        """What decides the weights besides the data, the system and the seed."""
        raise NotImplementedError

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        raise NotImplementedError

    def read_task(self, config: FineTunedConfig) -> Task:
        """The data and the fit. Raises RequestError."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data and the fit of a job."""

    identity: list[Any]  # its name, and what decides the weights besides the recipe
    data: dict[str, dict[str, Any]]  # what `metrics.json` says of each part
    texts: Callable[[], Sequence[Any]]  # training and validation, tokenised
    fitting: Callable[..., Iterator[FitState]]
    module: Callable[[Any], Any]  # what `fitting` fits, around the system that `FineTunedConfig.trainable` returns


def fine_tune(job: FineTuneJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Fine-tune and save; returns what `metrics.json` holds. Raises RequestError and WorkError."""
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
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    train, validation = task.texts()
    runner = open_runner(workers=job.workers, gpus_per_worker=job.gpus_per_worker, cache=job.cache_location)
    checkpoints = open_checkpoints(job, name)
    compute = _compute(job, on_gpu=runner.on_gpu)
    fitting = partial(task.fitting, compute=compute)
    state = runner.fit(fitting, train, validation, job.recipe, seed=job.seed, checkpoints=checkpoints)
    metrics = {
        "fingerprint": name,
        "system": config.SYSTEM,
        "task": task.identity[0],
        **fit_metrics(state),
        "data": task.data,
        "parameters": sum(t.numel() for t in state.weights.values()),
        "compute": str(compute).removeprefix("torch."),
        "recipe": asdict(job.recipe),
        "seed": job.seed,
        "workers": job.workers,
        "seconds": round(time.time() - began, 1),
        "provenance": provenance(),
    }
    system = config.trainable(job.recipe.dropout)  # in 32 bits, as adapters are merged
    restore(task.module(system), state.best)
    write_folder(job.folder, metrics, tuned_card(job.folder.name, config.label, metrics), system.save)
    checkpoints.remove()
    return metrics


def _compute(job: FineTuneJob, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format: bfloat16 on GPUs, and where this machine's processor has it."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_native(torch.device("cpu")) else torch.float32
