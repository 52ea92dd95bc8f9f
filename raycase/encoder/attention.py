"""Attention within the rows of `raycase.encoder.packing`: to ancestors only (trees), or within a sequence only.

Token i attends to token j when `first[j] <= i < end[j]` and, in a layer with a sliding window,
`position[i] - position[j] < window`. On a GPU, FlexAttention skips blocks without any such pair. Elsewhere a chunk of
queries [a, b) attends to the keys with `first[j] < b` and `end[j] > a`, a small part of the row.

Shapes: T tokens of a row, C tokens of a chunk, G = T / C chunks, of which g in a part; S keys of a chunk, H heads,
D head size; Q blocks of queries, K blocks of keys.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.packing import Row

DECODERS = ("llama", "mistral", "qwen2", "qwen3")  # model types whose layers pass `row` on to their attention
NAME = "raycase"  # of this attention, for transformers
CHUNK = 64  # queries
PART_KEYS = 2**16  # keys copied at once for every head; bounds the memory that long texts take
# Queries and keys of FlexAttention's blocks -> options of its kernel. Small ones touch fewer keys that a short prompt
# does not see; they need tiles of their size.
KERNELS: dict[int, dict[str, int]] = {128: {}, 64: {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}}
SHORT = 256  # tokens of a prompt, below which blocks are small
GRAPHS = 64  # of a function, that the compiler may keep: lengths of rows, two shapes of blocks, layers with a window

Chunks = list[tuple[Tensor, Tensor]]  # the index of their keys (g, S), and what is added to the scores (g, 1, C, S)
# A layer's window, None without one or where it covers the row -> the BlockMask of FlexAttention, or `Chunks`
RowMasks = dict[int | None, Any]


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    row: RowMasks | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one row, (1, H, T, D) -> (1, T, H, D); without `row`, transformers' attention of a padded batch."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms under autocast give fp32
    if row is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    groups = query.shape[1] // key.shape[1]
    mask: Any = row.get(sliding_window, row[None])
    if not isinstance(mask, list):
        from torch.nn.attention.flex_attention import flex_attention

        if groups & (groups - 1):  # its kernels share keys among a power of two
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        flex: Any = flex_attention if torch.compiler.is_compiling() else compiled_flex()
        output_1HTD = flex(
            query,
            key,
            value,
            block_mask=mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=KERNELS[mask.BLOCK_SIZE[0]],
        )
        return output_1HTD.transpose(1, 2), None
    queries = query[0].unflatten(1, (-1, CHUNK)).transpose(0, 1).split([len(keys) for keys, _ in mask])
    outputs: list[Tensor] = []
    for queries_gHCD, (keys_gS, scores_g1CS) in zip(queries, mask, strict=True):
        keys_gHSD, values_gHSD = (
            t[0][:, keys_gS].transpose(0, 1).repeat_interleave(groups, dim=1) for t in (key, value)
        )
        output_gHCD = F.scaled_dot_product_attention(
            queries_gHCD, keys_gHSD, values_gHSD, attn_mask=scores_g1CS, scale=scaling
        )
        outputs.append(output_gHCD.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


@cache
def compiled_flex() -> Callable[..., Any]:
    """FlexAttention, compiled anew for each length of a row: kernels of any length check every bound, and are slow."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.cache_size_limit = max(GRAPHS, torch._dynamo.config.cache_size_limit)  # its own limit is 8
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)  # else one too many has no kernel, in silence


def register() -> None:
    """Make `attend` known to transformers as `NAME`. Imports the library's layers, which takes seconds."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def whole_chunks(tokens: Any) -> Any:
    """A number of tokens, or several, rounded up to whole chunks."""
    return -(-tokens // CHUNK) * CHUNK


def chunks(row: Row, device: torch.device, dtype: torch.dtype, window: int | None = None) -> Chunks:
    """What the tokens of a row of whole chunks see; chunks of a part are padded to equally many keys, masked out."""
    assert len(row) % CHUNK == 0
    a_G1 = np.arange(0, len(row), CHUNK)[:, None]
    near_GT = (row.first < a_G1 + CHUNK) & (row.end > a_G1)
    count_G = near_GT.sum(1)
    parts: Chunks = []
    start = 0
    while start < len(count_G):
        most = np.maximum.accumulate(count_G[start:])  # keys of each chunk in a part that ends here
        stop = start + max(1, int((most * np.arange(1, len(most) + 1) <= PART_KEYS).sum()))
        keys_gS = np.zeros((stop - start, int(most[stop - start - 1])), dtype=np.int64)
        real_gS = np.arange(keys_gS.shape[1]) < count_G[start:stop, None]
        keys_gS[real_gS] = np.nonzero(near_GT[start:stop])[1]
        query_gC1 = (a_G1[start:stop] + np.arange(CHUNK))[:, :, None]
        first_g1S, end_g1S, position_g1S = (a[keys_gS][:, None, :] for a in (row.first, row.end, row.position))
        sees_gCS = (first_g1S <= query_gC1) & (query_gC1 < end_g1S) & real_gS[:, None, :]
        if window is not None:
            sees_gCS &= row.position[query_gC1] - position_g1S < window
        scores_gCS = torch.zeros(sees_gCS.shape, dtype=dtype).masked_fill_(torch.from_numpy(~sees_gCS), float("-inf"))
        parts.append((torch.from_numpy(keys_gS).to(device), scores_gCS.unsqueeze(1).to(device)))
        start = stop
    return parts


def block_mask(first_T: Tensor, end_T: Tensor, position_T: Tensor, window: int | None = None, *, size: int) -> Any:
    """FlexAttention's BlockMask of a row of whole blocks; size: queries and keys of a block."""
    from torch.nn.attention.flex_attention import BlockMask

    tokens = len(first_T)
    assert tokens % size == 0

    def sees(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (first_T[j] <= i) & (i < end_T[j])
        return inside if window is None else inside & (position_T[i] - position_T[j] < window)

    first_KS, end_KS, position_KS = (t.view(-1, size) for t in (first_T, end_T, position_T))
    start_Q1 = torch.arange(0, tokens, size, device=first_T.device)[:, None]
    stop_Q1 = start_Q1 + size
    any_QK = (first_KS.amin(1) < stop_Q1) & (end_KS.amax(1) > start_Q1)  # the queries of a key are one range
    full_QK = (first_KS.amax(1) <= start_Q1) & (end_KS.amin(1) >= stop_Q1)
    if window is not None:
        full_QK &= position_KS.amax(1)[:, None] - position_KS.amin(1) < window
    return BlockMask.from_kv_blocks(
        *_key_blocks(any_QK & ~full_QK),
        *_key_blocks(full_QK),
        BLOCK_SIZE=size,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


def _key_blocks(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Of each block of queries: its number of key blocks (1, 1, Q), and all of them, its own first (1, 1, Q, K)."""
    which_QK = blocks_QK.int().argsort(dim=1, descending=True, stable=True)
    return blocks_QK.sum(1, dtype=torch.int32)[None, None], which_QK.int()[None, None]
