"""Teachers of a head of condition pooling, other heads or models: it learns the mean of what they say (distillation,
Hinton et al., 2015) of each pair of sentences, under conditions for which nobody rated it.

Shapes: N rated pairs, G pairs of sentences, K further conditions of each, C conditions, W of the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from raycase.errors import RequestError
from raycase.heads.condition_head import Head
from raycase.io.vectors import cosines
from raycase.training.condition_head_fit import head_vectors
from raycase.training.condition_pairs import PairIndex, PairStates
from raycase.training.losses import unit_ratings

FURTHER, FURTHER_OF_MODELS = 8, 16  # conditions of each pair of sentences; where trained models teach, more do better
SIMILAR = 30  # conditions among which a similar one is chosen
SHARE = 0.6  # of further conditions that are similar to one that was rated


def further_pairs(train: PairStates, seed: int, count: int = FURTHER) -> PairIndex:
    """Pairs of sentences under further conditions of the training data, not rated yet, in the order of the groups,
    `count` rows each."""
    groups, first, group_N = np.unique(train.groups, return_index=True, return_inverse=True)
    further_GK = further_conditions(train, group_N, len(groups), seed, count)
    return PairIndex(
        sentence_index=train.sentence_index[first].repeat(count, axis=0),
        condition_index=further_GK.reshape(-1),
        groups=groups.repeat(count),
        ratings=np.zeros(further_GK.size, np.float32),
        epochs=np.zeros(further_GK.size, np.int64),
    )


def said_by_head(head: Head, train: PairStates, further: PairIndex) -> np.ndarray:
    """The cosines of a head: (N,)."""
    return cosines(*head_vectors(head, replace(train, **vars(further))))


def on_the_scale_of_ratings(scores: np.ndarray, of_rated: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """Scores of a model, (N,), shifted and scaled by least squares so that those of the rated pairs, (R,), are their
    `unit_ratings`, as cosines are trained to be. Raises RequestError for scores that are all the same."""
    if not np.ptp(of_rated) > 0:
        raise RequestError("--teacher-models: expected a model that tells pairs apart, got one score for all of them")
    slope, offset = np.polyfit(of_rated, unit_ratings(torch.tensor(ratings)).numpy(), 1)
    return np.asarray(slope * scores + offset)


def pseudo_labelled_pairs(further: PairIndex, said: Sequence[np.ndarray]) -> PairIndex:
    """The further pairs, "rated" with the mean of what each teacher says of them, (N,) each."""
    return replace(further, ratings=np.mean(said, axis=0).astype(np.float32))


def further_conditions(
    train: PairStates, group_N: np.ndarray, groups: int, seed: int, count: int = FURTHER
) -> np.ndarray:
    """Conditions of each pair of sentences: some similar to a rated one, the others as often as they are rated.

    group_N: the pair of sentences of each row. Gives (G, K).
    """
    random = np.random.default_rng(seed)
    similar_CS = _similar(train.conditions)
    order = np.argsort(group_N, kind="stable")
    starts = np.searchsorted(group_N[order], np.arange(groups + 1))
    counts_G1 = np.diff(starts)[:, None]
    own_GK = order[starts[:-1, None] + random.integers(0, counts_G1, (groups, count))]
    near_GK = similar_CS[train.condition_index[own_GK], random.integers(0, similar_CS.shape[1], own_GK.shape)]
    any_GK = train.condition_index[random.integers(0, len(group_N), own_GK.shape)]
    return np.where(random.random(own_GK.shape) < SHARE, near_GK, any_GK)


def _similar(conditions_CW: np.ndarray) -> np.ndarray:
    """The most similar other conditions of each one: (C, S)."""
    unit_CW = F.normalize(torch.tensor(conditions_CW), dim=-1)
    count = min(SIMILAR, len(unit_CW) - 1) + 1
    parts = [(part @ unit_CW.T).topk(count, dim=1).indices for part in unit_CW.split(1024)]
    ranked_CS = torch.cat(parts).numpy()
    return ranked_CS[:, 1:] if count > 1 else ranked_CS
