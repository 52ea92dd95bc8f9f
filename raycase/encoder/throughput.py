"""The work that the encoder did: tokens, and padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Work:
    """Tokens of some prompts: `tokens` as if each were encoded alone; processed: after sharing prefixes; computed:
    padding included."""

    tokens: int = 0
    processed: int = 0
    computed: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            tokens=self.tokens + other.tokens,
            processed=self.processed + other.processed,
            computed=self.computed + other.computed,
        )


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is the matrix of a linear layer."""
    return parameter.ndim == 2 and "embed" not in name
