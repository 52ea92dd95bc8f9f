"""What condition pooling's head is trained on, as texts and with the stored states of their tokens; vectors of pairs by
a head; and teachers: the training sentences under further conditions, rated by trained models and by heads, of whose
scores a head learns the mean (distillation, Hinton et al., 2015).

Shapes: N pairs, R rated ones, S sentences and C conditions (distinct), B of a batch, T tokens of its longest, W of the
states, P of f(s), D vectors, G pairs of sentences, K further conditions of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.packing import token_budget_batches
from raycase.errors import RequestError
from raycase.evaluation.metrics import nested_correlations
from raycase.heads.condition_head import ConditionQueries, Head, KeysValues
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.pairs import Indexed, distinct
from raycase.models.registry import resolve
from raycase.tokens.stored import StoredStates
from raycase.training.recipe import unit_ratings
from raycase.training.vector_cache import VectorCache

TOKENS_AT_ONCE = 4096  # tokens, padding included, that go through the head together
EVALUATED_AT_ONCE = 1024  # pairs
# which sentences (B,), their states (B, T, W), which tokens are real (B, T), f(s) (B, P)
SentencePart = tuple[np.ndarray, Tensor, Tensor, Tensor]
PoolPairs = Callable[[KeysValues, ConditionQueries], Tensor]


@dataclass(frozen=True, kw_only=True)
class PairIndex:
    """Pairs with ratings, as indices of distinct sentences and distinct conditions. The arrays may be read-only."""

    sentence_index: np.ndarray  # (N, 2)
    condition_index: np.ndarray  # (N,)
    groups: np.ndarray  # (N,) equal for pairs of the same two sentences, which share a batch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    def __len__(self) -> int:
        return len(self.ratings)

    def take(self, rows: np.ndarray) -> Self:
        """These pairs."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(PairIndex)})

    def then(self, others: PairIndex) -> Self:
        """These pairs, then others of the same sentences and conditions."""
        columns = {f.name: np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(PairIndex)}
        return replace(self, **columns)


