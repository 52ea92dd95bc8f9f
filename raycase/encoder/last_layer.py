"""The last layer of BERT-like encoders, computed for the pooled tokens only.

Shapes: B sequences, T tokens, S pooled tokens, D hidden size, H heads, K head size.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

BERT_LAYERS = ("bert", "roberta", "xlm-roberta")  # model types whose layers `BertLastLayer` fits


def bert_attention(
    layer: Any, asking_BSD: Tensor, hidden_BTD: Tensor, keep_BT: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the heads of a BERT-like layer give for some tokens that attend to all, before the dense projection, (B, S,
    D), with their queries, (B, S, D), and the keys, (B, T, D)."""
    attention = layer.attention.self
    query_BSD, key_BTD, value_BTD = attention.query(asking_BSD), attention.key(hidden_BTD), attention.value(hidden_BTD)
    q_BHSK, k_BHTK, v_BHTK = (
        states.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
        for states in (query_BSD, key_BTD, value_BTD)
    )
    mask = None if keep_BT is None else keep_BT[:, None, None, :]
    dropout = attention.dropout.p if layer.training else 0.0
    heads_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout)
    return heads_BHSK.transpose(1, 2).flatten(2), query_BSD, key_BTD


class BertLastLayer(nn.Module):
    """The last layer of a BERT-like encoder, for the pooled tokens only: the states of the others are not used.

    The result is exact: keys and values come from every token, queries and everything after them from the pooled
    tokens. Wraps the library's layer.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None, position_BS: Tensor) -> Tensor:
        """States before the layer, attention mask (None: no padding), positions to compute -> (B, S, D)."""
        pooled_BSD = hidden_BTD.gather(1, position_BS.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1]))
        heads_BSD, _, _ = bert_attention(self.layer, pooled_BSD, hidden_BTD, keep_BT)
        attended_BSD = self.layer.attention.output(heads_BSD, pooled_BSD)
        return self.layer.output(self.layer.intermediate(attended_BSD), attended_BSD)
