"""The work that the encoder did: tokens, padding, model FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Work:
    """Tokens and FLOPs of some prompts.

    tokens: of all prompts, as if each were encoded alone; processed: after sharing prefixes; computed: padding
    included; flops: of the processed tokens through the whole model.
    """

    tokens: int = 0
    processed: int = 0
    computed: int = 0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            tokens=self.tokens + other.tokens,
            processed=self.processed + other.processed,
            computed=self.computed + other.computed,
            flops=self.flops + other.flops,
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an encoder computes. weights: of its matrices; attention: FLOPs of one token that attends to one token."""

    weights: int
    attention: int

    def flops(self, tokens: int, keys: float) -> float:
        """FLOPs of so many tokens, each attending to so many keys."""
        return tokens * (2 * self.weights + self.attention * keys)

    def work(self, *, processed: int, computed: int, attended: int) -> Work:
        """Work of a batch or row; attended: keys of all its tokens."""
        flops = 2.0 * self.weights * processed + float(self.attention) * attended
        return Work(processed=processed, computed=computed, flops=flops)


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is the matrix of a linear layer."""
    return parameter.ndim == 2 and "embed" not in name
