"""What labelled texts teach: batches of texts of one column, each pair of which is alike, nearly or not, by its labels;
and whether a text states something of a condition.

Shapes: N texts of a column, A answers, phrases that state nothing but a label, L labels, G groups, B texts of a batch,
P pairs of these, K texts, each under a condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from raycase.errors import RequestError
from raycase.io.labelled_texts import LabelledColumn, LabelledTexts
from raycase.io.rated_pairs import RatedPairs

SAME, SAME_GROUP, OTHER = 1.0, 0.4, 0.0  # targets of the cosine
LABELS, TEXTS = 12, 48  # of a batch
ANSWERED = 0.5  # share of the batches that have an answer for each of their labels, too


class LabelBatch(NamedTuple):
    """Texts (B,) under one condition, and of pairs of them places (P, 2), targets of the cosine and weights (P,)."""

    texts: np.ndarray
    condition: int
    pairs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ColumnIndex:
    """A column of labelled texts, as indices of texts and conditions."""

    texts: np.ndarray  # (N,)
    labels: np.ndarray  # (N, L) bool
    wordings: np.ndarray
    groups: np.ndarray  # (L,) number of the label's group
    answers: tuple[np.ndarray, ...]  # L, texts of each
    stated: np.ndarray | None  # (N,), as `LabelledColumn.stated`

    @classmethod
    def of(
        cls,
        column: LabelledColumn,
        texts: Sequence[str],
        text_index: Mapping[str, int],
        condition_index: Mapping[str, int],
    ) -> ColumnIndex:
        """A column of these texts."""
        names = sorted(frozenset().union(*column.labels))
        coarse = [column.groups.get(name, name) for name in names]
        return cls(
            texts=np.array([text_index[text] for text in texts]),
            labels=np.array([[name in cell for name in names] for cell in column.labels]),
            wordings=np.array([condition_index[wording] for wording in column.conditions]),
            groups=np.unique(coarse, return_inverse=True)[1],
            answers=tuple(np.array([text_index[a] for a in column.answers.get(name, ())], np.int64) for name in names),
            stated=column.stated,
        )

    def batch(self, random: np.random.Generator) -> LabelBatch:
        """Texts of some labels, and in some batches an answer for each, under one of the wordings: all pairs of them,
        of which those of one label weigh as much together as the others."""
        chosen = random.permutation(self.labels.shape[1])[:LABELS]
        each = -(-TEXTS // len(chosen))
        of_label = [np.flatnonzero(self.labels[:, label]) for label in chosen]
        rows = np.unique(np.concatenate([random.permutation(rows)[:each] for rows in of_label]))
        texts, labels_BL = self.texts[rows], self.labels[rows]
        if random.random() < ANSWERED and (answered := [label for label in chosen if len(self.answers[label])]):
            texts = np.append(texts, [random.choice(self.answers[label]) for label in answered])
            labels_BL = np.concatenate([labels_BL, np.eye(self.labels.shape[1], dtype=bool)[answered]])
            texts, once = np.unique(texts, return_index=True)  # an answer may be a text, or that of two labels
            labels_BL = labels_BL[once]
        first_P, second_P = np.triu_indices(len(texts), 1)
        groups_BG = labels_BL @ np.eye(self.groups.max() + 1, dtype=bool)[self.groups]
        same_P, near_P = ((of[first_P] & of[second_P]).any(1) for of in (labels_BL, groups_BG))
        return LabelBatch(
            texts=texts,
            condition=int(random.choice(self.wordings)),
            pairs=np.stack([first_P, second_P], axis=1),
            targets=np.select([same_P, near_P], [SAME, SAME_GROUP], OTHER).astype(np.float32),
            weights=(same_P / max(1, same_P.sum()) + ~same_P / max(1, (~same_P).sum())).astype(np.float32),
        )


def label_batches(columns: Sequence[ColumnIndex], count: int, seed: int, epoch: int) -> list[LabelBatch]:
    """So many batches of an epoch, each of a column that is drawn by the cube root of its texts, so that large ones do
    not drown small ones; none without columns."""
    if not columns:
        return []
    random = np.random.default_rng([seed, epoch])
    shares = np.cbrt([len(column.texts) for column in columns])
    return [columns[i].batch(random) for i in random.choice(len(columns), count, p=shares / shares.sum())]


def stated_texts(columns: Sequence[ColumnIndex], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each text of a column in which some state nothing, under one of its conditions, and whether it states something:
    the indices of texts and of conditions, and 1 or 0, (K,) each."""
    random = np.random.default_rng(seed)
    rows = [(c.texts, random.choice(c.wordings, len(c.texts)), c.stated) for c in columns if c.stated is not None]
    texts, conditions, stated = map(np.concatenate, zip(*rows, strict=True)) if rows else (np.zeros(0, np.int64),) * 3
    return texts, conditions, stated.astype(np.float32)


def validation_pairs(tables: Sequence[LabelledTexts], seed: int) -> RatedPairs:
    """Texts of each column in pairs, rated from 1 to 5 by their labels. Raises RequestError if all are alike."""
    rows: list[tuple[str, str, str]] = []
    ratings: list[np.ndarray] = []
    for table in tables:
        text_index = {text: i for i, text in enumerate(table.texts)}
        for column in table.columns:
            if any(column.labels):
                alone = replace(column, answers={}, conditions=column.conditions[:1])
                index = ColumnIndex.of(alone, table.texts, text_index, {column.conditions[0]: 0})
                drawn = index.batch(np.random.default_rng(seed))
                for i, j in drawn.texts[drawn.pairs].tolist():
                    rows.append((table.texts[i], table.texts[j], column.conditions[0]))
                ratings.append(1 + 4 * drawn.targets)
    found = np.concatenate([*ratings, np.zeros(0, np.float32)])
    if len({*found.tolist()}) < 2:
        got = f"none among {sum(map(len, tables))} texts; a fifth is held out: add texts, or give --validation"
        raise RequestError(f"--labelled: expected two labels in a column, one of them of two texts, got {got}")
    firsts, seconds, conditions = map(list, zip(*rows, strict=True))
    return RatedPairs(uri=tables[0].uri, sentences1=firsts, sentences2=seconds, conditions=conditions, ratings=found)


def parted(labelled: LabelledTexts, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Texts to train on, and a fifth to validate with."""
    order = np.random.default_rng(seed).permutation(len(labelled))
    cut = len(order) // 5
    return labelled.take(np.sort(order[cut:])), labelled.take(np.sort(order[:cut]))
