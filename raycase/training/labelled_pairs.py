"""What labelled texts teach: pairs drawn by their labels, and whether a text states something of a condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from raycase.errors import RequestError
from raycase.io.labelled_texts import Label, LabelledColumn, LabelledTexts
from raycase.io.rated_pairs import RatedPairs

# Texts are alike where they share a label under a condition, nearly where they share its group. Pairs come in clusters,
# a few texts of a few labels under one wording, each with each: a text goes through the head once for all of its pairs.
# Some of the texts are replaced by answers, phrases that state nothing but the label.

SAME, SAME_GROUP, OTHER = 1.0, 0.4, 0.0  # targets of the cosine
LABELS, TEXTS_OF_EACH = 4, 3  # of a cluster
ANSWERS = 0.27  # share of answers among the texts of a cluster, where a label has some
# Clusters of a column in an epoch: so many for one of 150 texts, in proportion to the cube root of the texts, so that
# large sets do not drown small ones; of all columns at least so many.
CLUSTERS, OF_TEXTS, LEAST_CLUSTERS = 4, 150, 512


def drawn_pairs(sets: Sequence[LabelledTexts], epochs: int, seed: int) -> tuple[RatedPairs, np.ndarray]:
    """The pairs drawn for each of these epochs, rated in [0, 1], in a random order of their clusters; and the epoch of
    each pair, (N,)."""
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
    pairs = _rated(sets[0].uri, [row[:4] for row in rows])
    return pairs, np.array([row[4] for row in rows], np.int64)


def check_drawn(pairs: RatedPairs, sets: Sequence[LabelledTexts]) -> None:
    """Refuse pairs that are all rated alike."""
    if len({*pairs.ratings.tolist()}) < 2:
        got = f"none among {sum(map(len, sets))} texts; a fifth is held out: add texts, or give --validation"
        raise RequestError(f"--labelled: expected two labels in a column, one of them of two texts, got {got}")


def stated_texts(sets: Sequence[LabelledTexts], seed: int) -> RatedPairs:
    """Each text of a column in which some state nothing, as both sentences of a pair, rated 1 if it states something of
    the condition, else 0."""
    random = np.random.default_rng(seed)
    rows: list[tuple[str, str, str, float]] = []
    for labelled in sets:
        for column in labelled.columns:
            if (stated_N := column.stated) is not None:
                for text, stated in zip(labelled.texts, stated_N.tolist(), strict=True):
                    rows.append((text, text, str(random.choice(column.conditions)), float(stated)))
    return _rated(sets[0].uri, rows)


def _rated(uri: str, rows: Sequence[tuple[str, str, str, float]]) -> RatedPairs:
    firsts, seconds, conditions, ratings = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    texts = {"sentences1": firsts, "sentences2": seconds, "conditions": conditions}
    return RatedPairs(uri=uri, ratings=np.array(ratings, np.float32), **texts)


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
