"""What a vector keeps of the plain one, where a sentence is unlike those that trained the head.

    m = the mean state of the sentence's tokens, each layer's of length 1;  p = f(s) / |f(s)|
    r = |N (m - mu)| / sigma,  a = share * rise(r; from, to) + (1 - share) * rise(r; alone_from, alone_to)
    rise(r; x, y) = clamp((r - x) / (y - x), 0, 1)
    vector = sqrt(1 - a) u + sqrt(a) |u| T p

u: the head's vector. N: directions in which m of the training sentences varies least, around their
mean mu; a sentence that goes far along them is unlike all of them (the residual of the principal subspace, as in ViM,
Wang et al., 2022). sigma: the root mean square over validation sentences. T turns p into
the directions in which u is shortest, so that the two parts hardly disturb each other and cosines add up, for equal a
to about (1 - a) cos(u, u') + a cos(p, p'). Where a is 1, cosines are those of f(s). Where p has more numbers than D, it
is projected onto its first D principal directions.

Shapes: B sentences of a batch, S tokens of the longest, C conditions, N sentences or vectors of a fit, W of the states,
P of p, D vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.heads.top import HeadConfig

LEAST_SCALE = 1e-3  # rounding to float16 stays below a tenth of it
MOST_RARE = 256  # directions: more find no other sentences, and take room


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
    """The part of a head of this shape, by buffers that `fit` finds."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        assert config.plain_dim is not None and config.plain_vector_dim is not None
        self.config = config
        self.plain_dim = config.plain_dim
        width = config.states_dim
        self.center = nn.Buffer(torch.zeros(width))
        self.rare = nn.Buffer(torch.zeros(min(width // 3, MOST_RARE), width))
        self.scale = nn.Buffer(torch.ones(()))
        self.turn = nn.Buffer(torch.zeros(config.output_dim, config.plain_vector_dim))

    def means(self, states_BSW: Tensor, real_BS: Tensor) -> Tensor:
        """m of each sentence: (B, W)."""
        real_BS1 = real_BS.unsqueeze(-1)
        mean_BW = states_BSW.masked_fill(~real_BS1, 0.0).sum(1) / real_BS1.sum(1)
        return F.normalize(mean_BW.unflatten(-1, (-1, self.plain_dim)), dim=-1).flatten(-2)

    def unfamiliar(self, means_BW: Tensor) -> Tensor:
        """r of each sentence: (B,)."""
        return torch.linalg.vector_norm((means_BW - self.center) @ self.rare.T, dim=-1) / self.scale

    def share(self, unfamiliar_B: Tensor) -> Tensor:
        """a of each sentence: (B,)."""
        config = self.config
        share_B = config.plain_share * _risen(unfamiliar_B, config.plain_from, config.plain_to)
        alone_B = _risen(unfamiliar_B, config.plain_alone_from, config.plain_alone_to)
        return share_B + (1 - config.plain_share) * alone_B

    def forward(self, states_BSW: Tensor, real_BS: Tensor, plain_BP: Tensor) -> Plain:
        """The part of each sentence; plain: f(s)."""
        share_B = self.share(self.unfamiliar(self.means(states_BSW, real_BS)))
        return Plain(share=share_B, vector=F.normalize(plain_BP, dim=-1) @ self.turn.T)

    def fit(self, train_NW: Tensor, plain_NP: Tensor, validation_NW: Tensor, vectors_ND: Tensor) -> None:
        """Find the directions from m and f(s) of training sentences, m of validation sentences, and the head's
        vectors."""
        self.center.copy_(train_NW.mean(0))
        self.rare.copy_(_axes(train_NW - self.center)[:, : len(self.rare)].T)
        lengths_N = torch.linalg.vector_norm((validation_NW - self.center) @ self.rare.T, dim=-1)
        self.scale.copy_(lengths_N.square().mean().sqrt().clamp(min=LEAST_SCALE))
        dim, plain_dim = self.turn.shape
        turn_DK = _axes(F.normalize(vectors_ND, dim=-1))[:, :plain_dim]
        if plain_dim > dim:
            turn_DK = turn_DK @ _axes(F.normalize(plain_NP, dim=-1)).flip(1)[:, :dim].T
        self.turn.copy_(turn_DK)


def _risen(numbers: Tensor, low: float, high: float) -> Tensor:
    """How far from low to high, in [0, 1]."""
    return ((numbers - low) / (high - low)).clamp(0, 1)


def _axes(rows_NK: Tensor) -> Tensor:
    """Orthogonal directions of length 1, first those along which these rows are shortest: (K, K)."""
    rows_NK = rows_NK.double()
    return torch.linalg.eigh(rows_NK.T @ rows_NK).eigenvectors.to(torch.float32)
