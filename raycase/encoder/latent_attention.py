"""NV-Embed's pooling: latent attention (Lee et al., 2024, section 3.1).

Shapes: B sequences, T tokens, D hidden size, H heads, K head size, L latents.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LatentAttention(nn.Module):
    """Tokens attend to L learned latents, then an MLP, then the mean. Both blocks are pre-norm with a residual.

    Parameter names are those of the published weights (`latent_attention_model.*`).
    """

    def __init__(self, *, dim: int, latents: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.cross_attend_blocks = nn.ModuleList(
            [_PreNorm(dim, _CrossAttention(dim, heads, head_dim), context=True), _PreNorm(dim, _GEGLU(dim))]
        )

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """The states that are averaged over the text: (B, T, D) -> (B, T, D)."""
        attend, feed_forward = self.cross_attend_blocks
        hidden_BTD = attend(hidden_BTD, self.latents) + hidden_BTD
        return feed_forward(hidden_BTD) + hidden_BTD


class _PreNorm(nn.Module):
    def __init__(self, dim: int, fn: nn.Module, *, context: bool = False) -> None:
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(dim) if context else None

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if self.norm_context is None:
            return self.fn(self.norm(x))
        return self.fn(self.norm(x), self.norm_context(context))


class _CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x_BTD: Tensor, latents_LD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        L = len(latents_LD)
        q_BHTK = self.to_q(x_BTD).view(B, T, self.heads, -1).transpose(1, 2)
        k_LD, v_LD = self.to_kv(latents_LD).chunk(2, dim=-1)
        k_BHLK, v_BHLK = (t.view(L, self.heads, -1).transpose(0, 1).expand(B, -1, -1, -1) for t in (k_LD, v_LD))
        out_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHLK, v_BHLK)
        return self.to_out(out_BHTK.transpose(1, 2).reshape(B, T, -1))


class _GEGLU(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 8 * dim), _Gate(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class _Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)
