"""What the encoder computed, and how fast this device could have: tokens, padding, model FLOPs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Work:
    """What was encoded.

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


MOST_FLOPS, SECONDS = 2e10, 0.3  # of one product on a CPU; of all of them


def matrix_product_rate(device: torch.device, dtype: torch.dtype, *, rows: int, inner: int, outer: int) -> float:
    """FLOP/s of (rows, inner) x (inner, outer) on this device in this type.

    The best of several: what else runs here, and the first ones' warming up, take nothing from what the device can do.
    """
    import torch  # takes seconds, which those who only count need not wait for

    if device.type == "cpu":
        rows = max(1, min(rows, int(MOST_FLOPS / (2 * inner * outer))))
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
