"""The attention of BERT-like layers in its parts, and the last of them computed for the pooled tokens only.

Shapes: B sequences, T tokens, S pooled tokens, D hidden size, H heads, K head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

LIKE_BERT = ("bert", "roberta", "xlm-roberta", "mpnet")  # model types whose layers `AttentionParts` can name
Positions = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AttentionParts:
    """The attention of an encoder layer, by one set of names for BERT's code and MPNet's."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    dense: nn.Module  # projects what the heads give
    dropped: nn.Dropout  # of the shares of attention
    dropout: nn.Dropout  # of the projection's output
    norm: nn.Module
    head_size: int

    @classmethod
    def of(cls, layer: Any) -> AttentionParts:
        """The parts of a layer of one of `LIKE_BERT`."""
        if (mpnet := getattr(layer.attention, "attn", None)) is not None:
            names = {"query": mpnet.q, "key": mpnet.k, "value": mpnet.v, "dense": mpnet.o}
            inner, outer = mpnet, layer.attention
        else:
            inner, outer = layer.attention.self, layer.attention.output
            names = {"query": inner.query, "key": inner.key, "value": inner.value, "dense": outer.dense}
        size = int(inner.attention_head_size)
        return cls(**names, dropped=inner.dropout, dropout=outer.dropout, norm=outer.LayerNorm, head_size=size)


def attend(
    layer: Any, asking_BSD: Tensor, hidden_BTD: Tensor, keep_BT: Tensor | None, bias_BHST: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the heads of a layer give for some tokens that attend to all, before the dense projection, (B, S, D), with
    their queries, (B, S, D), and the keys, (B, T, D). bias: of relative positions, added to the scores; (1, H, S, T)
    where it is the same for all texts."""
    parts = AttentionParts.of(layer)
    query_BSD, key_BTD, value_BTD = parts.query(asking_BSD), parts.key(hidden_BTD), parts.value(hidden_BTD)
    q_BHSK, k_BHTK, v_BHTK = (
        states.unflatten(-1, (-1, parts.head_size)).transpose(1, 2) for states in (query_BSD, key_BTD, value_BTD)
    )
    mask = None if keep_BT is None else keep_BT[:, None, None, :]
    if bias_BHST is not None:
        bias_BHST = bias_BHST.to(q_BHSK.dtype)
        mask = bias_BHST if mask is None else bias_BHST.masked_fill(~mask, float("-inf"))
    dropout = parts.dropped.p if layer.training else 0.0
    heads_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout)
    return heads_BHSK.transpose(1, 2).flatten(2), query_BSD, key_BTD


class LayerInParts(nn.Module):
    """Wraps a layer of the library's. positions: states -> the bias of relative positions, (B, H, T, T), of an encoder
    that has one."""

    def __init__(self, layer: Any, positions: Positions | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.positions = positions

    @property
    def attention(self) -> AttentionParts:
        """The modules of its attention."""
        return AttentionParts.of(self.layer)

    def rest(self, hidden_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        """Residual, norm and feed-forward: (B, T, D), (B, T, D) -> (B, T, D)."""
        attended_BTD = self.attention.norm(attended_BTD + hidden_BTD)
        return self.layer.output(self.layer.intermediate(attended_BTD), attended_BTD)


class LastLayer(LayerInParts):
    """The last layer of a BERT-like encoder, for the pooled tokens only: the states of the others are not used.

    The result is exact: keys and values come from every token, queries and everything after them from the pooled
    tokens.
    """

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None, position_BS: Tensor) -> Tensor:
        """States before the layer, attention mask (None: no padding), positions to compute -> (B, S, D)."""
        pooled_BSD = hidden_BTD.gather(1, position_BS.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1]))
        bias_BHST = None
        if self.positions is not None:
            bias_BHST = self.positions(hidden_BTD[:1])[0][:, position_BS].transpose(0, 1)
        heads_BSD, _, _ = attend(self.layer, pooled_BSD, hidden_BTD, keep_BT, bias_BHST)
        return self.rest(pooled_BSD, self.attention.dropout(self.attention.dense(heads_BSD)))


def positions_of(model: Any) -> Positions | None:
    """What gives an encoder's bias of relative positions, if it has one."""
    return getattr(model.encoder, "compute_position_bias", None)  # MPNet's
