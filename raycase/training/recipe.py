"""What a fit goes by: a recipe, as data, and losses over a whole batch, pure functions of (cosines, targets).

Shapes: B pairs of a batch, D dimensions, M of them: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEAST_PAIRS = 3  # of a correlation that means something: that of two is 1 or -1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the training loop goes by, whatever learns."""

    epochs: int = 1
    batch_size: int = 1
    learning_rate: float = 1e-3
    seed: int = 0
    patience: int  # epochs without a better one, after which a fit stops
    weight_decay: float = 0.0  # decoupled (AdamW)
    warmup: float | None = None  # share of the steps up to the peak learning rate, then down to 0; None: constant
    select: str = "spearman"  # the metric of early stopping and of the best epoch; larger is better
    frozen: bool = False  # the encoder is: fits are short and never resumed, trials of a sweep take one CPU each


class Loss(StrEnum):
    """Losses over ratings."""

    SQUARED = "squared"
    PEARSON = "pearson"


def unit_ratings(ratings: Tensor) -> Tensor:
    """Targets of the cosine, from 0 to 1, for ratings from 1 to 5; eq. 2 does not specify them, and C-STS has no
    opposites (`results/csts_minilm.md`)."""
    return (ratings - 1) / 4


def squared_error(cosines_B: Tensor, targets_B: Tensor) -> Tensor:
    """Mean of (cos - r)^2 (CASE, eq. 2; the mean, so that the learning rate does not depend on the batch size)."""
    return (cosines_B - targets_B).square().mean()


def pearson_loss(cosines_B: Tensor, targets_B: Tensor) -> Tensor:
    """1 - Pearson's correlation over the batch (CASE, section 4.4); of one or two pairs 1, which teaches nothing."""
    if len(cosines_B) < LEAST_PAIRS:
        return 1 + 0 * cosines_B.sum()
    cosines, targets = cosines_B - cosines_B.mean(), targets_B - targets_B.mean()
    # clamp before the square root, whose gradient at 0 is infinite
    norms = (cosines.square().sum() * targets.square().sum()).clamp(min=1e-24).sqrt()
    return 1 - (cosines * targets).sum() / norms


LOSSES = {Loss.SQUARED: squared_error, Loss.PEARSON: pearson_loss}


def nested_cosines(first_BD: Tensor, second_BD: Tensor, dims: Sequence[int]) -> Tensor:
    """The cosine of two vectors of a pair, over their first dimensions alone: (B, D), (B, D) -> (B, M)."""
    import torch

    return torch.stack([torch.cosine_similarity(first_BD[:, :d], second_BD[:, :d]) for d in dims], dim=1)


def nested_loss(cosines_BM: Tensor, targets_B: Tensor, loss: Loss) -> Tensor:
    """The mean of the loss over the dimensions."""
    import torch

    return torch.stack([LOSSES[loss](cosines_B, targets_B) for cosines_B in cosines_BM.unbind(1)]).mean()


def nested_range(nested: Sequence[int], dim: int) -> tuple[bool, str]:
    """For `check_ranges`: whether all nested dimensions are below the whole one, and what is expected."""
    return all(0 < n < dim for n in nested), f"dimensions below {dim}"
