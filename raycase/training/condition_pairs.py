"""Rated pairs for condition pooling, with the stored states of their sentences and conditions; and the same sentences
under further conditions, rated by teachers, of whose scores a head learns the mean (distillation, Hinton et al., 2015).

Shapes: N rated pairs, S sentences and C conditions (distinct), B of a batch, T tokens of its longest, W of the states,
P of f(s), G pairs of sentences, K further conditions of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.packing import token_budget_batches
from raycase.errors import RequestError
from raycase.io.stored_tokens import StoredStates
from raycase.training.losses import unit_ratings

SAYS = -1
TOKENS_AT_ONCE = 4096  # tokens, padding included, that go through the head together
# which sentences (B,), their states (B, T, W), which tokens are real (B, T), f(s) (B, P)
SentencePart = tuple[np.ndarray, Tensor, Tensor, Tensor]
FURTHER, FURTHER_OF_MODELS = 8, 16  # conditions of each pair of sentences; where trained models teach, more do better
SIMILAR = 30  # conditions among which a similar one is chosen
SHARE = 0.6  # of further conditions that are similar to one that was rated


@dataclass(frozen=True, kw_only=True)
class PairIndex:
    """Rated pairs as indices of distinct sentences and distinct conditions. The arrays may be read-only."""

    sentence_index: np.ndarray  # (N, 2)
    condition_index: np.ndarray  # (N,)
    groups: np.ndarray  # (N,) equal for pairs of the same two sentences, which share a batch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply
    # (N,) the epoch that trains on a pair drawn from labels, rated in [0, 1]; 0: rated, trained on in every epoch;
    # SAYS: a text twice, rated 1 if it says something of the condition, else 0
    epochs: np.ndarray

    @property
    def rated(self) -> np.ndarray:
        """The rows of the pairs that were rated: (R,)."""
        return np.flatnonzero(self.epochs == 0)

    def take(self, rows: np.ndarray) -> Self:
        """These pairs."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(PairIndex)})

    def then(self, others: PairIndex) -> Self:
        """These pairs, then others of the same sentences and conditions."""
        columns = {f.name: np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(PairIndex)}
        return replace(self, **columns)


@dataclass(frozen=True, kw_only=True)
class PairStates(PairIndex):
    """Rated pairs with stored states."""

    sentences: StoredStates  # S
    plain: np.ndarray  # (S, P) float32, f(s)
    conditions: np.ndarray  # (C, W) float32, mean states

    @property
    def dim(self) -> int:
        """Numbers of a state, W."""
        return self.conditions.shape[1]

    def means(self, conditions: np.ndarray) -> Tensor:
        """Mean states of these conditions: (C, W)."""
        return torch.from_numpy(self.conditions[conditions])

    def states(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        """States of these sentences and f of them, those of similar length together."""
        for members in token_budget_batches(self.sentences.counts[sentences], TOKENS_AT_ONCE):
            states_BTW, real_BT = self.sentences.padded(sentences[members])
            plain_BP = self.plain[sentences[members]]
            yield members, torch.from_numpy(states_BTW), torch.from_numpy(real_BT), torch.from_numpy(plain_BP)


# ------------------------------------------------------------------------------------------------------------ teachers


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
        epochs=np.zeros(further_GK.size, np.int64),
    )


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


def _similar(conditions_CW: np.ndarray) -> np.ndarray:
    """The most similar other conditions of each one: (C, S)."""
    unit_CW = F.normalize(torch.tensor(conditions_CW), dim=-1)
    count = min(SIMILAR, len(unit_CW) - 1) + 1
    parts = [(part @ unit_CW.T).topk(count, dim=1).indices for part in unit_CW.split(1024)]
    ranked_CS = torch.cat(parts).numpy()
    return ranked_CS[:, 1:] if count > 1 else ranked_CS
