"""Attention within the rows of `raycase.encoder.packing`: to ancestors only (trees), or within a sequence only.

Token i attends to token j when `first[j] <= i < end[j]` and, in a layer with a sliding window,
`position[i] - position[j] < window`. On a GPU, FlexAttention skips blocks without any such pair, and FlashAttention
takes rows of long sequences that share nothing. Elsewhere the row is cut into chunks of queries: a chunk [a, b) attends
to the keys with `first[j] < b` and `end[j] > a`, a small part of the row.

Shapes: T tokens of a row, C tokens of a chunk, G = T / C chunks, of which g in a part; S keys of a chunk, H heads,
D head size; Q blocks of queries, K blocks of keys; N sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.packing import Row
from raycase.encoder.transfers import send

VARLEN = VARLEN_GROUPS = False
if torch.version.cuda:  # it imports torch's compiler, which takes seconds
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        VARLEN, VARLEN_GROUPS = (name in signature(varlen_attn).parameters for name in ("window_size", "enable_gqa"))

# Model types whose layers take positions and pass `row` on to their attention, and whose layers are known one by one.
# All others go in padded batches, and say themselves what their layers' states are.
KNOWN = ("bert", "roberta", "xlm-roberta", "llama", "mistral", "qwen2", "qwen3")
NAME = "raycase"  # of this attention, for transformers
CHUNK = 64  # queries
PART_KEYS = 2**16  # keys copied at once for every head; bounds the memory that long texts take
# Queries and keys of FlexAttention's blocks -> what its kernel is told. Small ones touch fewer keys that a short prompt
# does not see; they need tiles of their size.
KERNELS: dict[int, dict[str, int]] = {128: {}, 64: {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}}
SHORT = 256  # tokens of a prompt, below which blocks are small
LONGEST = 1024  # tokens of a sequence: the least bound that FlashAttention is told, so that there are few
GRAPHS = 64  # of a function, that the compiler may keep: lengths of rows, two shapes of blocks, layers with a window


@dataclass(frozen=True, kw_only=True)
class ChunkGroup:
    """Consecutive chunks: the index of their keys (g, S), and the mask added to the scores (g, 1, C, S), 0 or -inf.

    `windowed` is the mask of layers with a sliding window; None where the window covers the whole row.
    """

    keys: Tensor
    mask: Tensor
    windowed: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The masks of a row for FlexAttention; `windowed` as in `ChunkGroup`; size: queries and keys of a block."""

    mask: Any  # a BlockMask
    windowed: Any
    size: int


@dataclass(frozen=True, kw_only=True)
class PackedRow:
    """A row of N sequences that share nothing, for FlashAttention.

    starts: (N + 1,) int32 or longer: where each sequence begins, then where the last one ends, repeated. longest: an
    upper bound of their lengths.
    """

    starts: Tensor
    longest: int
    causal: bool


