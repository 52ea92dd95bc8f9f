"""NV-Embed's latent attention, between the states and the mean over the text.

Shapes: B sequences, T tokens, D hidden size, H heads, K head size, L latents.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LatentAttention(nn.Module):
    """NV-Embed's (Lee et al., 2024, section 3.1): tokens attend to L learned latents, then an MLP, then the mean. Both
    blocks are pre-norm with a residual.

    Parameter names are those of the published weights (`latent_attention_model.*`).
    """

    def __init__(self, *, dim: int, latents: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, width = heads, heads * head_dim
        self.latents = nn.Parameter(torch.randn(latents, dim))
        sizes = {"to_q": (dim, width), "to_kv": (dim, 2 * width), "to_out": (width, dim)}
        attention = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
        net = nn.Sequential(nn.Linear(dim, 8 * dim), nn.Identity(), nn.Linear(4 * dim, dim))
        attend = {"fn": attention, "norm": nn.LayerNorm(dim), "norm_context": nn.LayerNorm(dim)}
        feed_forward = {"fn": nn.ModuleDict({"net": net}), "norm": nn.LayerNorm(dim)}
        self.cross_attend_blocks: Any = nn.ModuleList(map(nn.ModuleDict, (attend, feed_forward)))

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """The states that are averaged over the text: (B, T, D) -> (B, T, D)."""
        attend, feed_forward = self.cross_attend_blocks
        q_BHTK = attend.fn.to_q(attend.norm(hidden_BTD)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        keys_values = attend.fn.to_kv(attend.norm_context(self.latents)).chunk(2, dim=-1)
        k_BHLK, v_BHLK = (
            t_LD.unflatten(-1, (self.heads, -1)).transpose(0, 1).expand(len(hidden_BTD), -1, -1, -1)
            for t_LD in keys_values
        )
        heads_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHLK, v_BHLK)
        hidden_BTD = attend.fn.to_out(heads_BHTK.transpose(1, 2).flatten(2)) + hidden_BTD
        widen, _, narrow = feed_forward.fn.net
        inner_BTE, gates_BTE = widen(feed_forward.norm(hidden_BTD)).chunk(2, dim=-1)
        return narrow(inner_BTE * F.gelu(gates_BTE)) + hidden_BTD
