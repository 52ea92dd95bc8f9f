"""Copies between this machine's memory and the encoder's device.

On a GPU they are few, and from and to pinned memory, so that none waits for what the GPU is at.

Shapes: N prompts, B of a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

PENDING = 4  # batches whose vectors may be on their way from the GPU
# B prompts by index, (B,), and their vectors, (B, V * D) fp32 -> (B, K), of any type
Finish = Callable[[Tensor, Tensor], Tensor]
ALIGNED = 32  # numbers: compiled kernels may read 16 bytes at once


def send(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of integers on the device, as int32 in their shapes: all of them in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device) for array in arrays]
    return unpacked(packed(arrays, pinned).to(device, non_blocking=True), arrays)


def packed(arrays: Sequence[np.ndarray], empty: Callable[[int], Tensor]) -> Tensor:
    """Arrays of integers one after the other in one tensor that `empty` makes, each aligned."""
    host = empty(sum(map(_aligned, arrays)))
    flat, start = host.numpy(), 0
    for array in arrays:
        flat[start : start + array.size] = array.reshape(-1)
        start += _aligned(array)
    return host


def unpacked(flat: Tensor, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """The parts of such a tensor, in the arrays' shapes."""
    parts = flat.split([_aligned(array) for array in arrays])
    return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _aligned(array: np.ndarray) -> int:
    return -(-array.size // ALIGNED) * ALIGNED


def pinned(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """An empty tensor in memory that the GPU copies from and to by itself; torch keeps and reuses it."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


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
        host_BD = pinned(*vectors_BD.shape, dtype=vectors_BD.dtype)
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
