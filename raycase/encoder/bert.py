"""Parts of encoders in torch: a last layer of BERT and its like for pooled tokens only, NV-Embed's latent attention.

Shapes: B sequences, T tokens, S pooled tokens, D hidden size, H heads, K head size, L latents.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LIKE_BERT = ("bert", "roberta", "xlm-roberta", "mpnet")  # model types whose layers `attention_parts` can name


def attention_parts(layer: Any) -> tuple[Any, Any, list[Any]]:
    """The attention of a layer of one of `LIKE_BERT`: what has its heads, what stands behind them, and the layers of
    queries, keys, values and output, by BERT's names or MPNet's."""
    if (mpnet := getattr(layer.attention, "attn", None)) is not None:
        return mpnet, layer.attention, [mpnet.q, mpnet.k, mpnet.v, mpnet.o]
    heads, behind = layer.attention.self, layer.attention.output
    return heads, behind, [heads.query, heads.key, heads.value, behind.dense]


def attend(
    layer: Any, asking_BSD: Tensor, hidden_BTD: Tensor, keep_BT: Tensor | None, bias_BHST: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The attention of a layer for some tokens that attend to all, after its dense projection, (B, S, D), and the keys,
    (B, T, D). bias: of relative positions, added to the scores; (1, H, S, T) where it is the same for all texts."""
    heads, behind, (query, key, value, dense) = attention_parts(layer)
    key_BTD = key(hidden_BTD)
    q_BHSK, k_BHTK, v_BHTK = (
        states.unflatten(-1, (-1, heads.attention_head_size)).transpose(1, 2)
        for states in (query(asking_BSD), key_BTD, value(hidden_BTD))
    )
    mask = None if keep_BT is None else keep_BT[:, None, None, :]
    if bias_BHST is not None:
        bias_BHST = bias_BHST.to(q_BHSK.dtype)
        mask = bias_BHST if mask is None else bias_BHST.masked_fill(~mask, float("-inf"))
    dropout = heads.dropout.p if layer.training else 0.0
    heads_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout)
    return behind.dropout(dense(heads_BHSK.transpose(1, 2).flatten(2))), key_BTD


def rest(layer: Any, hidden_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
    """What stands behind the attention: residual, norm and feed-forward: (B, T, D), (B, T, D) -> (B, T, D)."""
    attended_BTD = attention_parts(layer)[1].LayerNorm(attended_BTD + hidden_BTD)
    end = layer.output
    return end.LayerNorm(end.dropout(end.dense(layer.intermediate(attended_BTD))) + attended_BTD)


class LayerInParts(nn.Module):
    """A layer of an encoder in two halves, `attend` and `rest`, which in sequence equal the library's layer."""

    def __init__(self, layer: Any, model: Any) -> None:
        super().__init__()
        self.layer = layer
        # states -> MPNet's bias of relative positions, (B, H, T, T)
        self.positions: Callable[[Tensor], Tensor] | None = getattr(model.encoder, "compute_position_bias", None)

    def attend(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """The attention's output after its dense projection, and its keys: (B, T, D) each."""
        bias_BHTT = None if self.positions is None else self.positions(hidden_BTD[:1])
        return attend(self.layer, hidden_BTD, hidden_BTD, keep_BT, bias_BHTT)


class LastLayer(LayerInParts):
    """The last layer of a BERT-like encoder, for the pooled tokens only; keys and values are of all, so it is exact."""

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None, position_BS: Tensor) -> Tensor:
        """States before the layer, attention mask (None: no padding), positions to compute -> (B, S, D)."""
        pooled_BSD = hidden_BTD.gather(1, position_BS.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1]))
        bias_BHST = None
        if self.positions is not None:
            bias_BHST = self.positions(hidden_BTD[:1])[0][:, position_BS].transpose(0, 1)
        return rest(self.layer, pooled_BSD, attend(self.layer, pooled_BSD, hidden_BTD, keep_BT, bias_BHST)[0])


class LatentAttention(nn.Module):
    """NV-Embed's latent attention (Lee et al., 2024, section 3.1): tokens attend to L learned latents, then an MLP and
    the mean over the text. Both blocks are pre-norm with a residual; parameters have their published names."""

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
