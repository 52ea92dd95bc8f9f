"""Fine-tuning a system for an objective; the objective of rated pairs; the jobs.

Shapes: N rated pairs, B pairs of a batch, b of one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.loading import bf16_is_faster
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import check_ranges
from raycase.io.rated import NOT_APPLICABLE, RatedPairs
from raycase.models.fine_tuned import FineTunedConfig, pair_scores
from raycase.models.model_card import tuned_card
from raycase.models.model_folder import write_folder
from raycase.models.pairs import RatedTexts
from raycase.training.job import TrainingJob, fit_metrics
from raycase.training.loop import (
    Batches,
    BatchLoss,
    Evaluation,
    FitState,
    computed_rows,
    fit,
    gather,
    restore,
    unwrapped,
)
from raycase.training.losses import LOSSES, correlations, unit_ratings
from raycase.training.recipe import RatedRecipe, TuneRecipe
from raycase.training.trainer import Fitting

POOL = 16  # batches whose pairs are sorted by length together


@dataclass(frozen=True, kw_only=True)
class TunePairs:
    """Rated pairs, tokenised. groups: (N,), equal for pairs of the same two sentences, which share a batch."""

    texts: RatedTexts | TokenBatch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply
    groups: np.ndarray

    @classmethod
    def of(cls, config: Any, rated: RatedPairs) -> TunePairs:
        """Tokenise rated pairs. Raises RequestError for a text that cannot be encoded."""
        return cls(texts=config.rated(rated), ratings=rated.ratings, groups=rated.groups)


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """What a system is fine-tuned for: the module, batches, loss and evaluation of one kind of data."""

    TASK: ClassVar[str]  # its name in fingerprints and `metrics.json`
    SELECT: ClassVar[str]  # the metric of early stopping
    PATIENCE: ClassVar[int] = 3  # epochs without a better one, after which a fit stops

    config: Any  # of the system
    compute: torch.dtype = torch.float32  # of matrix products

    @abstractmethod
    def texts(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Training and validation data, tokenised. Raises RequestError for a text that cannot be encoded."""

    @abstractmethod
    def module(self, system: Any) -> Any:
        """The module to train, around what `config.trainable` returns."""

    @abstractmethod
    def batches(self, train: Any, recipe: TuneRecipe, seed: int) -> Batches:
        """The batches of each epoch, determined by the seed."""

    @abstractmethod
    def batch_loss(self, train: Any, recipe: TuneRecipe) -> BatchLoss:
        """The loss of a whole batch."""

    @abstractmethod
    def evaluation(self, train: Any, validation: Any) -> Evaluation:
        """The metrics on the validation data."""

    def autocast(self, module: nn.Module) -> torch.autocast:
        """Autocast of matrix products to `compute`; weights stay in 32 bits."""
        device = next(module.parameters()).device
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.compute is torch.bfloat16)


