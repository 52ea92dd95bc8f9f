"""The rank of the true tail among all entities of a knowledge graph, and what is made of it.

Shapes: E entities, Q queries, D dimensions.
"""

from __future__ import annotations

import numpy as np
import torch

from raycase.data.graph import Known

BLOCK = 256  # queries whose scores against all entities are held at a time
MEASURES = ("mrr", "hits@1", "hits@3", "hits@10")


def filtered_ranks(
    queries_QD: np.ndarray, entities_ED: np.ndarray, tails_Q: np.ndarray, numbers_Q: np.ndarray, known: Known
) -> np.ndarray:
    """The rank of each query's true tail among all entities, other known tails left out: (Q,) float64, from 1.

    Exact, by cosine, some queries at a time. Of equal scores the true one is taken to stand in the middle.
    """
    entities = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(entities_ED)).float(), dim=1)
    ranks = np.empty(len(queries_QD))
    for start in range(0, len(queries_QD), BLOCK):
        rows = slice(start, start + BLOCK)
        queries = torch.nn.functional.normalize(torch.from_numpy(queries_QD[rows]).float(), dim=1)
        scores_qE = (queries @ entities.T).numpy()
        for i, (tail, number) in enumerate(zip(tails_Q[rows].tolist(), numbers_Q[rows].tolist(), strict=True)):
            true = scores_qE[i, tail]
            scores_qE[i, known.tails(number)] = -np.inf
            scores_qE[i, tail] = -np.inf
            ranks[start + i] = 1 + (~(scores_qE[i] <= true)).sum() + (scores_qE[i] == true).sum() / 2  # NaN: last
    return ranks


def measures_of(ranks_Q: np.ndarray) -> np.ndarray:
    """Of each query, x 100: reciprocal rank, and whether it is among the first 1, 3 and 10: (Q, 4)."""
    return 100 * np.stack([1 / ranks_Q, *(ranks_Q <= k for k in (1, 3, 10))], axis=1)
