"""Fine-tuning a system with its encoder, and what is the same for all that learn from pairs with scores.

Shapes: N rated pairs, B pairs of a batch, b of one process.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.loading import bf16_is_faster
from raycase.encoder.token_batch import TokenBatch
from raycase.evaluation.metrics import correlations
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs
from raycase.models.fine_tuned import pair_scores
from raycase.models.model_folder import begin_folder
from raycase.models.pairs import RatedTexts
from raycase.names import TrainCompute
from raycase.training.loop import FitState, Learner, computed_rows, gather, restore
from raycase.training.procedure import Training, fine_tuned_card, fit_metrics
from raycase.training.recipe import LOSSES, Loss, Recipe, unit_ratings

POOL = 16  # batches whose pairs are sorted by length together


def autocast(module: nn.Module, compute: torch.dtype) -> torch.autocast:
    """Autocast of matrix products to `compute`; weights stay in 32 bits."""
    device = next(module.parameters()).device
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=compute is torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class FineTuning(Training):
    """A system that is trained with its encoder."""

    dropout: float | None  # of every layer of the encoder; None: as in its configuration
    task: str  # what it is trained for, in fingerprints and `metrics.json`

    def on(self, *, gpu: bool) -> Self:
        """With the number format of this machine: bfloat16 on GPUs and on processors that are faster with it."""
        default: TrainCompute = "bfloat16" if gpu or bf16_is_faster(torch.device("cpu")) else "float32"
        return replace(self, compute=self.compute or default)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of matrix products, once `on` has chosen it."""
        assert self.compute is not None
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[self.compute]

    def module(self, system: Any) -> Any:
        """The module to train, around what `config.trainable` returns."""
        return system

    @abstractmethod
    def batches(self, recipe: Recipe, train: Any, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, determined by the seed."""

    @abstractmethod
    def batch_loss(self, train: Any, module: nn.Module, batch: np.ndarray) -> Tensor:
        """The loss of a whole batch."""

    @abstractmethod
    def evaluate(self, validation: Any, module: Any) -> dict[str, float]:
        """The metrics on the validation data."""

    def identity(self, parts: Sequence[Any]) -> dict[str, Any]:
        return super().identity(parts) | {"task": self.task}

    def learner(self, recipe: Recipe, train: Any, validation: Any) -> Learner:
        def evaluate(module: Any) -> dict[str, float]:
            with autocast(module, self.dtype):
                return self.evaluate(validation, module)

        torch.manual_seed(recipe.seed)
        module = self.module(self.config.trainable(self.dropout, self.dtype))
        return Learner(module, partial(self.batches, recipe, train), partial(self.batch_loss, train), evaluate)

    def save(self, folder: Path, data: tuple[Any, Any], fitted: FitState, record: dict[str, Any]) -> dict[str, Any]:
        metrics = {
            **record,
            "system": self.config.SYSTEM,
            "task": self.task,
            **fit_metrics(fitted),
            "parameters": sum(t.numel() for t in fitted.weights.values()),
            "compute": self.compute,
        }
        system = self.config.trainable(self.dropout)  # in 32 bits, in which adapters are merged
        restore(self.module(system), fitted.best)
        begin_folder(folder, metrics, fine_tuned_card(folder.name, self.config, metrics))
        system.save(folder)
        return metrics


# --------------------------------------------------------------------------------------------------- pairs with scores


@dataclass(frozen=True, kw_only=True)
class TokenizedRatedPairs:
    """Rated pairs, tokenised. groups: (N,), equal for pairs of the same two sentences, which share a batch."""

    texts: RatedTexts | TokenBatch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply
    groups: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PairTuning(FineTuning):
    """An encoder that is fine-tuned until pairs get the scores that people gave; those labelled -1 do not count."""

    read_pairs: Callable[[str, str], tuple[RatedPairs, RatedPairs]]  # the training and the validation pairs
    loss: Callable[[Tensor, Tensor], Tensor]  # of what the module gives for a whole batch, and its ratings

    def read(self) -> tuple[RatedPairs, RatedPairs]:
        return self.read_pairs(self.train, self.validation)

    def data(self, shared: Sequence[RatedPairs]) -> tuple[TokenizedRatedPairs, TokenizedRatedPairs]:
        train, validation = (
            TokenizedRatedPairs(texts=self.config.rated(rated), ratings=rated.ratings, groups=rated.groups)
            for rated in shared
        )
        return train, validation

    def module(self, system: Any) -> Any:
        return pair_scores(system)

    def batches(self, recipe: Recipe, train: TokenizedRatedPairs, epoch: int) -> list[np.ndarray]:
        rated = np.flatnonzero(train.ratings != NOT_APPLICABLE)
        return length_batches(train.texts.lengths, train.groups, rated, recipe.batch_size, recipe.seed, epoch)

    def batch_loss(self, train: TokenizedRatedPairs, module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        with autocast(module, self.dtype):
            scores_b = module(train.texts.take(rows_b))[:count]
        scores_B = gather(scores_b, len(batch))
        return self.loss(scores_B, torch.from_numpy(train.ratings[batch]).to(scores_B.device))  # indexing copies

    def evaluate(self, validation: TokenizedRatedPairs, module: Any) -> dict[str, float]:
        return correlations(module.scores(validation.texts), validation.ratings)


def rated_loss(loss: Loss, scores_B: Tensor, ratings_B: Tensor) -> Tensor:
    """The loss of scores to ratings from 1 to 5."""
    return LOSSES[loss](scores_B, unit_ratings(ratings_B))


def length_batches(
    lengths_N: np.ndarray, groups_N: np.ndarray, rows: np.ndarray, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Every row of `rows` once, in batches of similar length, which need little padding; determined by seed and epoch.

    Groups stay together, so that the texts they share are encoded once. They are shuffled, cut into pools of `POOL`
    batches and sorted within a pool; then the batches are shuffled."""
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
