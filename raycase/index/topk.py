"""The nearest vectors, block by block: memory holds one block and k neighbours for each query, never all vectors.

Shapes: Q queries, N vectors in blocks of B, D dimensions, k neighbours, m of several results, H hits. Vectors have unit
length, so a dot product is a cosine.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK_ROWS = 16384  # vectors in a block: its scores stay in the processor's cache
BLOCK_SCORES = 2**24  # scores held at a time: with many queries, blocks get smaller
BLOCK_OF_K = 16  # times k: rows at least of which the nearest k are merged with those so far
DIGITS = 6  # of scores: products in float32 differ behind these with the block in which a vector stands

Block = tuple[np.ndarray, Tensor]  # row offsets (B,) int64, unit vectors (B, D) float32
Blocks = Callable[[], Iterable[Block]]  # read again at each call
Nearest = tuple[np.ndarray, np.ndarray]  # cosines (Q, k), row offsets (Q, k); -inf and -1 where there are fewer


def nearest_others(vectors_ND: np.ndarray, k: int) -> Nearest:
    """The k vectors, or all where there are fewer, nearest to each by the cosine of unit vectors, without itself."""
    vectors, own = torch.from_numpy(vectors_ND), torch.arange(len(vectors_ND))
    return top_k(vectors, [vectors], min(k, len(vectors) - 1), query_groups=own, groups=own)


def top_k(queries_QD: Tensor, blocks: Iterable[Tensor], k: int, **how: Any) -> Nearest:
    """`top_rows`, where a row's number counts the vectors of all blocks."""

    def numbered() -> Iterator[Block]:
        first = 0
        for block_ND in blocks:
            yield np.arange(first, first + len(block_ND)), block_ND
            first += len(block_ND)

    return top_rows(queries_QD, numbered(), k, **how)


def top_rows(
    queries_QD: Tensor,
    blocks: Iterable[Block],
    k: int,
    *,
    query_groups: Tensor | None = None,
    groups: Tensor | None = None,
    block_rows: int = BLOCK_ROWS,
    digits: int | None = None,
) -> Nearest:
    """The k rows whose vectors have the largest dot products with each query, best first.

    (Q, D), blocks of numbers (B,) and vectors (B, D), in any order -> scores (Q, k) float32, numbers (Q, k) int64.
    Products are computed in float32, whatever the vectors' type, and rounded to so many digits (None: to none). Of
    equal scores the smaller number wins. With groups, (Q,) and by number (N,) int64, vectors of the query's own group
    are left out. Where fewer than k vectors remain, -inf and -1 fill the rest.
    """
    queries_QD, count = queries_QD.float(), len(queries_QD)
    scores_Qk, rows_Qk = nothing(count, k)
    step, latest = max(1, min(block_rows, BLOCK_SCORES // max(1, count))), -1
    for number_B, vectors_BD in parts(blocks, step):
        scores_QB = queries_QD @ vectors_BD.float().T
        scores_QB = scores_QB if digits is None else scores_QB.round(decimals=digits)
        if query_groups is not None and groups is not None:
            is_own_QB = query_groups[:, None] == groups[None, torch.from_numpy(number_B)]
            scores_QB.masked_fill_(is_own_QB, -torch.inf)
        least_Q1 = torch.from_numpy(scores_Qk[:, -1:])
        is_better_QB = scores_QB > least_Q1
        if number_B.min() < latest:  # of equal scores, the smaller number may be in the later block
            is_better_QB |= (scores_QB == least_Q1) & torch.from_numpy(number_B < rows_Qk[:, -1:])
        latest = max(latest, number_B.max())
        if np.isneginf(scores_Qk[:, -1]).any() and len(vectors_BD) > k:  # else every score would beat -inf
            is_better_QB &= scores_QB >= scores_QB.topk(k).values[:, -1:]
        query_H, row_H = is_better_QB.nonzero(as_tuple=True)
        if len(query_H):
            hits = query_H.numpy(), number_B[row_H.numpy()], scores_QB[query_H, row_H].numpy()
            scores_Qk, rows_Qk = merge_hits(scores_Qk, rows_Qk, *hits)
    return scores_Qk, rows_Qk


def nothing(count: int, k: int) -> Nearest:
    """What `top_rows` gives where there are no vectors."""
    return np.full((count, k), -np.inf, np.float32), np.full((count, k), -1, np.int64)


def joined(blocks: Iterable[Block]) -> Block:
    """The rows of some blocks as one, by ascending offsets."""
    offsets, vectors = zip(*blocks, strict=True)
    offsets_N = np.concatenate(offsets)
    order_N = np.argsort(offsets_N)
    return offsets_N[order_N], torch.cat(vectors)[torch.from_numpy(order_N)]


def only(block: Block, selected: np.ndarray | None) -> Block:
    """The rows of a block with these offsets; all for None."""
    if selected is None:
        return block
    offsets_N, vectors_ND = block
    is_selected_N = np.isin(offsets_N, selected)
    return offsets_N[is_selected_N], vectors_ND[torch.from_numpy(is_selected_N)]


def parts(blocks: Iterable[Block], rows: int) -> Iterator[Block]:
    """Blocks in parts of at most so many rows."""
    for offsets_B, vectors_BD in blocks:
        for start in range(0, len(offsets_B), rows):
            yield offsets_B[start : start + rows], vectors_BD[start : start + rows]


def nearest_rows(vectors_QD: np.ndarray, blocks: Iterable[Block], k: int) -> Nearest:
    """The k rows nearest to unit vectors (Q, D), by cosines rounded to `DIGITS`; of equal ones the earlier first."""
    block_rows = max(BLOCK_ROWS, BLOCK_OF_K * k)
    return top_rows(torch.from_numpy(vectors_QD), blocks, k, block_rows=block_rows, digits=DIGITS)


def merge_top_k(several: Iterable[Nearest], k: int) -> Nearest:
    """The best k of several results whose rows are of the same index: (Q, m) each -> (Q, k)."""
    scores, rows = zip(*several, strict=True)
    scores_Qm, rows_Qm = np.concatenate(scores, axis=1), np.concatenate(rows, axis=1)
    best_Qk = np.lexsort((rows_Qm, -scores_Qm))[:, :k]
    return np.take_along_axis(scores_Qm, best_Qk, 1), np.take_along_axis(rows_Qm, best_Qk, 1)


def merge_hits(
    scores_Qk: np.ndarray, rows_Qk: np.ndarray, query_H: np.ndarray, row_H: np.ndarray, score_H: np.ndarray
) -> Nearest:
    """The best k of the current result and H new hits, each with its query."""
    count, k = scores_Qk.shape
    queries = np.concatenate([np.repeat(np.arange(count), k), query_H])
    rows = np.concatenate([rows_Qk.reshape(-1), row_H])
    scores = np.concatenate([scores_Qk.reshape(-1), score_H])
    order = np.lexsort((rows, -scores, queries))
    ends = np.cumsum(np.bincount(queries, minlength=count))
    best_Qk = order[(ends - np.bincount(queries, minlength=count))[:, None] + np.arange(k)]
    return scores[best_Qk], rows[best_Qk]
