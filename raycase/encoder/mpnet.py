"""MPNet's attention by `scaled_dot_product_attention`, with its relative positions as the mask: transformers has only
code that keeps every score, which takes a third longer on texts of 200 tokens.

Shapes: B sequences, T tokens, D hidden size, H heads.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetModel, MPNetSelfAttention


class Attention(MPNetSelfAttention):
    """Of one layer: what is added to the scores, (B or 1, H, T, T), has the mask in it."""

    def forward(self, hidden_states: Tensor, _: Any, position_bias: Tensor, **options: Any) -> tuple[Tensor]:
        """(B, T, D) -> (B, T, D)."""
        heads = [p(hidden_states).unflatten(-1, (self.num_attention_heads, -1)) for p in (self.q, self.k, self.v)]
        q_BHTK, k_BHTK, v_BHTK = (part_BTHK.transpose(1, 2) for part_BTHK in heads)
        dropout = self.dropout.p if self.training else 0.0
        seen_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=position_bias, dropout_p=dropout)
        return (self.o(seen_BHTK.transpose(1, 2).flatten(2)),)


class Encoder(MPNetEncoder):
    """All layers, for which positions and mask are added up once."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        **options: Any,
    ) -> BaseModelOutput:
        """(B, T, D) and what is added to the scores of padding, (B, 1, T, T) -> (B, T, D), and each layer's states."""
        bias = self.compute_position_bias(hidden_states[:1])
        if attention_mask is not None:
            bias = bias + attention_mask
        states = [hidden_states]
        for layer in self.layer:
            states.append(layer(states[-1], None, bias)[0])
        return BaseModelOutput(
            last_hidden_state=states[-1], hidden_states=tuple(states) if output_hidden_states else None
        )


def use_sdpa(model: MPNetModel) -> None:
    """Change a loaded model; its weights and their names stay."""
    model.encoder.__class__ = Encoder
    for layer in model.encoder.layer:
        layer.attention.attn.__class__ = Attention
