"""Sketches of stored tokens: four bytes a token, by which a search finds the rows that it then pools exactly.

    i_1 = nearest of 256 centroids to z,  i_2 = nearest of 256 others to what is left of z,  ...

z: the first components of a token's code (`raycase.heads.token_codes`). This is residual quantisation (Chen et al.,
2010, Approximate nearest neighbor search by residual vector quantization). Under a condition each centroid has a logit
of each head and a value, so a row is pooled from two small tables. To find candidates by centroids, and then score them
by their tokens, is the way of PLAID (Santhanam et al., 2022, section 4); the scores are ours.

Shapes: T tokens, M first components, L levels, E centroids of a level, N rows, S tokens of each in a group, H heads, D
dimensions, A axes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries
from raycase.heads.token_codes import TokenCodes
from raycase.heads.token_pooling import TokenPooler, UnpackedTokens, check_products, join_plain_part
from raycase.heads.top import read_tensors

LEVELS, CENTROIDS, COMPONENTS = 4, 256, 128
ROUNDS = 10  # of k-means
AXES = 64  # of the vectors that are compared; 32 need half as many candidates more
AXES_ROWS = 4096  # by which they are chosen
TOKENS_AT_ONCE = 2**14
MOST_LOGIT = 80  # whose exponential, and that of its negative, float32 holds


@dataclass(frozen=True, kw_only=True)
class TokenSketch:
    """The centroids of each level, (L, E, M), in the units of z."""

    centroids: Tensor

    def to_bytes(self) -> bytes:
        """As safetensors."""
        return save({"centroids": self.centroids.contiguous()})

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> TokenSketch:
        """Read what `to_bytes` wrote. Raises RequestError, which names the source."""
        return read_tensors(cls, data, source, "centroids")

    @classmethod
    def fit(cls, codes: TokenCodes, packed: np.ndarray) -> TokenSketch:
        """From the codes of a sample of tokens, (T, token_bytes), which is not empty."""
        left_TM = _components(codes, packed)
        levels = []
        for _ in range(LEVELS):
            centroids_EM = _k_means(left_TM)
            left_TM = left_TM - centroids_EM[_nearest(left_TM, centroids_EM)]
            levels.append(centroids_EM)
        return cls(centroids=torch.stack(levels))

    def code(self, codes: TokenCodes, packed: np.ndarray) -> np.ndarray:
        """Sketches of tokens by their codes: (T, token_bytes) -> (T, L) uint8."""
        sketch_TL = np.empty((len(packed), len(self.centroids)), np.uint8)
        for start in range(0, len(packed), TOKENS_AT_ONCE):
            left_TM = _components(codes, packed[start : start + TOKENS_AT_ONCE])
            for level, centroids_EM in enumerate(self.centroids):
                nearest_T = _nearest(left_TM, centroids_EM)
                left_TM -= centroids_EM[nearest_T]
                sketch_TL[start : start + TOKENS_AT_ONCE, level] = nearest_T.numpy()
        return sketch_TL


def _components(codes: TokenCodes, packed: np.ndarray) -> Tensor:
    """The first components of z, without the half step that all have: (T, M)."""
    codes_TM = torch.from_numpy(codes.unpack(packed, COMPONENTS))
    return codes_TM * codes.steps[: codes_TM.shape[1]]


def _nearest(x_TM: Tensor, centroids_EM: Tensor) -> Tensor:
    """The nearest centroid of each row, by Euclidean distance: (T,)."""
    half_E = centroids_EM.square().sum(1) / 2
    return torch.addmm(-half_E, x_TM, centroids_EM.T).argmax(1)


def _k_means(x_TM: Tensor) -> Tensor:
    """Lloyd's algorithm from random rows, (E, M): far faster here than SciPy's `kmeans2`."""
    chosen = torch.randperm(len(x_TM), generator=torch.Generator().manual_seed(0))[:CENTROIDS]
    centroids_EM = x_TM[chosen].clone()
    for _ in range(ROUNDS):
        nearest_T = _nearest(x_TM, centroids_EM)
        sums_EM = torch.zeros_like(centroids_EM).index_add_(0, nearest_T, x_TM)
        count_E1 = torch.bincount(nearest_T, minlength=len(centroids_EM))[:, None]
        centroids_EM = torch.where(count_E1 > 0, sums_EM / count_E1.clamp(min=1), centroids_EM)
    return F.pad(centroids_EM, (0, 0, 0, CENTROIDS - len(centroids_EM)))  # a sample of few tokens


# ------------------------------------------------------------------------------------------------------------- pooling


def principal_axes(vectors_ND: Tensor) -> Tensor:
    """The axes with most of the second moment of a sample of vectors: (D, A). Cosines along them, with a query that is
    projected on them, are nearly those of the vectors."""
    unit_ND = F.normalize(vectors_ND, dim=-1)
    return torch.linalg.eigh(unit_ND.T @ unit_ND).eigenvectors.flip(1)[:, :AXES].contiguous()


class SketchPooler:
    """Pools sketches under one condition, to vectors along some axes (D, A); at first along all of their dimensions."""

    def __init__(
        self, sketch: TokenSketch, codes: TokenCodes, questions: ConditionQueries, temperatures: Tensor
    ) -> None:
        exact = TokenPooler(codes, questions, temperatures)
        components = sketch.centroids.shape[-1]
        codes_LEM = sketch.centroids / codes.steps[:components]
        self.base, values_MD = exact.back[0]
        self.mix = exact.mix[0]
        self.logits = (codes_LEM @ exact.asked.T[:components]).flatten(0, 1)
        self.values = (codes_LEM @ values_MD[:components]).flatten(0, 1)
        check_products(self.logits, self.values)
        logits_LEH = self.logits.unflatten(0, codes_LEM.shape[:2])
        low_L1H, high_L1H = logits_LEH.amin(1, keepdim=True), logits_LEH.amax(1, keepdim=True)
        self.logits = (logits_LEH - (low_L1H + high_L1H) / 2).flatten(0, 1)  # what all tokens share does not count
        self.is_bounded = bool(((high_L1H - low_L1H).sum(0) / 2 <= MOST_LOGIT).all())
        self.first_row = torch.arange(len(sketch.centroids), dtype=torch.int32) * sketch.centroids.shape[1]
        self.axes = torch.eye(len(self.base))

    def along(self, axes: Tensor) -> SketchPooler:
        """The same along these axes."""
        other = copy.copy(self)
        other.values, other.base, other.axes = self.values @ axes, self.base @ axes, axes
        return other

    @torch.no_grad()
    def pool(self, tokens: UnpackedTokens) -> Tensor:
        """Vectors of the rows, in the order of `tokens`, along the axes: (N, A), not normalised."""
        pooled_NA = torch.empty(len(tokens.counts), len(self.base))
        for where, sketch_NSL in tokens.groups(TOKENS_AT_ONCE):
            count, length, levels = sketch_NSL.shape
            rows_NSL = sketch_NSL.int() + self.first_row
            logits_NSH = F.embedding_bag(rows_NSL.flatten(0, 1), self.logits, mode="sum").view(count, length, -1)
            weights_NS = self._weights(logits_NSH)
            weighed_NA = F.embedding_bag(
                rows_NSL.flatten(1),
                self.values,
                per_sample_weights=weights_NS.repeat_interleave(levels, 1),
                mode="sum",
            )
            torch.add(weighed_NA, self.base, out=pooled_NA[where])
        return join_plain_part(pooled_NA[:, None], tokens, tokens.vectors @ self.axes)[:, 0]

    def _weights(self, logits_NSH: Tensor) -> Tensor:
        """The weight of each token: (N, S). A softmax that need not look for the largest logit takes half the time."""
        if not self.is_bounded:
            return logits_NSH.softmax(1) @ self.mix
        odds_NSH = logits_NSH.exp_()
        return (odds_NSH @ (self.mix / odds_NSH.sum(1))[..., None])[..., 0]
