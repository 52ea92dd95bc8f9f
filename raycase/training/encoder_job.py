"""Fine-tuning jobs: read the data, fine-tune a system, save a model folder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from raycase.data.provenance import provenance
from raycase.data.storage import Location
from raycase.encoder.loading import bf16_is_faster
from raycase.errors import check_ranges
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.model_card import tuned_card
from raycase.systems.model_folder import write_folder
from raycase.training.checkpoint import Fitting
from raycase.training.encoder_fit import Objective, TuneRecipe, fit_tuned
from raycase.training.job import TrainingJob, fit_metrics
from raycase.training.loop import FitState, restore
from raycase.training.runner import Runner


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(TrainingJob):
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
    def task_of(self, config: FineTunedConfig, train: Any, validation: Any) -> TuningTask:
        """The task on data that `read_parts` read."""

    def check_flags(self) -> None:
        """Raise RequestError for flags out of their range, or that contradict each other."""
        self.recipe.check()
        check_ranges(self)
        self.objective(self.config())

    def identity(self, config: FineTunedConfig, parts: Sequence[Any]) -> dict[str, Any]:
        """Everything that determines the weights."""
        return super().identity(config, parts) | {"task": self.task_of(config, *parts).identity}

    def prepared(self, shared: Sequence[Any]) -> tuple[Any, Any]:
        """The texts, tokenised."""
        train, validation = self.task_of(self.config(), *shared).texts()
        return train, validation

    def fitting(self, *, on_gpu: bool) -> Fitting:
        """The fine-tuning in the number format of the processor."""
        return partial(fit_tuned, objective=self._objective(on_gpu=on_gpu))

    def _objective(self, *, on_gpu: bool) -> Objective:
        return replace(self.objective(self.config()), compute=compute_of(self, on_gpu=on_gpu))

    def fit(
        self,
        config: FineTunedConfig,
        parts: Sequence[Any],
        data: tuple[Any, Any],
        runner: Runner,
        checkpoints: Location,
    ) -> tuple[FitState, bool]:
        """The state of the fit, and whether it was on a GPU."""
        return super().fit(config, parts, data, runner, checkpoints), runner.on_gpu

    def save(
        self,
        config: FineTunedConfig,
        parts: dict[str, Any],
        data: tuple[Any, Any],
        fitted: tuple[FitState, bool],
        record: dict[str, Any],
    ) -> dict[str, Any]:
        """Write the model folder of a fit; returns the contents of `metrics.json`."""
        state, on_gpu = fitted
        task, objective = self.task_of(config, *parts.values()), self._objective(on_gpu=on_gpu)
        metrics = {
            **record,
            "system": config.SYSTEM,
            "task": task.identity[0],
            **fit_metrics(state),
            "data": task.data,
            "parameters": sum(t.numel() for t in state.weights.values()),
            "compute": str(objective.compute).removeprefix("torch."),
            "recipe": self.recipe.record,
            "provenance": provenance(),
        }
        system = config.trainable(self.recipe.dropout)  # in 32 bits, in which adapters are merged
        restore(objective.module(system), state.best)
        write_folder(self.folder, metrics, tuned_card(self.folder.name, config, metrics), system.save)
        return metrics


@dataclass(frozen=True, kw_only=True)
class TuningTask:
    """Training and validation data of a fine-tuning."""

    identity: list[Any]  # the task's name, then everything besides the recipe that determines the weights
    data: dict[str, dict[str, Any]]  # of each part, for `metrics.json`
    texts: Callable[[], Sequence[Any]]  # training and validation, tokenised


def compute_of(job: TrainingJob, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format. Default: bfloat16 on GPUs and on processors that are faster with it."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_faster(torch.device("cpu")) else torch.float32