@dataclass(frozen=True, kw_only=True)
class PairStates(PairIndex):
    """Pairs with ratings and stored states."""

    sentences: StoredStates  # S
    unconditional: np.ndarray  # (S, P) float32, f(s)
    conditions: np.ndarray  # (C, W) float32, mean states

    @property
    def dim(self) -> int:
        """Numbers of a state, W."""
        return self.conditions.shape[1]

    def states(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        """States of these sentences and f of them, those of similar length together."""
        for members in token_budget_batches(self.sentences.counts[sentences], TOKENS_AT_ONCE):
            states_BTW, real_BT = self.sentences.padded(sentences[members])
            unconditional_BP = self.unconditional[sentences[members]]
            yield members, torch.from_numpy(states_BTW), torch.from_numpy(real_BT), torch.from_numpy(unconditional_BP)

    @classmethod
    def of(cls, rated: RatedPairs, config: ConditionPoolingConfig, vectors: VectorCache, **cached: Any) -> PairStates:
        """Pairs with the states of their sentences and conditions. cached: as `VectorCache.states_of` takes it."""
        sentences, conditions = indexed_texts(rated)
        sentence_states, unconditional = vectors.states_of(sentences.values, config, name=rated.uri, **cached)
        condition_states, _ = vectors.states_of(conditions.values, config, name=f"conditions of {rated.uri}", **cached)
        return cls(
            sentences=sentence_states,
            unconditional=unconditional,
            conditions=condition_states.means,
            sentence_index=sentences.codes.reshape(2, -1).T,
            condition_index=conditions.codes,
            groups=rated.groups,
            ratings=rated.ratings,
        )


def indexed_texts(rated: RatedPairs) -> tuple[Indexed, Indexed]:
    """The sentences of rated pairs, all first ones before all second ones, and their conditions."""
    return Indexed.of([*rated.sentences1, *rated.sentences2]), Indexed.of(rated.conditions)


Pairs = TypeVar("Pairs", RatedPairs, PairStates)


@dataclass(frozen=True, kw_only=True)
class HeadPairs(Generic[Pairs]):
    """What a head is trained on: pairs that were rated, which every epoch trains on; pairs drawn from labels, rated in
    [0, 1], and the epoch that trains on each; and texts, each as both sentences of a pair, rated 1 if it states
    something of the condition, else 0."""

    rated: Pairs
    drawn: Pairs
    epochs: np.ndarray
    stated: Pairs

    @classmethod
    def of(cls, pairs: Pairs, rated: int, epochs: np.ndarray) -> HeadPairs[Pairs]:
        """From `pairs`, of which so many were rated, and the epoch of each that was drawn."""
        parts = np.split(np.arange(len(pairs)), [rated, rated + len(epochs)])
        return cls(**dict(zip(("rated", "drawn", "stated"), map(pairs.take, parts), strict=True)), epochs=epochs)

    def __len__(self) -> int:
        return len(self.rated)

    @cached_property
    def pairs(self) -> Pairs:
        """All of them, in this order."""
        return self.rated.then(self.drawn).then(self.stated)


class HeadTexts(HeadPairs[RatedPairs]):
    """What a head is trained on, as texts."""

    @property
    def uri(self) -> str:
        return self.rated.uri

    @property
    def counts(self) -> dict[str, int]:
        """What `metrics.json` has of them."""
        not_applicable = int((self.rated.ratings == NOT_APPLICABLE).sum())
        return {"drawn": len(self.drawn) + len(self.stated), "not_applicable": not_applicable}

    @cached_property
    def data_sha256(self) -> str:
        """Hash of everything that is learned from."""
        epochs = [np.zeros(len(self.rated), np.int64), self.epochs, np.full(len(self.stated), -1)]
        hashed = (self.pairs.sha256.encode(), self.pairs.pair_index.tobytes(), self.pairs.ratings.tobytes())
        return hashlib.sha256(b"".join([*hashed, np.concatenate(epochs).tobytes()])).hexdigest()


def head_pair_vectors(head: Head, pairs: PairStates, rows: np.ndarray, pool: PoolPairs | None = None) -> Tensor:
    """Vectors of the first sentences of these pairs, then of the second ones: (2 B, D); or what `pool` makes of them.

    Each distinct sentence, condition and pair of these goes through the head once: drawn pairs are of a few texts."""
    device = head.temperatures.device
    sentences, sentence_2B = np.unique(pairs.sentence_index[rows].T.reshape(-1), return_inverse=True)
    conditions, condition_B = np.unique(pairs.condition_index[rows], return_inverse=True)
    questions = head.ask(torch.from_numpy(pairs.conditions[conditions]).to(device))
    under_U, under_2B = distinct(sentence_2B * len(conditions) + np.tile(condition_B, 2))
    sentence_U, condition_U = np.divmod(under_U, len(conditions))
    vectors, order = [], []
    for members, *part in pairs.states(sentences):
        tokens = head.read(*(tensor.to(device) for tensor in part))
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_U] >= 0)
        pair_questions = questions.take(torch.from_numpy(condition_U[there])[:, None].to(device))
        pair_tokens = tokens.take(torch.from_numpy(place[sentence_U[there]]).to(device))
        vectors.append((pool or head.pool)(pair_tokens, pair_questions)[:, 0])
        order.append(there)
    return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(order))[under_2B]).to(device)]


def head_correlations(head: Head, pairs: PairStates, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of the head's vectors of rated pairs."""
    vectors = np.concatenate(head_vectors(head, pairs))
    index = np.arange(len(vectors)).reshape(2, -1).T
    return nested_correlations(vectors, index, pairs.ratings, nested)


@torch.inference_mode()
def head_vectors(head: Head, pairs: PairStates) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second sentence of every pair: (N, D) each."""
    count = len(pairs.ratings)
    vectors = np.empty((2, count, head.output_dim), dtype=np.float32)
    for start in range(0, count, EVALUATED_AT_ONCE):
        rows = np.arange(start, min(count, start + EVALUATED_AT_ONCE))
        vectors[:, rows] = head_pair_vectors(head, pairs, rows).unflatten(0, (2, -1)).cpu().numpy()
    return vectors[0], vectors[1]


# ----------------------------------------------------------------------------------------------------------- teachers

FURTHER, FURTHER_OF_MODELS = 8, 16  # conditions of each pair of sentences; where trained models teach, more do better
SIMILAR = 30  # conditions among which a similar one is chosen
SHARE = 0.6  # of further conditions that are similar to one that was rated


def check_teachers(models: Sequence[str]) -> list[dict[str, Any]]:
    """What determines each model's scores; refused are those that are not trained, or know their conditions."""
    teachers = {model: resolve(model) for model in models}
    for model, teacher in teachers.items():
        if not teacher.folder or teacher.known_conditions is not None:
            raise RequestError(f"--teacher-models: expected trained models that read conditions, got {model}")
    return [teachers[model].describe() for model in models]  # one given twice counts twice


def scores_by_model(
    model: str, rated: RatedPairs, train: PairStates, further: PairIndex, vectors: VectorCache, **cached: Any
) -> np.ndarray:
    """The scores by a trained model of the further pairs, on the scale of ratings: (N,)."""
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
    `unit_ratings`, as cosines are trained to be."""
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