def fit_tuned(
    train: Any,
    validation: Any,
    recipe: TuneRecipe,
    objective: Objective,
    *,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fine-tune a system for an objective; yields the state after each epoch.

    `wrap` moves the module to its device and wraps it for several processes.
    """
    torch.manual_seed(seed)
    module = wrap(objective.module(objective.config.trainable(recipe.dropout, objective.compute)))
    return fit(
        module,
        objective.batches(train, recipe, seed),
        objective.batch_loss(train, recipe),
        objective.evaluation(train, validation),
        recipe.fit_config(seed, select=objective.SELECT, patience=objective.PATIENCE),
        state=state,
    )


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Pairs get the scores that people gave them. Pairs labelled -1 are not trained on."""

    TASK = "rated"
    SELECT = "spearman"

    def loss(self, scores_B: Tensor, ratings_B: Tensor, recipe: Any) -> Tensor:
        """The loss over what the module gives for a whole batch."""
        return LOSSES[recipe.loss](scores_B, unit_ratings(ratings_B))

    def texts(self, parts: Sequence[RatedPairs]) -> list[TunePairs]:
        return [TunePairs.of(self.config, rated) for rated in parts]

    def module(self, system: Any) -> Any:
        return pair_scores(system)

    def batches(self, train: TunePairs, recipe: TuneRecipe, seed: int) -> Batches:
        rated = np.flatnonzero(train.ratings != NOT_APPLICABLE)
        return length_batches(train.texts.lengths, train.groups, rated, recipe.batch_size, seed)

    def batch_loss(self, train: TunePairs, recipe: TuneRecipe) -> BatchLoss:
        ratings_N = torch.tensor(train.ratings)

        def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
            rows_b, count = computed_rows(batch)
            with self.autocast(module):
                scores_b = module(train.texts.take(rows_b))[:count]
            scores_B = gather(scores_b, len(batch))
            return self.loss(scores_B, ratings_N[batch].to(scores_B.device), recipe)

        return of_batch

    def evaluation(self, train: TunePairs, validation: TunePairs) -> Evaluation:
        def evaluate(module: nn.Module) -> dict[str, float]:
            module = unwrapped(module)
            with self.autocast(module):
                return correlations(module.scores(validation.texts), validation.ratings)  # type: ignore[operator]

        return evaluate


def length_batches(
    lengths_N: np.ndarray, groups_N: np.ndarray, rows: np.ndarray, batch_size: int, seed: int
) -> Batches:
    """Every row of `rows` once per epoch, in batches of similar length; determined by seed and epoch.

    Similar lengths need little padding. Groups stay together, so that the texts they share are encoded once. Groups are
    shuffled, cut into pools of `POOL` batches and sorted within a pool; then the batches are shuffled. One batch may be
    short.
    """
    _, of_row = np.unique(groups_N[rows], return_inverse=True)

    def batches(epoch: int) -> Iterator[np.ndarray]:
        random = np.random.default_rng([seed, epoch])
        shuffled = random.permutation(of_row.max() + 1)[of_row]  # the random position of each row's group
        order = rows[np.argsort(shuffled, kind="stable")]
        pool = POOL * batch_size
        parts = [order[start : start + pool] for start in range(0, len(order), pool)]
        ordered = np.concatenate([_by_length(part, lengths_N, groups_N) for part in parts])
        cut_batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
        yield from (cut_batches[i] for i in random.permutation(len(cut_batches)))

    return batches


def _by_length(rows: np.ndarray, lengths_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """Rows sorted by the length of the first row of their group."""
    _, first, of_row = np.unique(groups_N[rows], return_index=True, return_inverse=True)
    return rows[np.lexsort((of_row, lengths_N[rows[first]][of_row]))]


# ------------------------------------------------------------------------------------------------------------- the jobs


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(TrainingJob):
    """Fine-tune an encoder and save a model folder."""

    @abstractmethod
    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""

    @abstractmethod
    def objective(self, config: FineTunedConfig) -> Objective:
        """What the system is fine-tuned for."""

    def check_flags(self) -> None:
        self.recipe.check()
        check_ranges(self)
        self.config()

    def identity(self, config: FineTunedConfig, parts: Sequence[Any]) -> dict[str, Any]:
        return super().identity(config, parts) | {"task": self.objective(config).TASK}

    def prepared(self, shared: Sequence[Any]) -> tuple[Any, Any]:
        train, validation = self.objective(self.config()).texts(shared)
        return train, validation

    def fitting(self, *, on_gpu: bool) -> Fitting:
        return partial(fit_tuned, objective=self._objective(on_gpu=on_gpu))

    def _objective(self, *, on_gpu: bool) -> Objective:
        return replace(self.objective(self.config()), compute=compute_of(self, on_gpu=on_gpu))

    def save(
        self, config: FineTunedConfig, data: tuple[Any, Any], fitted: FitState, record: dict[str, Any]
    ) -> dict[str, Any]:
        objective = self._objective(on_gpu=record["on_gpu"])
        metrics = {
            **record,
            "system": config.SYSTEM,
            "task": objective.TASK,
            **fit_metrics(fitted),
            "parameters": sum(t.numel() for t in fitted.weights.values()),
            "compute": str(objective.compute).removeprefix("torch."),
        }
        system = config.trainable(self.recipe.dropout)  # in 32 bits, in which adapters are merged
        restore(objective.module(system), fitted.best)
        write_folder(self.folder, metrics, tuned_card(self.folder.name, config, metrics), system.save)
        return metrics


@dataclass(frozen=True, kw_only=True)
class RatedJob(FineTuneJob, RatedRecipe):
    """Fine-tune an encoder on rated pairs."""

    RECIPE = RatedRecipe

    def objective(self, config: FineTunedConfig) -> Objective:
        return PairObjective(config=config)


def compute_of(job: TrainingJob, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format. Default: bfloat16 on GPUs and on processors that are faster with it."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_faster(torch.device("cpu")) else torch.float32
