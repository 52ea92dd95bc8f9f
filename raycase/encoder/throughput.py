"""The work that the encoder did (tokens, padding, model FLOPs), and the rate that this device reaches at best."""

from __future__ import annotations

import time
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


MAX_FLOPS, SECONDS = 2e10, 0.3  # of one product on a CPU; for all products together


def matrix_product_rate(device: torch.device, dtype: torch.dtype, *, rows: int, inner: int, outer: int) -> float:
    """FLOP/s of (rows, inner) x (inner, outer) on this device in this number format.

    The best of several runs, so that warming up and other load on the machine do not count.
    """
    import torch  # takes seconds to import; `Work` does not need it

    if device.type == "cpu":
        rows = max(1, min(rows, int(MAX_FLOPS / (2 * inner * outer))))
    a = torch.randn(rows, inner, device=device, dtype=dtype)
    b = torch.randn(outer, inner, device=device, dtype=dtype)
    seconds: list[float] = []
    with torch.inference_mode():
        while len(seconds) < 5 or (sum(seconds) < SECONDS and len(seconds) < 100):
            began = time.perf_counter()
            torch.nn.functional.linear(a, b)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * outer / min(seconds)
