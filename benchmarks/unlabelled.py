"""Projections that need no labels: g in closed form from the vectors alone, the yardstick of a g that was trained.

Shapes: P vectors, D dimensions of all views, K of g.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from raycase.errors import RequestError, at_least, check_ranges
from raycase.heads.layers import MOST_WIDTH
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.training.losses import nested_range
from raycase.training.projector_job import OUTPUT_DIM

ROWS = 8192  # of the vectors at a time in float64
FLOOR = 1e-8  # of the largest variance: whitening magnifies no direction beyond it, which would be rounding alone


class Method(StrEnum):
    """How g follows from the vectors."""

    PCA = "pca"
    WHITENING = "whitening"
    RANDOM = "random"
    TRUNCATION = "truncation"


FITTED = (Method.PCA, Method.WHITENING)  # the others need no vectors


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Everything that determines g besides the vectors and, for a random one, the seed."""

    method: Method = Method.PCA
    """pca: the principal components of the centred vectors. whitening: these, each scaled to variance 1 (Su et al.,
    2021). random: sums with Gaussian weights (Johnson and Lindenstrauss, 1984). truncation: the first dimensions."""
    dim: int | None = None
    """Output dimension, at most that of the vectors. Default: 512, or that of the vectors if it is smaller."""
    nested: tuple[int, ...] = ()
    """Smaller dimensions to which the vectors can be cut later; the first so many are a projection by the same
    method."""

    def check(self) -> None:
        """Raise RequestError for a value out of its range."""
        ranges = {
            **at_least(1, self, "dim", most=MOST_WIDTH),
            "nested": nested_range(self.nested, self.dim or OUTPUT_DIM),
        }
        check_ranges(self, ranges)

    def shape(self, input_dim: int, count: int) -> ProjectorConfig:
        """The shape of g for so many vectors of `input_dim`.

        Raises RequestError for more dimensions than the vectors have, or than so many vectors can span.
        """
        dim = self.dim or min(OUTPUT_DIM, input_dim)
        ranges = {
            "dim": (dim <= input_dim, f"at most {input_dim}, the dimension of the vectors"),
            "nested": nested_range(self.nested, dim),
        }
        check_ranges(self, ranges)
        if self.method in FITTED and dim >= count:
            raise RequestError(
                f"--dim: expected fewer dimensions than the {count:,} vectors that {self.method} is fitted to, got "
                f"{dim}; ask for fewer, or give more sentences"
            )
        return ProjectorConfig(
            input_dim=input_dim,
            output_dim=dim,
            layers=0,
            dropout=0.0,
            bias=self.method in FITTED,
            nested=tuple(sorted(set(self.nested))),
        )


def fit_projection(
    vectors_PD: np.ndarray, projection: Projection, *, seed: int = 0
) -> tuple[Projector, dict[str, float]]:
    """A linear g, in evaluation mode, and the share of the variance in its dimensions, x 100 (of pca and whitening).

    The shares are by dimension: the nested ones and the whole. Raises RequestError as `Projection.shape`, and for
    vectors that do not differ.
    """
    count, input_dim = vectors_PD.shape
    shape = projection.shape(input_dim, count)
    dim, share_K = shape.output_dim, np.zeros(0)
    if projection.method is Method.TRUNCATION:
        weights = [np.eye(dim, input_dim)]
    elif projection.method is Method.RANDOM:
        weights = [np.random.default_rng(seed).standard_normal((dim, input_dim)) / np.sqrt(dim)]
    else:
        mean_D, variances_D, axes_DD = principal_axes(vectors_PD)
        weight_KD = axes_DD[:dim]
        if projection.method is Method.WHITENING:
            weight_KD = weight_KD / np.sqrt(np.maximum(variances_D[:dim, None], FLOOR * variances_D[0]))
        weights = [weight_KD, -weight_KD @ mean_D]  # W (x - mean) = W x - W mean
        share_K = np.cumsum(variances_D)[:dim] / variances_D.sum()
    g = Projector(shape).eval()
    with torch.no_grad():
        for parameter, values in zip(g.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(values))
    kept = {str(d): 100 * float(share_K[d - 1]) for d in (*shape.nested, dim) if len(share_K)}
    return g, kept


def principal_axes(vectors_PD: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean, and variances and unit axes of the covariance U diag(variances) U^T, the largest first, in float64.

    (P, D) -> (D,), (D,), (D, D), an axis a row. The largest entry of an axis is positive, for its sign is free.
    Raises RequestError for vectors that do not differ by more than the rounding of float32.
    """
    count, dim = vectors_PD.shape
    mean_D = vectors_PD.mean(axis=0, dtype=np.float64)
    covariance_DD = np.zeros((dim, dim))
    for start in range(0, count, ROWS):
        centred_RD = vectors_PD[start : start + ROWS] - mean_D
        covariance_DD += centred_RD.T @ centred_RD / count
    variances_D, columns_DD = np.linalg.eigh(covariance_DD)
    variances_D, axes_DD = np.maximum(variances_D[::-1], 0), columns_DD.T[::-1]
    if variances_D[0] <= np.finfo(np.float32).eps ** 2 * (mean_D @ mean_D):
        raise RequestError(f"--train: expected sentences whose vectors differ, got {count:,} equal vectors")
    largest_D1 = np.take_along_axis(axes_DD, np.abs(axes_DD).argmax(axis=1)[:, None], axis=1)
    return mean_D, variances_D, axes_DD * np.sign(largest_D1)
