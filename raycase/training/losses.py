"""Losses over a whole batch: pure functions of (cosines, ratings). Metrics of rated pairs.

Shapes: N rated pairs, B pairs of a batch, P vectors, D dimensions, M of them: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.evaluation.metrics import pearson, spearman
from raycase.io.rated_pairs import NOT_APPLICABLE
from raycase.io.vectors import pair_cosines
from raycase.names import Loss

LEAST_PAIRS = 3  # of a correlation that says something: that of two is 1 or -1


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


def nested_cosines(first_BD: Tensor, second_BD: Tensor, dims: Sequence[int]) -> Tensor:
    """The cosine of two vectors of a pair, over their first dimensions alone: (B, D), (B, D) -> (B, M)."""
    return torch.stack([F.cosine_similarity(first_BD[:, :d], second_BD[:, :d]) for d in dims], dim=1)


def nested_loss(cosines_BM: Tensor, targets_B: Tensor, loss: Loss) -> Tensor:
    """The mean of the loss over the dimensions."""
    return torch.stack([LOSSES[loss](cosines_B, targets_B) for cosines_B in cosines_BM.unbind(1)]).mean()


def nested_correlations(
    vectors_PD: np.ndarray, pair_index_N2: np.ndarray, ratings_N: np.ndarray, nested: Sequence[int]
) -> dict[str, float]:
    """The `correlations` of the cosines, and Spearman x 100 over all pairs at each nested dimension."""
    metrics = correlations(pair_cosines(vectors_PD, pair_index_N2), ratings_N)
    for dim in nested:
        metrics[f"spearman_{dim}"] = 100 * spearman(pair_cosines(vectors_PD[:, :dim], pair_index_N2), ratings_N)
    return metrics


def correlations(scores_N: np.ndarray, ratings_N: np.ndarray) -> dict[str, float]:
    """Spearman and Pearson x 100 over all pairs, and Spearman x 100 without label -1."""
    rated = ratings_N != NOT_APPLICABLE
    return {
        "spearman": 100 * spearman(scores_N, ratings_N),
        "pearson": 100 * pearson(scores_N, ratings_N),
        "spearman_rated": 100 * spearman(scores_N[rated], ratings_N[rated]),
    }
