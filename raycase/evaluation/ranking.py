"""Measures of a ranking, and ranks of the true tail among all entities of a knowledge graph (CSR, section 3.2).

Shapes: N ranked items, E entities, Q queries, D dimensions.
"""

from __future__ import annotations

import numpy as np
import torch

from raycase.data.graph import Known

MEASURES = ("mrr", "hits@1", "hits@3", "hits@10")


def tied_average_precision(scores_N: np.ndarray, relevant_N: np.ndarray) -> float:
    """`average_precision` of a ranking by scores in which equal scores share a place, the last of theirs.

    So scikit-learn and MTEB have it. relevant_N: bool; 0 without relevant items.
    """
    if not relevant_N.any():
        return 0.0
    at_least_RN = scores_N >= scores_N[relevant_N][:, None]
    return float(np.mean((at_least_RN & relevant_N).sum(1) / at_least_RN.sum(1)))


def reciprocal_rank_at(scores_N: np.ndarray, relevant_N: np.ndarray, k: int) -> float:
    """1 / rank of the first relevant item in a ranking by scores, 0 if it is not among the first k.

    Among equal scores it comes last: constant scores are no ranking. relevant_N: bool.
    """
    if not relevant_N.any():
        return 0.0
    rank = 1 + int((scores_N[~relevant_N] >= scores_N[relevant_N].max()).sum())
    return 1 / rank if rank <= k else 0.0


def filtered_ranks(
    queries_QD: np.ndarray,
    entities_ED: np.ndarray,
    tails_Q: np.ndarray,
    numbers_Q: np.ndarray,
    known: Known,
    *,
    block: int = 256,
) -> np.ndarray:
    """The rank of each query's true tail among all entities by cosine, other known tails left out: (Q,) float64.

    Ranks start at 1; among equal scores the true tail is ranked in the middle. `block` queries are scored at a time.
    """
    entities = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(entities_ED)).float(), dim=1)
    ranks = np.empty(len(queries_QD))
    for start in range(0, len(queries_QD), block):
        rows = slice(start, start + block)
        queries = torch.nn.functional.normalize(torch.from_numpy(queries_QD[rows]).float(), dim=1)
        scores_qE = (queries @ entities.T).numpy()
        for i, (tail, number) in enumerate(zip(tails_Q[rows].tolist(), numbers_Q[rows].tolist(), strict=True)):
            true = scores_qE[i, tail]
            scores_qE[i, known.tails(number)] = -np.inf
            scores_qE[i, tail] = -np.inf
            ranks[start + i] = 1 + (~(scores_qE[i] <= true)).sum() + (scores_qE[i] == true).sum() / 2  # NaN: last
    return ranks


def rank_measures(ranks_Q: np.ndarray) -> np.ndarray:
    """`MEASURES` of each query, x 100: the reciprocal rank, and whether it is at most 1, 3 and 10: (Q, 4)."""
    return 100 * np.stack([1 / ranks_Q, *(ranks_Q <= k for k in (1, 3, 10))], axis=1)
