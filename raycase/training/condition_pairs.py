"""What condition pooling trains on: rated pairs with the stored states of their sentences and conditions; pairs drawn
from labelled texts; and the same sentences under further conditions, rated by teachers, of whose scores a head learns
the mean (distillation, Hinton et al., 2015).

Shapes: N rated pairs, S sentences and C conditions (distinct), B of a batch, T tokens of its longest, W of the states,
P of f(s), G pairs of sentences, K further conditions of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.packing import token_budget_batches
from raycase.errors import RequestError
from raycase.io.labelled_texts import Label, LabelledColumn, LabelledTexts
from raycase.io.rated_pairs import RatedPairs
from raycase.tokens.stored import StoredStates
from raycase.training.losses import unit_ratings

OF_STATED = -1
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
    # OF_STATED: a text twice, rated 1 if it states something of the condition, else 0
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


# ------------------------------------------------------------------------------------------------------ labelled texts

# Texts are alike where they share a label under a condition, nearly where they share its group. Pairs come in clusters,
# a few texts of a few labels under one wording, each with each: a text goes through the head once for all of its pairs.
# Some of the texts are replaced by answers, phrases that say nothing but the label.

SAME, SAME_GROUP, OTHER = 1.0, 0.4, 0.0  # targets of the cosine
LABELS, TEXTS_OF_EACH = 4, 3  # of a cluster
ANSWERS = 0.27  # share of answers among the texts of a cluster, where a label has some
# Clusters of a column in an epoch: so many for one of 150 texts, in proportion to the cube root of the texts, so that
# large sets do not drown small ones; of all columns at least so many.
CLUSTERS, OF_TEXTS, LEAST_CLUSTERS = 4, 150, 512


def with_pairs_of(rated: RatedPairs | None, sets: Sequence[LabelledTexts], epochs: int, seed: int) -> RatedPairs:
    """The rated pairs, then those drawn for each of these epochs, in a random order of their clusters,
    then `OF_STATED`.
    Raises RequestError where all are drawn and rated alike."""
    if not sets:
        assert rated is not None
        return rated
    rows: list[tuple[str, str, str, float, int]] = []  # two texts, condition, rating, epoch
    columns = [_Column.of(column, labelled.texts) for labelled in sets for column in labelled.columns]
    each = np.array([CLUSTERS * (len(column.texts) / OF_TEXTS) ** (1 / 3) for column in columns])
    each = np.ceil(each * max(1.0, LEAST_CLUSTERS / max(each.sum(), 1.0))).astype(int)
    for epoch in range(1, epochs + 1):
        random = np.random.default_rng([seed, epoch])
        for number in random.permutation(np.repeat(np.arange(len(columns)), each)):
            wordings = columns[number].column.conditions
            wording = wordings[random.integers(len(wordings))]
            rows += [(a, b, wording, rating, epoch) for a, b, rating in columns[number].cluster(random)]
    if rated is None and len({row[3] for row in rows}) < 2:
        got = f"none among {sum(map(len, sets))} texts; a fifth is held out: add texts, or give --validation"
        raise RequestError(f"--labelled: expected two labels in a column, one of them of two texts, got {got}")
    random = np.random.default_rng(seed)
    for column in columns:
        if (stated_N := column.column.stated) is not None:
            for text, stated in zip(column.texts, stated_N.tolist(), strict=True):
                rows.append((text, text, str(random.choice(column.column.conditions)), float(stated), OF_STATED))
    if rated is not None:
        before = zip(rated.sentences1, rated.sentences2, rated.conditions, rated.ratings.tolist(), strict=True)
        rows = [(*row, 0) for row in before] + rows
    sentences1, sentences2, conditions, ratings, drawn = (list(part) for part in zip(*rows, strict=True))
    return RatedPairs(
        uri=sets[0].uri if rated is None else rated.uri,
        sentences1=sentences1,
        sentences2=sentences2,
        conditions=conditions,
        ratings=np.array(ratings, np.float32),
        drawn=np.array(drawn, np.int64),
    )


def parted(labelled: LabelledTexts, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Texts to train on, and a fifth to validate with."""
    order = np.random.default_rng(seed).permutation(len(labelled))
    cut = len(order) // 5
    return labelled.take(np.sort(order[cut:])), labelled.take(np.sort(order[:cut]))


@dataclass(frozen=True)
class _Column:
    """A column with its texts by label, and its labels by group."""

    column: LabelledColumn
    texts: Sequence[str]
    rows_of: dict[str, list[int]]
    groups: list[list[str]]

    @classmethod
    def of(cls, column: LabelledColumn, texts: Sequence[str]) -> _Column:
        rows_of: dict[str, list[int]] = {}
        for row, labels in enumerate(column.labels):
            for label in sorted(labels):
                rows_of.setdefault(label, []).append(row)
        groups: dict[str, list[str]] = {}
        for label in rows_of:
            groups.setdefault(column.groups.get(label, label), []).append(label)
        return cls(column, texts, rows_of, list(groups.values()))

    def cluster(self, random: np.random.Generator) -> Iterator[tuple[str, str, float]]:
        """Pairs of a cluster, with ratings."""
        items: dict[str, Label] = {}
        groups = random.permutation(len(self.groups))
        drawn = [str(label) for i in groups for label in random.permutation(self.groups[i])[:2]]  # two of a group
        for label in drawn[:LABELS]:
            answers = self.column.answers.get(label, ())
            for _ in range(TEXTS_OF_EACH):
                if answers and random.random() < ANSWERS:
                    items[answers[random.integers(len(answers))]] = frozenset({label})
                else:
                    row = self.rows_of[label][random.integers(len(self.rows_of[label]))]
                    items[self.texts[row]] = self.column.labels[row]
        for (first, labels), (second, others) in combinations(items.items(), 2):
            near = bool(self.column.coarse(labels) & self.column.coarse(others))
            yield first, second, SAME if labels & others else SAME_GROUP if near else OTHER


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
