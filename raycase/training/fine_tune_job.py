"""Fine-tuning a system with its encoder: the fit, the jobs, and what is the same for all jobs over pairs.

Shapes: N rated pairs, B pairs of a batch, b of one process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.commands.flags import Advanced
from raycase.encoder.loading import bf16_is_faster
from raycase.encoder.token_batch import TokenBatch
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs
from raycase.io.storage import Location
from raycase.models.configs import SystemConfig
from raycase.models.fine_tuned import pair_scores
from raycase.models.model_card import fine_tuned_card
from raycase.models.model_folder import begin_folder
from raycase.models.pairs import RatedTexts
from raycase.names import Compute, Loss
from raycase.training.job import SHARE, Ranges, TrainFlags, fit_metrics
from raycase.training.loop import FitState, computed_rows, fit, gather, restore
from raycase.training.losses import LOSSES, correlations, unit_ratings
from raycase.training.trainer import Trainer

POOL = 16  # batches whose pairs are sorted by length together


def autocast(module: nn.Module, compute: torch.dtype) -> torch.autocast:
    """Autocast of matrix products to `compute`; weights stay in 32 bits."""
    device = next(module.parameters()).device
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=compute is torch.bfloat16)


def compute_of(flags: TrainFlags, *, on_gpu: bool) -> Compute:
    """The workers' number format. Default: bfloat16 on GPUs and on processors that are faster with it."""
    return flags.compute or ("bfloat16" if on_gpu or bf16_is_faster(torch.device("cpu")) else "float32")


