"""From hidden states to one vector: pure functions on (hidden, span).

Shapes: B sequences, T tokens, D hidden size.
Sequences are padded on the right.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor


class Pooling(StrEnum):
    """How the tokens of a sequence become one vector."""

    MEAN = "mean"  # over the text
    LAST = "last"
    CLS = "cls"
    LATENT = "latent"
    MEAN_ALL = "mean-all"  # over every token, instruction included, as E5's authors do
    POOLER = "pooler"  # [CLS] through the encoder's own dense layer and tanh, as SimCSE's authors do


OVER_A_SPAN = (Pooling.MEAN, Pooling.LATENT)  # the other poolings read one token, or all of them


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
    """How the vector of a sentence and that of a condition become one."""

    HADAMARD = "hadamard"  # elementwise product
    CONCAT = "concat"  # side by side


def compose(sentence_ND: Tensor, condition_ND: Tensor, how: Compose) -> Tensor:
    """The vector of a tri-encoder (Deshpande et al., 2023): (N, D), (N, D) -> (N, D), or (N, 2 D) side by side."""
    if how is Compose.HADAMARD:
        return sentence_ND * condition_ND
    return torch.cat([sentence_ND, condition_ND], dim=1)


def pooled_spans(pooling: Pooling, start_B: Tensor, end_B: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that a pooling averages, [first, stop) of each sequence; [start, end) are the tokens of the text.

    Pooling the last token (the end token, if there is one) or [CLS] is the mean over a span of one token.
    """
    match pooling:
        case Pooling.LAST:
            return lengths_B - 1, lengths_B
        case Pooling.MEAN_ALL:
            return torch.zeros_like(lengths_B), lengths_B
        case Pooling.CLS | Pooling.POOLER:
            return torch.zeros_like(lengths_B), torch.ones_like(lengths_B)
    return start_B, end_B
