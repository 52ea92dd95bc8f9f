"""Rated pairs by their cosines, at each of the nested dimensions: the loss that trains, the figures that select.

Shapes: N rated pairs, B pairs of a batch, P vectors, D dimensions, M of them: the nested ones and all.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.evaluation.metrics import pearson, spearman
from raycase.io.rated_pairs import NOT_APPLICABLE
from raycase.io.vectors import pair_cosines
from raycase.training.losses import LOSSES, Loss


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
