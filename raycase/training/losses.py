"""Losses over a whole batch: pure functions of (cosines, targets).

Shapes: B pairs of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEAST_PAIRS = 3  # of a correlation that means something: that of two is 1 or -1


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


def nested_range(nested: Sequence[int], dim: int) -> tuple[bool, str]:
    """For `check_ranges`: whether all nested dimensions are below the whole one, and what is expected."""
    return all(0 < n < dim for n in nested), f"dimensions below {dim}"
