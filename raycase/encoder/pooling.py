"""From hidden states to one vector: pure functions on (hidden, span).

Shapes: B sequences, T tokens, D hidden size. Sequences are padded on the right. Flags take their values from here:
importing it imports nothing slow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Pooling(StrEnum):
    """How the tokens of a sequence become one vector."""

    MEAN = "mean"  # over the text
    LAST = "last"
    CLS = "cls"
    LATENT = "latent"  # latent attention, then the mean over the text
    LATENT_END = "latent-end"  # the mean over the text and the end token, as NV-Embed's authors do
    MEAN_ALL = "mean-all"  # over every token, instruction included, as E5's authors do
    POOLER = "pooler"  # [CLS] through the encoder's own dense layer and tanh, as SimCSE's authors do


LATENT_POOLINGS = (Pooling.LATENT, Pooling.LATENT_END)
OVER_A_SPAN = (Pooling.MEAN, *LATENT_POOLINGS)  # the other poolings read one token, or all of them


def pool_mean(hidden_BTD: Tensor, span_BT: Tensor) -> Tensor:
    """Average the hidden states of the text tokens: (B, T, D), (B, T) bool -> (B, D) fp32, NaN without such a token."""
    return (hidden_BTD.float() * span_BT.unsqueeze(-1)).sum(1) / span_BT.sum(1, keepdim=True)


def pooled_spans(
    pooling: Pooling, start_B: np.ndarray, end_B: np.ndarray, lengths_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that a pooling averages, [first, stop) of each sequence; [start, end) are the tokens of the text."""
    match pooling:
        case Pooling.LAST:
            return lengths_B - 1, lengths_B
        case Pooling.LATENT_END:
            return start_B, lengths_B
        case Pooling.MEAN_ALL:
            return 0 * lengths_B, lengths_B
        case Pooling.CLS | Pooling.POOLER:
            return 0 * lengths_B, 0 * lengths_B + 1
    return start_B, end_B
