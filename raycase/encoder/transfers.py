"""Copies between this machine's memory and the encoder's device.

On a GPU they are from and to pinned memory, so that none waits for what the GPU is at.

Shapes: N prompts, B of a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

PENDING = 4  # batches whose vectors may be on their way from the GPU
# B prompts by index, (B,), and their vectors, (B, V * D) fp32 -> (B, K), of any type
Finish = Callable[[Tensor, Tensor], Tensor]


def send(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of integers on the device, as int32 in their shapes."""
    hosts = [torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays]
    if device.type != "cuda":
        return [host.to(device) for host in hosts]
    return [host.pin_memory().to(device, non_blocking=True) for host in hosts]


class Collector:
    """The vectors of N prompts, as batch after batch comes from the device.

    A batch is copied while those after it are computed, and put into its rows only then.
    """

    def __init__(self, count: int, like: Tensor) -> None:
        """count: N. like: (0, D), of the type that the vectors have."""
        self.vectors_ND = np.empty((count, like.shape[1]), dtype=like.cpu().numpy().dtype)
        self.pending: list[tuple[np.ndarray, np.ndarray | slice, Tensor, torch.cuda.Event]] = []

    def add(self, rows: np.ndarray, vectors_BD: Tensor, kept: np.ndarray | None = None) -> None:
        """Take the vectors of the prompts with these indices; kept (B,) bool: of these alone."""
        chosen = slice(None) if kept is None else kept
        if vectors_BD.device.type != "cuda":
            self.vectors_ND[rows[chosen]] = vectors_BD.cpu().numpy()[chosen]
            return
        host_BD = torch.empty(vectors_BD.shape, dtype=vectors_BD.dtype, pin_memory=True)
        host_BD.copy_(vectors_BD, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self.pending.append((rows, chosen, host_BD, copied))
        if len(self.pending) > PENDING:
            self._store_first()

    def result(self) -> np.ndarray:
        """All vectors, (N, D): waits for those that are on their way."""
        while self.pending:
            self._store_first()
        return self.vectors_ND

    def _store_first(self) -> None:
        rows, chosen, host_BD, copied = self.pending.pop(0)
        copied.synchronize()
        self.vectors_ND[rows[chosen]] = host_BD.numpy()[chosen]
