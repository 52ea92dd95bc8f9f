"""From hidden states to one vector: pure functions on (hidden, span), and latent attention for its weights.

Shapes: B sequences, T tokens, S pooled tokens, D hidden size, H heads, K head size, L latents.
Sequences are padded on the right.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pooling(StrEnum):
    """How the tokens of a sequence become one vector."""

    MEAN = "mean"  # over the text
    LAST = "last"
    CLS = "cls"
    LATENT = "latent"
    MEAN_ALL = "mean-all"  # over every token, instruction included, as E5's authors do
    POOLER = "pooler"  # [CLS] through the encoder's own dense layer and tanh, as SimCSE's authors do


def pool_mean(hidden_BTD: Tensor, span_BT: Tensor) -> Tensor:
    """Average the hidden states of the text tokens: (B, T, D), (B, T) bool -> (B, D) fp32.

    The instruction acts through attention only, so its tokens are not averaged (CASE, section 3.1).
    Raises ValueError where a row has no text token.
    """
    count_B1 = span_BT.sum(1, keepdim=True)
    if not count_B1.all():
        row = int((count_B1 == 0).nonzero()[0, 0])
        raise ValueError(
            f"row {row}: expected at least one text token to pool, got none; reject empty texts on reading"
        )
    return (hidden_BTD.float() * span_BT.unsqueeze(-1)).sum(1) / count_B1


class Compose(StrEnum):
    """How a sentence's vector and a condition's become one."""

    HADAMARD = "hadamard"  # their product, element by element
    CONCAT = "concat"  # side by side


def compose(sentence_ND: Tensor, condition_ND: Tensor, how: Compose) -> Tensor:
    """Of a tri-encoder (Deshpande et al., 2023): (N, D), (N, D) -> (N, D), or (N, 2 D) side by side."""
    if how is Compose.HADAMARD:
        return sentence_ND * condition_ND
    return torch.cat([sentence_ND, condition_ND], dim=1)


def pooled_places(pooling: Pooling, start_B: Tensor, end_B: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that a pooling reads, as [first, stop) of each sequence; [start, end) is the text's span.

    The last token (its end token, if there is one) and [CLS] are spans of one token; their mean is their state.
    """
    match pooling:
        case Pooling.LAST:
            return lengths_B - 1, lengths_B
        case Pooling.MEAN_ALL:
            return torch.zeros_like(lengths_B), lengths_B
        case Pooling.CLS | Pooling.POOLER:
            return torch.zeros_like(lengths_B), torch.ones_like(lengths_B)
    return start_B, end_B


class BertLastLayer(nn.Module):
    """The last layer of a BERT-like encoder at the pooled tokens only; nobody reads the states of the others.

    Exact: keys and values come from every token, queries and all that follows from the pooled ones. Wraps the
    library's layer.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None, place_BS: Tensor) -> Tensor:
        """States before the layer, what is no padding (None: everything), places to compute -> (B, S, D)."""
        attention = self.layer.attention.self
        here_BSD = hidden_BTD.gather(1, place_BS.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1]))
        q_BHSK, k_BHTK, v_BHTK = (
            project(states).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for project, states in (
                (attention.query, here_BSD),
                (attention.key, hidden_BTD),
                (attention.value, hidden_BTD),
            )
        )
        mask = None if keep_BT is None else keep_BT[:, None, None, :]
        dropout = attention.dropout.p if self.training else 0.0
        heads_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout)
        attended_BSD = self.layer.attention.output(heads_BHSK.transpose(1, 2).flatten(2), here_BSD)
        return self.layer.output(self.layer.intermediate(attended_BSD), attended_BSD)


class LatentAttention(nn.Module):
    """NV-Embed's pooling (Lee et al., 2024, section 3.1): tokens ask learned latents, then an MLP, then the mean.

    Each hidden state is a query; the L latents are keys and values. Both blocks are pre-norm with a residual.
    Parameter names follow the published weights (`latent_attention_model.*`).
    """

    def __init__(self, *, dim: int, latents: int = 512, heads: int = 8, head_dim: int = 4096) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.cross_attend_blocks = nn.ModuleList(
            [_PreNorm(dim, _CrossAttention(dim, heads, head_dim), context=True), _PreNorm(dim, _GEGLU(dim))]
        )

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """What is averaged over the text, token by token: (B, T, D) -> (B, T, D)."""
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
    def __init__(self, dim: int, expansion: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim * expansion * 2), _Gate(), nn.Linear(dim * expansion, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class _Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)
