"""The router of CSR (Lin et al., 2024, section 2): an encoder layer whose attention output a condition weights.

    score = q_c K_s^T / sqrt(d_k),  w = softmax(score),  h = (1 + w) * h'        (eq. 1)

Shapes: B texts, P pairs, T tokens, D hidden size, H heads, K head size.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.last_layer import AttentionParts, Positions, attend


class CsrForm(StrEnum):
    """Whether sentence and condition are encoded together."""

    TRI = "tri"  # sentence and condition encoded apart
    BI = "bi"  # "c: s"; w is what [CLS] pays attention to


class Router(StrEnum):
    """Query and keys of the router (tri form; table 3)."""

    QUERY = "query"  # the condition's query against the sentence's keys
    HIDDEN = "hidden"  # hidden states on both sides


class Asks(StrEnum):
    """Which state of the condition gives the query."""

    CLS = "cls"
    WORDS = "words"  # ours, for mean-pooled encoders, whose [CLS] holds little: mean of the words; weights words alone


class Weight(StrEnum):
    """What the attention's output is multiplied by."""

    ADDED = "1+w"
    ONLY = "w"  # table 3
    EVEN = "Tw"  # ours: w times the number of weighted tokens, so 1 on average in tri form


class RoutedLayer(nn.Module):
    """A layer of a BERT-like encoder in two halves; between them its attention output is weighted.

    Wraps the library's layer. Without weights, both halves in sequence equal that layer. positions: states -> the bias
    of relative positions, (B, H, T, T), of an encoder that has one.
    """

    def __init__(self, layer: Any, positions: Positions | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.positions = positions

    @property
    def attention(self) -> AttentionParts:
        """The modules of its attention."""
        return AttentionParts.of(self.layer)

    def bias(self, hidden_BTD: Tensor) -> Tensor | None:
        """What relative positions add to the scores of attention, if anything: (1, H, T, T)."""
        return None if self.positions is None else self.positions(hidden_BTD[:1])

    def attend(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The attention's output after its dense projection, and its queries and keys: (B, T, D) each."""
        heads_BTD, query_BTD, key_BTD = attend(self.layer, hidden_BTD, hidden_BTD, keep_BT, self.bias(hidden_BTD))
        return self.attention.dropout(self.attention.dense(heads_BTD)), query_BTD, key_BTD

    def rest(self, hidden_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        """Residual, norm and feed-forward: (B, T, D), (B, T, D) -> (B, T, D)."""
        attended_BTD = self.attention.norm(attended_BTD + hidden_BTD)
        return self.layer.output(self.layer.intermediate(attended_BTD), attended_BTD)

    def plain(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        """The library's layer."""
        return self.rest(hidden_BTD, self.attend(hidden_BTD, keep_BT)[0])

    def cls_attention(self, hidden_BTD: Tensor, query_BTD: Tensor, key_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """What [CLS] attends to in this layer, the mean over its heads: (B, T) fp32."""
        size, bias = self.attention.head_size, self.bias(hidden_BTD)
        q_BHK, k_BTHK = (t.unflatten(-1, (-1, size)) for t in (query_BTD[:, 0], key_BTD))
        score_BHT = torch.einsum("bhk,bthk->bht", q_BHK, k_BTHK).float() / math.sqrt(size)
        if bias is not None:
            score_BHT = score_BHT + bias[:, :, 0]
        return score_BHT.masked_fill(~real_BT[:, None], float("-inf")).softmax(-1).mean(1)


def words(real_BT: Tensor) -> Tensor:
    """Mask without the first and the last token, which are special: (B, T) -> (B, T)."""
    inner_BT = real_BT & F.pad(real_BT[:, 1:], (0, 1))
    inner_BT[:, 0] = False
    return inner_BT


def router_weights(query_PD: Tensor, key_PTD: Tensor, among_PT: Tensor) -> Tensor:
    """w of eq. 1 over the tokens of `among_PT`, never padding: (P, D), (P, T, D), (P, T) -> (P, T) fp32."""
    score_PT = (key_PTD @ query_PD.unsqueeze(-1)).squeeze(-1).float() / math.sqrt(key_PTD.shape[-1])
    return score_PT.masked_fill(~among_PT, float("-inf")).softmax(-1)


def weighted(attended_BTD: Tensor, w_BT: Tensor, among_BT: Tensor, weight: Weight) -> Tensor:
    """h of eq. 1: (B, T, D), (B, T), (B, T) -> (B, T, D). `among_BT`: the tokens over which w sums to 1."""
    match weight:
        case Weight.ADDED:
            factor_BT = 1 + w_BT
        case Weight.ONLY:
            factor_BT = w_BT
        case Weight.EVEN:
            factor_BT = w_BT * among_BT.sum(1, keepdim=True)
    return attended_BTD * factor_BT.unsqueeze(-1).to(attended_BTD.dtype)
