"""Rated pairs drawn from labelled texts: alike where they share a label under a condition, nearly where they share its
group.

They come in clusters, a few texts of a few labels under one wording of a condition, each with each: a text goes through
the head once for all of its pairs. Some of the texts are replaced by answers, phrases that say nothing but the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from raycase.io.labelled import Label, LabelledColumn, LabelledTexts
from raycase.io.rated import RatedPairs
from raycase.training.condition_pairs import SAYS

SAME, SAME_GROUP, OTHER = 1.0, 0.4, 0.0  # targets of the cosine
LABELS, TEXTS_OF_EACH = 4, 3  # of a cluster
ANSWERS = 0.27  # share of answers among the texts of a cluster, where a label has some
# Clusters of a column in an epoch: so many for one of 150 texts, in proportion to the cube root of the texts, so that
# large sets do not drown small ones; of all columns at least so many.
CLUSTERS, OF_TEXTS, LEAST_CLUSTERS = 4, 150, 512


def with_pairs_of(rated: RatedPairs | None, sets: Sequence[LabelledTexts], epochs: int, seed: int) -> RatedPairs:
    """The rated pairs, then those drawn for each of these epochs, in a random order of their clusters, then `SAYS`."""
    if not sets:
        assert rated is not None
        return rated
    rows: list[tuple[str, str, str, float, int]] = []  # two texts, condition, rating, epoch
    columns = [_Column.of(column, labelled.texts) for labelled in sets for column in labelled.columns]
    each = np.array([CLUSTERS * (len(column.texts) / OF_TEXTS) ** (1 / 3) for column in columns])
    each = np.ceil(each * max(1.0, LEAST_CLUSTERS / each.sum())).astype(int)
    for epoch in range(1, epochs + 1):
        random = np.random.default_rng([seed, epoch])
        for number in random.permutation(np.repeat(np.arange(len(columns)), each)):
            wordings = columns[number].column.wordings
            wording = wordings[random.integers(len(wordings))]
            rows += [(a, b, wording, rating, epoch) for a, b, rating in columns[number].cluster(random)]
    random = np.random.default_rng(seed)
    for column in columns:
        if (said_N := column.column.said) is not None:
            for text, said in zip(column.texts, said_N.tolist(), strict=True):
                rows.append((text, text, str(random.choice(column.column.wordings)), float(said), SAYS))
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
        for label in self._some_labels(random):
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

    def _some_labels(self, random: np.random.Generator) -> list[str]:
        """Two of a group, if it has as many, of each of some groups."""
        order = random.permutation(len(self.groups))
        return [str(label) for i in order for label in random.permutation(self.groups[i])[:2]][:LABELS]