@dataclass(frozen=True, kw_only=True)
class FineTuneFlags(TrainFlags):
    """Fine-tune an encoder and save a model folder. `fit_data` tokenises."""

    learning_rate: float = 1e-4
    """Peak learning rate of AdamW."""
    batch_size: int = 32
    """Rated pairs per batch, over all workers."""
    dropout: Advanced[float | None] = None
    """Dropout of every layer of the encoder. Default: as in its configuration."""
    epochs: int = 3
    """Maximum number of epochs, over which the learning rate falls to 0."""

    RECIPE: ClassVar[tuple[str, ...]] = (*TrainFlags.RECIPE, "dropout")
    PATIENCE = 3
    WEIGHT_DECAY = 0.1
    WARMUP = 0.1
    TASK: ClassVar[str]  # what it is trained for, in fingerprints and `metrics.json`
    SELECT: ClassVar[str]  # the metric of early stopping

    def module(self, system: Any) -> Any:
        """The module to train, around what `config().trainable` returns."""
        return system

    @property
    def ranges(self) -> Ranges:
        return super().ranges | {"dropout": (self.dropout is None or 0 <= self.dropout < 1, SHARE)}

    @abstractmethod
    def batches(self, train: Any, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, determined by the seed."""

    @abstractmethod
    def batch_loss(self, train: Any, compute: torch.dtype, module: nn.Module, batch: np.ndarray) -> Tensor:
        """The loss of a whole batch."""

    @abstractmethod
    def evaluate(self, validation: Any, module: Any) -> dict[str, float]:
        """The metrics on the validation data."""

    def check_flags(self) -> None:
        super().check_flags()
        self.config()

    def identity(self, config: SystemConfig, parts: Sequence[Any]) -> dict[str, Any]:
        return super().identity(config, parts) | {"task": self.TASK}

    def fit_epochs(
        self, config: SystemConfig, train: Any, validation: Any, *, on_gpu: bool = False, **how: Any
    ) -> Iterator[FitState]:
        compute = getattr(torch, compute_of(self, on_gpu=on_gpu))  # of matrix products

        def evaluate(module: Any) -> dict[str, float]:
            with autocast(module, compute):
                return self.evaluate(validation, module)

        torch.manual_seed(self.seed)
        return fit(
            self.module(config.trainable(self.dropout, compute)),
            partial(self.batches, train),
            partial(self.batch_loss, train, compute),
            evaluate,
            **self.loop,
            select=self.SELECT,
            **how,
        )

    def fit_all(
        self, config: SystemConfig, parts: Sequence[Any], data: tuple[Any, Any], trainer: Trainer, checkpoints: Location
    ) -> FitState:
        chosen = replace(self, compute=compute_of(self, on_gpu=trainer.on_gpu))  # by this machine, for all workers
        return trainer.fit(chosen, config, *data, checkpoints=checkpoints)

    def save(
        self, config: SystemConfig, data: tuple[Any, Any], fitted: FitState, record: dict[str, Any]
    ) -> dict[str, Any]:
        metrics = {
            **record,
            "system": config.SYSTEM,
            "task": self.TASK,
            **fit_metrics(fitted),
            "parameters": sum(t.numel() for t in fitted.weights.values()),
            "compute": compute_of(self, on_gpu=record["on_gpu"]),
        }
        system = config.trainable(self.dropout)  # in 32 bits, in which adapters are merged
        restore(self.module(system), fitted.best)
        begin_folder(self.folder, metrics, fine_tuned_card(self.folder.name, config, metrics))
        system.save(self.folder)
        return metrics


# --------------------------------------------------------------------------------------------------- pairs with scores


@dataclass(frozen=True, kw_only=True)
class TokenizedRatedPairs:
    """Rated pairs, tokenised. groups: (N,), equal for pairs of the same two sentences, which share a batch."""

    texts: RatedTexts | TokenBatch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply
    groups: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PairFlags(FineTuneFlags):
    """Fine-tune an encoder until pairs get the scores that people gave them. Those labelled -1 are not trained on."""

    SELECT = "spearman"

    @abstractmethod
    def loss_of(self, scores_B: Tensor, ratings_B: Tensor) -> Tensor:
        """The loss over what the module gives for a whole batch."""

    def fit_data(self, shared: Sequence[RatedPairs]) -> tuple[TokenizedRatedPairs, TokenizedRatedPairs]:
        config: Any = self.config()
        train, validation = (
            TokenizedRatedPairs(texts=config.rated(rated), ratings=rated.ratings, groups=rated.groups)
            for rated in shared
        )
        return train, validation

    def module(self, system: Any) -> Any:
        return pair_scores(system)

    def batches(self, train: TokenizedRatedPairs, epoch: int) -> list[np.ndarray]:
        rated = np.flatnonzero(train.ratings != NOT_APPLICABLE)
        return length_batches(train.texts.lengths, train.groups, rated, self.batch_size, self.seed, epoch)

    def batch_loss(
        self, train: TokenizedRatedPairs, compute: torch.dtype, module: nn.Module, batch: np.ndarray
    ) -> Tensor:
        rows_b, count = computed_rows(batch)
        with autocast(module, compute):
            scores_b = module(train.texts.take(rows_b))[:count]
        scores_B = gather(scores_b, len(batch))
        return self.loss_of(scores_B, torch.from_numpy(train.ratings[batch]).to(scores_B.device))  # indexing copies

    def evaluate(self, validation: TokenizedRatedPairs, module: Any) -> dict[str, float]:
        return correlations(module.scores(validation.texts), validation.ratings)


@dataclass(frozen=True, kw_only=True)
class RatedFlags(PairFlags):
    """Fine-tune an encoder on rated pairs."""

    loss: Advanced[Loss] = Loss.SQUARED
    """squared is the papers' mean squared error; pearson one minus the correlation over the batch."""

    RECIPE = (*PairFlags.RECIPE, "loss")
    TASK = "rated"

    def loss_of(self, scores_B: Tensor, ratings_B: Tensor) -> Tensor:
        return LOSSES[self.loss](scores_B, unit_ratings(ratings_B))


def length_batches(
    lengths_N: np.ndarray, groups_N: np.ndarray, rows: np.ndarray, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Every row of `rows` once, in batches of similar length; determined by seed and epoch.

    Similar lengths need little padding. Groups stay together, so that the texts they share are encoded once. Groups are
    shuffled, cut into pools of `POOL` batches and sorted within a pool; then the batches are shuffled. One batch may be
    short.
    """
    _, of_row = np.unique(groups_N[rows], return_inverse=True)
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(of_row.max() + 1)[of_row]  # the random position of each row's group
    order = rows[np.argsort(shuffled, kind="stable")]
    pools = np.split(order, range(POOL * batch_size, len(order), POOL * batch_size))
    ordered = np.concatenate([_by_length(pool, lengths_N, groups_N) for pool in pools])
    batches = np.split(ordered, range(batch_size, len(ordered), batch_size))
    return [batches[i] for i in random.permutation(len(batches))]


def _by_length(rows: np.ndarray, lengths_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """Rows sorted by the length of the first row of their group."""
    _, first, of_row = np.unique(groups_N[rows], return_index=True, return_inverse=True)
    return rows[np.lexsort((of_row, lengths_N[rows[first]][of_row]))]
