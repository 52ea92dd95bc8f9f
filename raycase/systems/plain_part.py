"""What a vector keeps of the plain one, where a sentence is unlike those that trained the head.

    m = the mean state of the sentence's tokens, each layer's of length 1;  p = that of the last layer
    r = |N (m - mu)| / sigma,  a = share * clamp((r - from) / (to - from), 0, 1)
    vector = sqrt(1 - a) u + sqrt(a) |u| T p

u: the head's vector. N: the third of the directions in which m of the training sentences varies least, around their
mean mu; a sentence that goes far along them is unlike all of them (the residual of the principal subspace, as in ViM,
Wang et al., 2022). sigma: the root mean square over validation sentences. T: the directions in which u is shortest, so
that the two parts hardly disturb each other and cosines add up, for equal a to about (1 - a) cos(u, u') + a cos(p, p').
Where three quarters of D are fewer than p's numbers, p is the first so many of them.

Shapes: B sentences of a batch, S tokens of the longest, C conditions, N sentences or vectors of a fit, W of the states,
P of those of p, D vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST_SCALE = 1e-3  # rounding to float16 stays below a tenth of it


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The part of each sentence: share (B,) and vector T p (B, D)."""

    share: Tensor
    vector: Tensor

    def take(self, index_B: Tensor) -> Plain:
        """The sentences of this index."""
        return Plain(share=self.share[index_B], vector=self.vector[index_B])

    def join(self, vectors_BCD: Tensor) -> Tensor:
        """Vectors with this part, (B, C, D); in place, since these are the largest tensors of a batch.

        Not for training: a head gets its part when it is trained.
        """
        assert not vectors_BCD.requires_grad
        lengths_BC = torch.linalg.vector_norm(vectors_BCD, dim=-1)
        part_BD = self.share.sqrt()[:, None] * self.vector
        return vectors_BCD.mul_((1 - self.share).sqrt()[:, None, None]).addcmul_(
            lengths_BC[..., None], part_BD[:, None]
        )


class PlainPart(nn.Module):
    """The part, by buffers that `fit` finds.

    plain_dim: of a layer's states; bounds: r below which the plain vector has no share, and above which its whole one.
    """

    def __init__(
        self, states_dim: int, plain_dim: int, output_dim: int, share: float, bounds: tuple[float, float]
    ) -> None:
        super().__init__()
        self.plain_dim = plain_dim
        self.share = share
        self.bounds = bounds
        self.center = nn.Buffer(torch.zeros(states_dim))
        self.rare = nn.Buffer(torch.zeros(states_dim // 3, states_dim))
        self.scale = nn.Buffer(torch.ones(()))
        self.turn = nn.Buffer(torch.zeros(output_dim, min(plain_dim, output_dim * 3 // 4)))

    def means(self, states_BSW: Tensor, real_BS: Tensor) -> Tensor:
        """m of each sentence: (B, W)."""
        real_BS1 = real_BS.unsqueeze(-1)
        mean_BW = states_BSW.masked_fill(~real_BS1, 0.0).sum(1) / real_BS1.sum(1)
        return F.normalize(mean_BW.unflatten(-1, (-1, self.plain_dim)), dim=-1).flatten(-2)

    def unfamiliar(self, means_BW: Tensor) -> Tensor:
        """r of each sentence: (B,)."""
        return torch.linalg.vector_norm((means_BW - self.center) @ self.rare.T, dim=-1) / self.scale

    def forward(self, states_BSW: Tensor, real_BS: Tensor) -> Plain:
        """The part of each sentence."""
        means_BW = self.means(states_BSW, real_BS)
        low, high = self.bounds
        span = (self.unfamiliar(means_BW) - low) / (high - low)
        plain_BP = F.normalize(means_BW[:, -self.plain_dim :][:, : self.turn.shape[1]], dim=-1)
        return Plain(share=self.share * span.clamp(0, 1), vector=plain_BP @ self.turn.T)

    def fit(self, train_NW: Tensor, validation_NW: Tensor, vectors_ND: Tensor) -> None:
        """Find the directions from m of training sentences, m of validation sentences, and the head's vectors."""
        self.center.copy_(train_NW.mean(0))
        self.rare.copy_(_least(train_NW - self.center, len(self.rare)).T)
        lengths_N = torch.linalg.vector_norm((validation_NW - self.center) @ self.rare.T, dim=-1)
        self.scale.copy_(lengths_N.square().mean().sqrt().clamp(min=LEAST_SCALE))
        self.turn.copy_(_least(F.normalize(vectors_ND, dim=-1), self.turn.shape[1]))


def _least(rows_NK: Tensor, count: int) -> Tensor:
    """The directions along which these rows are shortest, orthogonal and of length 1: (K, count)."""
    rows_NK = rows_NK.double()
    return torch.linalg.eigh(rows_NK.T @ rows_NK).eigenvectors[:, :count].to(torch.float32)
