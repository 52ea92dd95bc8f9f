"""Teachers of a head: the training sentences under further conditions, rated by trained models and by heads, of whose
scores a head learns the mean (distillation, Hinton et al., 2015).

Shapes: N further pairs, R rated pairs, C conditions, S similar ones, W of the states, G pairs of sentences, K further
conditions of each.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from raycase.errors import RequestError
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs
from raycase.models.registry import resolve
from raycase.training.head_pairs import PairIndex, PairStates, indexed_texts
from raycase.training.losses import unit_ratings
from raycase.training.vector_cache import VectorCache

FURTHER, FURTHER_OF_MODELS = 8, 16  # conditions of each pair of sentences; where trained models teach, more do better
SIMILAR = 30  # conditions among which a similar one is chosen
SHARE = 0.6  # of further conditions that are similar to one that was rated


def check_teachers(models: Sequence[str]) -> list[dict[str, Any]]:
    """What determines each model's scores. Raises RequestError for one that is not trained, or knows its conditions."""
    teachers = {model: resolve(model) for model in models}
    for model, teacher in teachers.items():
        if not teacher.folder or teacher.known_conditions is not None:
            raise RequestError(f"--teacher-models: expected trained models that read conditions, got {model}")
    return [teachers[model].describe() for model in models]  # one given twice counts twice


def scores_by_model(
    model: str, rated: RatedPairs, train: PairStates, further: PairIndex, vectors: VectorCache, **cached: Any
) -> np.ndarray:
    """The scores by a trained model of the further pairs, on the scale of ratings: (N,). cached: where, and the number
    format, as `VectorCache.scores_of` takes them."""
    applies = train.ratings != NOT_APPLICABLE
    sentences, conditions = (indexed.values for indexed in indexed_texts(rated))
    both = train.then(further)
    index_N2, condition_N = both.sentence_index.tolist(), both.condition_index.tolist()
    rows = [(sentences[i], sentences[j], conditions[c]) for (i, j), c in zip(index_N2, condition_N, strict=True)]
    name = f"--teacher-models: sentences of {rated.uri} under its and further conditions"
    of_rated, of_further = np.split(vectors.scores_of(rows, model, name=name, **cached), [len(train.ratings)])
    return on_the_scale_of_ratings(of_further, of_rated[applies], train.ratings[applies])


def further_pairs(train: PairStates, seed: int, count: int = FURTHER) -> PairIndex:
    """Pairs of sentences under further conditions of the training data, not rated yet, in the order of the groups,
    `count` rows each: some similar to a rated one, the others as often as they are rated."""
    random = np.random.default_rng(seed)
    groups, first, group_N = np.unique(train.groups, return_index=True, return_inverse=True)
    similar_CS = _similar(train.conditions)
    order = np.argsort(group_N, kind="stable")
    starts = np.searchsorted(group_N[order], np.arange(len(groups) + 1))
    counts_G1 = np.diff(starts)[:, None]
    own_GK = order[starts[:-1, None] + random.integers(0, counts_G1, (len(groups), count))]
    near_GK = similar_CS[train.condition_index[own_GK], random.integers(0, similar_CS.shape[1], own_GK.shape)]
    any_GK = train.condition_index[random.integers(0, len(group_N), own_GK.shape)]
    further_GK = np.where(random.random(own_GK.shape) < SHARE, near_GK, any_GK)
    return PairIndex(
        sentence_index=train.sentence_index[first].repeat(count, axis=0),
        condition_index=further_GK.reshape(-1),
        groups=groups.repeat(count),
        ratings=np.zeros(further_GK.size, np.float32),
    )


def on_the_scale_of_ratings(scores: np.ndarray, of_rated: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """Scores of a model, (N,), shifted and scaled by least squares so that those of the rated pairs, (R,), are their
    `unit_ratings`, as cosines are trained to be. Raises RequestError for scores that are all the same."""
    if not np.ptp(of_rated) > 0:
        raise RequestError("--teacher-models: expected a model that distinguishes pairs, got one score for all of them")
    slope, offset = np.polyfit(of_rated, unit_ratings(torch.tensor(ratings)).numpy(), 1)
    return np.asarray(slope * scores + offset)


def pseudo_labelled_pairs(further: PairIndex, scores: Sequence[np.ndarray]) -> PairIndex:
    """The further pairs, "rated" with the mean of what each teacher gives them, (N,) each."""
    return replace(further, ratings=np.mean(scores, axis=0).astype(np.float32))


def _similar(conditions_CW: np.ndarray) -> np.ndarray:
    """The most similar other conditions of each one: (C, S)."""
    unit_CW = F.normalize(torch.tensor(conditions_CW), dim=-1)
    count = min(SIMILAR, len(unit_CW) - 1) + 1
    parts = [(part @ unit_CW.T).topk(count, dim=1).indices for part in unit_CW.split(1024)]
    ranked_CS = torch.cat(parts).numpy()
    return ranked_CS[:, 1:] if count > 1 else ranked_CS
