"""What a row needs on the device, sent in one copy before the encoder begins.

Shapes: T tokens of a row of whole chunks or blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.attention import AttentionMask, PackedRow, apart, block_size, blocks, chunks
from raycase.encoder.packing import Row
from raycase.encoder.transfers import send


@dataclass(frozen=True, kw_only=True)
class RowInputs:
    """A row on the device: ids, position and types of tokens (None: all are 0), (1, T) int32, what its tokens see, and
    the arrays that were sent along."""

    ids: Tensor
    position: Tensor
    types: Tensor | None
    sees: AttentionMask
    beside: list[Tensor]


def send_row(
    row: Row,
    *beside: np.ndarray,
    device: torch.device,
    dtype: torch.dtype,
    window: int | None,
    causal: bool,
    flex: bool,
    varlen: bool,
) -> RowInputs:
    """Send a row, and integer arrays that are needed when its states are there.

    varlen: FlashAttention, where the row is for it; else flex: FlexAttention; else attention in chunks.
    """
    types = [] if row.types is None else [row.types]
    sees: AttentionMask
    if varlen and (found := apart(row)):
        starts, longest = found
        ids_T, position_T, starts_N, *sent = send(device, row.ids, row.position, starts, *beside, *types)
        sees = PackedRow(starts=starts_N, longest=longest, causal=causal)
    elif flex:
        ids_T, position_T, first_T, end_T, *sent = send(
            device, row.ids, row.position, row.first, row.end, *beside, *types
        )
        windowed = window is not None and int(row.position.max()) >= window
        size = block_size(float(row.paths.counts.mean()))
        sees = blocks(first_T, end_T, position_T, window if windowed else None, size=size)
    else:
        ids_T, position_T, *sent = send(device, row.ids, row.position, *beside, *types)
        sees = chunks(row, device, dtype, window)
    types_1T = sent.pop()[None] if types else None
    return RowInputs(ids=ids_T[None], position=position_T[None], types=types_1T, sees=sees, beside=sent)
