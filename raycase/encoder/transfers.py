"""Copies between this machine's memory and the encoder's device, from and to pinned memory: none waits for the device.

Shapes: N prompts, B of a batch, D dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PENDING = 4  # batches whose vectors may be on their way from the GPU


class Collector:
    """The vectors of N prompts, as batch after batch comes from the device.

    A batch is copied while those after it are computed, and put into its rows only then.
    """

    def __init__(self, count: int, like: Tensor) -> None:
        """count: N. like: (0, D), of the type that the vectors have."""
        self.vectors_ND = np.empty((count, like.shape[1]), dtype=like.cpu().numpy().dtype)
        self.pending: list[tuple[np.ndarray, Tensor, torch.cuda.Event]] = []

    def add(self, rows: np.ndarray, vectors_BD: Tensor) -> None:
        """Take the vectors of the prompts with these indices."""
        if vectors_BD.device.type != "cuda":
            self.vectors_ND[rows] = vectors_BD.numpy()
            return
        host_BD = torch.empty(vectors_BD.shape, dtype=vectors_BD.dtype, pin_memory=True)
        host_BD.copy_(vectors_BD, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self.pending.append((rows, host_BD, copied))
        if len(self.pending) > PENDING:
            self._store_first()

    def result(self) -> np.ndarray:
        """All vectors, (N, D): waits for those that are on their way."""
        while self.pending:
            self._store_first()
        return self.vectors_ND

    def _store_first(self) -> None:
        rows, host_BD, copied = self.pending.pop(0)
        copied.synchronize()
        self.vectors_ND[rows] = host_BD.numpy()
