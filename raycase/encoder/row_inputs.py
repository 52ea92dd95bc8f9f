"""What a row needs on the device, sent in one copy before the encoder begins.

Shapes: T tokens of a row of whole chunks or blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.attention import Blocks, Chunks, block_size, blocks, chunks
from raycase.encoder.packing import Row
from raycase.encoder.transfers import send


@dataclass(frozen=True, kw_only=True)
class RowInputs:
    """A row on the device: ids, position and types of tokens (None: all are 0), (1, T) int32, what its tokens see, and
    the arrays that were sent along."""

    ids: Tensor
    position: Tensor
    types: Tensor | None
    sees: Blocks | Chunks
    beside: list[Tensor]


def send_row(
    row: Row, *beside: np.ndarray, device: torch.device, dtype: torch.dtype, window: int | None, flex: bool
) -> RowInputs:
    """Send a row, and integer arrays that are needed when its states are there, for FlexAttention or for chunks."""
    along = [*beside, *([] if row.types is None else [row.types])]
    if flex:
        ids_T, position_T, first_T, end_T, *sent = send(device, row.ids, row.position, row.first, row.end, *along)
        windowed = window is not None and int(row.position.max()) >= window
        size = block_size(float(np.mean([len(path) for path in row.paths])))
        sees: Blocks | Chunks = blocks(first_T, end_T, position_T, window if windowed else None, size=size)
    else:
        ids_T, position_T, *sent = send(device, row.ids, row.position, *along)
        sees = chunks(row, device, dtype, window)
    types = None if row.types is None else sent.pop()[None]
    return RowInputs(ids=ids_T[None], position=position_T[None], types=types, sees=sees, beside=sent)
