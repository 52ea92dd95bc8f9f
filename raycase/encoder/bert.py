"""Encoders in torch alone: a last layer that computes pooled tokens only, BERT and MPNet, NV-Embed's latent attention.

Shapes: B sequences, T tokens, S pooled tokens, D hidden size, H heads, K head size, L latents.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FARTHEST = 128  # tokens, from which on MPNet's bias of relative positions is the same
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
    result_BTD: Tensor = end.LayerNorm(end.dropout(end.dense(layer.intermediate(attended_BTD))) + attended_BTD)
    return result_BTD


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


# ------------------------------------------------------------------------------------------------- whole encoders


class _Linear(nn.Linear):
    """One whose weights are loaded: those that torch draws on the device "meta" need its compiler, for seconds."""

    def reset_parameters(self) -> None:
        pass


def _norm(config: Any) -> dict[str, nn.Module]:
    """What stands behind the embeddings and each half of a layer."""
    norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
    return {"LayerNorm": norm, "dropout": nn.Dropout(config.hidden_dropout_prob)}


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        names = ("q", "k", "v", "o") if config.model_type == "mpnet" else ("query", "key", "value", "dense")
        of_heads: Any = nn.ModuleDict({name: _Linear(size, size) for name in names})
        of_heads["dropout"] = nn.Dropout(config.attention_probs_dropout_prob)
        of_heads.attention_head_size = size // config.num_attention_heads
        if config.model_type == "mpnet":
            self.attention = nn.ModuleDict({"attn": of_heads, **_norm(config)})
        else:
            behind = nn.ModuleDict({"dense": of_heads.pop("dense"), **_norm(config)})
            self.attention = nn.ModuleDict({"self": of_heads, "output": behind})
        self.intermediate = nn.Sequential()
        self.intermediate.add_module("dense", _Linear(size, inner))
        self.intermediate.append(nn.GELU())
        self.output = nn.ModuleDict({"dense": _Linear(inner, size), **_norm(config)})

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None, bias_BHTT: Tensor | None) -> Tensor:
        return rest(self, hidden_BTD, attend(self, hidden_BTD, hidden_BTD, keep_BT, bias_BHTT)[0])


class Bert(nn.Module):
    """BERT or MPNet by the library's names of modules and weights: its own classes take seconds to import."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        size, rows_of = config.hidden_size, {"word": config.vocab_size, "position": config.max_position_embeddings}
        rows_of |= {"token_type": config.type_vocab_size} if config.model_type == "bert" else {}
        tables = {f"{n}_embeddings": nn.Embedding(r, size, _weight=torch.empty(r, size)) for n, r in rows_of.items()}
        self.embeddings: Any = nn.ModuleDict({**tables, **_norm(config)})
        layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.encoder: Any = nn.ModuleDict({"layer": layers})
        if config.model_type == "mpnet":
            buckets, heads = config.relative_attention_num_buckets, config.num_attention_heads
            self.encoder["relative_attention_bias"] = nn.Embedding(buckets, heads, _weight=torch.empty(buckets, heads))
            self.encoder.compute_position_bias = self._position_bias  # type: ignore[assignment]

    device = property(lambda self: self.embeddings.word_embeddings.weight.device)
    dtype = property(lambda self: self.embeddings.word_embeddings.weight.dtype)

    def _position_bias(self, hidden_BTD: Tensor) -> Tensor:
        """MPNet's, by the distance of two tokens and its direction; longer distances share buckets: (1, H, T, T)."""
        token_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
        away_TT = token_T[:, None] - token_T
        a_side = self.config.relative_attention_num_buckets // 2
        exact = a_side // 2
        far_TT = (away_TT.abs().float() / exact).log() / math.log(FARTHEST / exact) * (a_side - exact)
        far_TT = (exact + far_TT.long()).clamp(max=a_side - 1)
        bucket_TT = torch.where(away_TT.abs() < exact, away_TT.abs(), far_TT) + (away_TT < 0) * a_side
        bias_1HTT: Tensor = self.encoder.relative_attention_bias(bucket_TT).permute(2, 0, 1)[None]
        return bias_1HTT

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """attention_mask: (B, T) or (B, 1, T, T), the same for all queries."""
        tables, keep_BT, bias_BHTT = self.embeddings, None, None
        if attention_mask is not None:
            keep_BT = (attention_mask if attention_mask.ndim == 2 else attention_mask[:, 0, 0]).bool()
        hidden_BTD = tables.word_embeddings(input_ids)
        if self.config.model_type == "mpnet":
            real_BT = input_ids != self.config.pad_token_id
            position_ids = real_BT.cumsum(1) * real_BT + self.config.pad_token_id
            bias_BHTT = self._position_bias(hidden_BTD)
            if keep_BT is not None:  # once for all layers
                bias_BHTT, keep_BT = bias_BHTT.masked_fill(~keep_BT[:, None, None], float("-inf")), None
        else:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
            types = torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            hidden_BTD = hidden_BTD + tables.token_type_embeddings(types)
        hidden_BTD = tables.dropout(tables.LayerNorm(hidden_BTD + tables.position_embeddings(position_ids)))
        states = [hidden_BTD]
        for layer in self.encoder.layer:
            states = [*(states if output_hidden_states else ()), layer(states[-1], keep_BT, bias_BHTT)]
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


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
