"""Exact top k, block by block: memory holds one block of vectors and k neighbours for each query, never all vectors.

Shapes: Q queries, N vectors in blocks of B, D dimensions, k neighbours, H hits. Vectors have unit length, so a dot
product is a cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

BLOCK_ROWS = 16384  # vectors in a block: its scores stay in the processor's cache
BLOCK_SCORES = 2**24  # scores held at a time: with many queries, blocks get smaller
MOST_HITS, RESCORED = 2**20, 4096  # candidates remembered before they are scored again, and scored at a time

Hits = tuple[np.ndarray, np.ndarray, np.ndarray]  # query, number and score of each: (H,)
Best = tuple[np.ndarray, np.ndarray]  # scores and numbers: (Q, k)


def top_k(
    queries_QD: Tensor,
    blocks: Iterable[Tensor],
    k: int,
    *,
    query_groups: Tensor | None = None,
    groups: Tensor | None = None,
    block_rows: int = BLOCK_ROWS,
) -> tuple[np.ndarray, np.ndarray]:
    """The k vectors with the largest dot products with each query, best first.

    (Q, D), blocks (B, D) -> scores (Q, k) float32, row indices (Q, k) int64; a row index counts the vectors of all
    blocks. Products are computed in float32, whatever the vectors' type. Of equal scores the earlier row wins. With
    groups, (Q,) and (N,) int64, vectors of the query's own group are left out. Where fewer than k vectors remain, -inf
    and -1 fill the rest.
    """

    def numbered() -> Iterator[tuple[np.ndarray, Tensor]]:
        start = 0
        for block_BD in blocks:
            yield np.arange(start, start + len(block_BD)), block_BD
            start += len(block_BD)

    def excluded(numbers_B: np.ndarray) -> Tensor | None:
        if query_groups is None or groups is None:
            return None
        return query_groups[:, None] == groups[None, torch.from_numpy(numbers_B)]

    best = _nothing(len(queries_QD), k)
    for scanned in _scanned(queries_QD.float(), numbered(), k, block_rows=block_rows, excluded=excluded):
        best = scanned[1]
    return best


def exact_top_k(
    queries_QD: Tensor,
    blocks: Iterable[tuple[np.ndarray, Tensor]],
    k: int,
    at: Callable[[np.ndarray], Tensor],
    margin: float,
) -> tuple[np.ndarray, np.ndarray, float]:
    """`top_k` with scores that do not depend on the block in which a vector is: products in float32, whose last bits
    do, choose candidates alone, and those in float64, rounded to float32, are the scores.

    blocks: with each vector's number, by which the earlier of equal ones wins. at: the vectors of some numbers,
    ascending, in float64. margin: candidates are all vectors whose first score is within it of the k-th best. Returns
    scores (Q, k), numbers (Q, k) and the largest difference of a candidate's two scores: where twice that is below the
    margin, no better vector was left out.
    """
    best = first = _nothing(len(queries_QD), k)
    hits: list[Hits] = []
    difference = 0.0
    for found, first in _scanned(queries_QD, blocks, k, margin=margin):
        hits.append(found)
        if sum(len(each[0]) for each in hits) > MOST_HITS:  # as of many equal vectors
            best, difference = _rescored(best, queries_QD, hits, first[0], margin, at, difference)
            hits = []
    best, difference = _rescored(best, queries_QD, hits, first[0], margin, at, difference)
    return *best, difference


def _nothing(count: int, k: int) -> Best:
    return np.full((count, k), -np.inf, dtype=np.float32), np.full((count, k), -1, dtype=np.int64)


def _scanned(
    queries_QD: Tensor,
    blocks: Iterable[tuple[np.ndarray, Tensor]],
    k: int,
    *,
    margin: float = 0.0,
    block_rows: int = BLOCK_ROWS,
    excluded: Callable[[np.ndarray], Tensor | None] = lambda numbers_B: None,
) -> Iterator[tuple[Hits, Best]]:
    """Block by block, where there are any: hits above the k-th best score, or less than a margin below it, and the best
    k with them. Blocks come with their vectors' numbers; excluded: which of those count for no query, (Q, B)."""
    best = _nothing(len(queries_QD), k)
    step = max(1, min(block_rows, BLOCK_SCORES // max(1, len(queries_QD))))
    for numbers_N, block_ND in blocks:
        for start in range(0, len(numbers_N), step):
            numbers_B = numbers_N[start : start + step]
            scores_QB = queries_QD @ block_ND[start : start + step].float().T
            if (excluded_QB := excluded(numbers_B)) is not None:
                scores_QB.masked_fill_(excluded_QB, -torch.inf)
            near_QB = scores_QB > torch.from_numpy(best[0][:, -1:]) - margin
            if np.isneginf(best[0][:, -1]).any() and len(numbers_B) > k:  # else every score would beat -inf
                near_QB &= scores_QB >= scores_QB.topk(k).values[:, -1:] - margin
            query_H, row_H = near_QB.nonzero(as_tuple=True)
            if len(query_H):
                hits = query_H.numpy(), numbers_B[row_H.numpy()], scores_QB[query_H, row_H].numpy()
                best = _merge(*best, *hits)
                yield hits, best


def _rescored(
    best: Best,
    queries_QD: Tensor,
    hits: list[Hits],
    first_Qk: np.ndarray,
    margin: float,
    at: Callable[[np.ndarray], Tensor],
    difference: float,
) -> tuple[Best, float]:
    """The best so far merged with the hits near the k-th of the first scores, which are scored in float64; and the
    largest difference."""
    if not hits:
        return best, difference
    query_H, number_H, score_H = (np.concatenate(each) for each in zip(*hits, strict=True))
    is_near_H = score_H >= first_Qk[query_H, -1] - margin
    order = np.flatnonzero(is_near_H)[np.argsort(number_H[is_near_H], kind="stable")]
    queries = queries_QD.numpy().astype(np.float64)
    for start in range(0, len(order), RESCORED):
        some = order[start : start + RESCORED]
        numbers_B, row_H = np.unique(number_H[some], return_inverse=True)
        scores_H = np.einsum("hd,hd->h", queries[query_H[some]], at(numbers_B).numpy()[row_H]).astype(np.float32)
        difference = max(difference, float(np.abs(scores_H - score_H[some]).max()))
        best = _merge(*best, query_H[some], number_H[some], scores_H)
    return best, difference


def merge_top_k(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The best k of several results of `top_k` whose row indices count the same vectors: (Q, k) each -> (Q, k)."""
    (scores_Qk, rows_Qk), *others = parts
    for other_scores_Qk, other_rows_Qk in others:
        query_H, column_H = (other_rows_Qk >= 0).nonzero()
        hits = query_H, other_rows_Qk[query_H, column_H], other_scores_Qk[query_H, column_H]
        scores_Qk, rows_Qk = _merge(scores_Qk, rows_Qk, *hits)
    return scores_Qk, rows_Qk


def _merge(
    scores_Qk: np.ndarray, rows_Qk: np.ndarray, query_H: np.ndarray, row_H: np.ndarray, score_H: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best k of the current result and H new hits, each with its query."""
    count, k = scores_Qk.shape
    queries = np.concatenate([np.repeat(np.arange(count), k), query_H])
    rows = np.concatenate([rows_Qk.reshape(-1), row_H])
    scores = np.concatenate([scores_Qk.reshape(-1), score_H])
    order = np.lexsort((rows, -scores, queries))
    ends = np.cumsum(np.bincount(queries, minlength=count))
    best_Qk = order[(ends - np.bincount(queries, minlength=count))[:, None] + np.arange(k)]
    return scores[best_Qk], rows[best_Qk]
