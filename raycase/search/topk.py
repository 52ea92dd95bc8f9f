"""Exact nearest neighbours, block by block: whatever the number of vectors, one block and k places are held.

Shapes: Q queries, N vectors in blocks of B, D dimensions, k neighbours. Vectors are of unit length, so a dot product is
their cosine.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

BLOCK = 16384  # vectors of a block, at most: its scores stay in the processor's cache
SCORES = 2**24  # scores that are held at a time, about


def unit(vectors_ND: np.ndarray) -> np.ndarray:
    """Vectors of length 1, as float32; 0 stays 0, whose cosine is 0 to everything."""
    vectors_ND = np.asarray(vectors_ND, dtype=np.float32)
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)


def top_k(
    queries_QD: Tensor,
    blocks: Iterable[Tensor],
    k: int,
    *,
    query_groups: Tensor | None = None,
    groups: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k vectors with the largest dot products with each query: (Q, D), blocks (B, D) -> scores (Q, k) float32,
    places (Q, k) int64, best first.

    Products are made in float32, whatever the vectors' type. Of equal scores the earlier place wins. Vectors of the
    query's own group, by (Q,) and (N,) int64, are left out. Where there are fewer than k, -inf and -1 fill the rest.
    """
    count = len(queries_QD)
    queries_QD = queries_QD.float()
    scores_Qk = np.full((count, k), -np.inf, dtype=np.float32)
    places_Qk = np.full((count, k), -1, dtype=np.int64)
    start = 0
    for block_ND in blocks:
        for block_BD in block_ND.split(max(1, min(BLOCK, SCORES // max(1, count)))):
            scores_QB = queries_QD @ block_BD.float().T
            if query_groups is not None and groups is not None:
                own_QB = query_groups[:, None] == groups[None, start : start + len(block_BD)]
                scores_QB.masked_fill_(own_QB, -torch.inf)
            better_QB = scores_QB > torch.from_numpy(scores_Qk[:, -1:])
            if np.isneginf(scores_Qk[:, -1]).any() and len(block_BD) > k:  # else all would be better than nothing
                better_QB &= scores_QB >= scores_QB.topk(k).values[:, -1:]
            query_H, place_H = better_QB.nonzero(as_tuple=True)
            if len(query_H):
                found = query_H.numpy(), (place_H + start).numpy(), scores_QB[query_H, place_H].numpy()
                scores_Qk, places_Qk = _merge(scores_Qk, places_Qk, *found)
            start += len(block_BD)
    return scores_Qk, places_Qk


def merge_top_k(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The best of several results of `top_k`, whose places are of one numbering: (Q, k) each -> (Q, k)."""
    (scores_Qk, places_Qk), *others = parts
    for scores, places in others:
        query_H, column_H = (places >= 0).nonzero()
        found = query_H, places[query_H, column_H], scores[query_H, column_H]
        scores_Qk, places_Qk = _merge(scores_Qk, places_Qk, *found)
    return scores_Qk, places_Qk


def _merge(
    scores_Qk: np.ndarray, places_Qk: np.ndarray, query_H: np.ndarray, place_H: np.ndarray, score_H: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best k of what stands and of what was found: H hits, each with its query."""
    count, k = scores_Qk.shape
    queries = np.concatenate([np.repeat(np.arange(count), k), query_H])
    places = np.concatenate([places_Qk.reshape(-1), place_H])
    scores = np.concatenate([scores_Qk.reshape(-1), score_H])
    order = np.lexsort((places, -scores, queries))
    ends = np.cumsum(np.bincount(queries, minlength=count))
    kept = order[(ends - np.bincount(queries, minlength=count))[:, None] + np.arange(k)]
    return scores[kept], places[kept]