AttentionMask = list[ChunkGroup] | Blocks | PackedRow  # what the tokens of a row attend to


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    row: AttentionMask | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one row, (1, H, T, D) -> (1, T, H, D); without `row`, transformers' attention of a padded batch."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms under autocast give fp32
    if row is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    groups = query.shape[1] // key.shape[1]
    if isinstance(row, PackedRow):
        before = -1 if sliding_window is None else sliding_window - 1
        grouped: dict[str, Any] = {"enable_gqa": True} if groups > 1 else {}
        if grouped and not VARLEN_GROUPS:  # older releases of torch
            key, value, grouped = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1), {}
        query_THD, key_THD, value_THD = (t[0].transpose(0, 1) for t in (query, key, value))
        output_THD: Any = varlen_attn(
            query_THD,
            key_THD,
            value_THD,
            row.starts,
            row.starts,
            row.longest,
            row.longest,
            scale=scaling,
            window_size=(before, 0) if row.causal else (-1, -1),
            **grouped,
        )
        return output_THD[None], None
    if isinstance(row, Blocks):
        from torch.nn.attention.flex_attention import flex_attention

        if groups & (groups - 1):  # its kernels share keys among a power of two
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        flex: Any = flex_attention if torch.compiler.is_compiling() else compiled_flex()
        output_1HTD = flex(
            query,
            key,
            value,
            block_mask=_mask(row, sliding_window),
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=KERNELS[row.size],
        )
        return output_1HTD.transpose(1, 2), None
    chunks_GHCD = query[0].unflatten(1, (-1, CHUNK)).transpose(0, 1)
    outputs: list[Tensor] = []
    start = 0
    for part in row:
        queries_gHCD = chunks_GHCD[start : start + len(part.keys)]
        start += len(part.keys)
        keys_gHSD, values_gHSD = (
            t[0][:, part.keys].transpose(0, 1).repeat_interleave(groups, dim=1) for t in (key, value)
        )
        mask = _mask(part, sliding_window)
        output_gHCD = F.scaled_dot_product_attention(
            queries_gHCD, keys_gHSD, values_gHSD, attn_mask=mask, scale=scaling
        )
        outputs.append(output_gHCD.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


def apart(row: Row) -> tuple[np.ndarray, int] | None:
    """starts and longest of `PackedRow`, of a row of any length; None where tokens are shared, or most sequences are
    short.

    Padding is cut into sequences of its own. How many starts there are depends on the row's length alone.
    """
    lengths = row.paths.counts
    total = int(lengths.sum())
    if total > row.paths.flat[-1] + 1 or lengths.mean() < SHORT:
        return None
    longest = max(LONGEST, 1 << int(lengths.max() - 1).bit_length())
    starts = np.concatenate([[0], np.cumsum(lengths), np.arange(total, len(row), longest)[1:]])
    return np.concatenate([starts, np.full(len(row) // CHUNK + 1 - len(starts), len(row))]), longest


@cache
def compiled_flex() -> Callable[..., Any]:
    """FlexAttention, compiled anew for each length of a row: kernels of any length check every bound, and are slow.

    One graph too many would be computed without a kernel, in silence; `fullgraph` makes it an error.
    """
    from torch.nn.attention.flex_attention import flex_attention

    allow_graphs()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def allow_graphs() -> None:
    """Let the compiler keep `GRAPHS` graphs of a function; its own limit is 8."""
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(GRAPHS, getattr(torch._dynamo.config, limit)))


def block_size(prompt_tokens: float) -> int:
    """Queries and keys of a block, by the mean length of the prompts in a row."""
    return 64 if prompt_tokens < SHORT else 128


def _mask(masks: ChunkGroup | Blocks, window: int | None) -> Any:
    """The mask of a layer with this window, None for a layer without one."""
    return masks.mask if window is None or masks.windowed is None else masks.windowed


def register() -> None:
    """Make `attend` known to transformers as `NAME`. Imports the library's layers, which takes seconds."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def layers_window(config: Any) -> int | None:
    """The sliding window of the encoder's layers, in positions; None: they attend to the whole sequence."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)


def whole_chunks(tokens: Any) -> Any:
    """A number of tokens, or several, rounded up to whole chunks."""
    return -(-tokens // CHUNK) * CHUNK


def chunks(
    row: Row, device: torch.device, dtype: torch.dtype, window: int | None = None, *, part_keys: int = PART_KEYS
) -> list[ChunkGroup]:
    """Keys and masks of a row of whole chunks; the chunks of a part are padded to equally many keys, masked out."""
    tokens = len(row)
    assert tokens % CHUNK == 0
    a_G1 = np.arange(0, tokens, CHUNK)[:, None]
    near_GT = (row.first < a_G1 + CHUNK) & (row.end > a_G1)
    count_G = near_GT.sum(1)
    windowed = window is not None and int(row.position.max()) >= window
    parts: list[ChunkGroup] = []
    start = 0
    while start < len(count_G):
        most = np.maximum.accumulate(count_G[start:])  # keys of each chunk in a part that ends here
        stop = start + max(1, int((most * np.arange(1, len(most) + 1) <= part_keys).sum()))
        keys_gS = np.zeros((stop - start, int(most[stop - start - 1])), dtype=np.int64)
        real_gS = np.arange(keys_gS.shape[1]) < count_G[start:stop, None]
        keys_gS[real_gS] = np.nonzero(near_GT[start:stop])[1]
        query_gC1 = (a_G1[start:stop] + np.arange(CHUNK))[:, :, None]
        first_g1S, end_g1S = (a[keys_gS][:, None, :] for a in (row.first, row.end))
        sees_gCS = (first_g1S <= query_gC1) & (query_gC1 < end_g1S) & real_gS[:, None, :]
        near_gCS = sees_gCS
        if windowed:
            near_gCS = sees_gCS & (row.position[query_gC1] - row.position[keys_gS][:, None, :] < window)
        part = ChunkGroup(
            keys=torch.from_numpy(keys_gS).to(device),
            mask=_additive(sees_gCS, device, dtype),
            windowed=_additive(near_gCS, device, dtype) if windowed else None,
        )
        parts.append(part)
        start = stop
    return parts


def _additive(sees_gCS: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A mask to add to the scores: 0 where a query attends to a key, else -inf: (g, C, S) bool -> (g, 1, C, S)."""
    mask = torch.zeros(sees_gCS.shape, dtype=dtype)
    return mask.masked_fill_(torch.from_numpy(~sees_gCS), float("-inf")).unsqueeze(1).to(device)


def blocks(first_T: Tensor, end_T: Tensor, position_T: Tensor, window: int | None = None, *, size: int) -> Blocks:
    """FlexAttention's masks of a row of whole blocks; window: None where there is none, or it covers the whole row.

    The queries that attend to a block of keys are one interval, from its least `first` to its largest `end`; a block of
    queries within the interval of every key is full: it needs no mask.
    """
    windowed = None if window is None else _block_mask(first_T, end_T, position_T, window, size)
    return Blocks(mask=_block_mask(first_T, end_T, position_T, None, size), windowed=windowed, size=size)


def _block_mask(first_T: Tensor, end_T: Tensor, position_T: Tensor, window: int | None, size: int) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    tokens = len(first_T)
    assert tokens % size == 0

    def sees(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (first_T[j] <= i) & (i < end_T[j])
        return inside if window is None else inside & (position_T[i] - position_T[j] < window)

    first_KS, end_KS, position_KS = (t.view(-1, size) for t in (first_T, end_T, position_T))
    start_Q1 = torch.arange(0, tokens, size, device=first_T.device)[:, None]
    stop_Q1 = start_Q1 + size
    any_QK = (first_KS.amin(1) < stop_Q1) & (end_KS.amax(1) > start_Q1)
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
    """For each block of queries: its number of key blocks (1, 1, Q), and all key blocks, its own first (1, 1, Q, K)."""
    which_QK = blocks_QK.int().argsort(dim=1, descending=True, stable=True)
    return blocks_QK.sum(1, dtype=torch.int32)[None, None], which_QK.int()[None, None]


# ------------------------------------------------------------------------------------------------ a row on the device


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
