"""Rows of an index labelled by answers that people gave some of them, with a promise, and the rows to ask for next.

A promise is checked by rows that were drawn at random and that the model did not learn from. For that, no row may be
chosen by what the check sample has: where the model picks uncertain rows to ask for, it picks among those of the check
sample, too, which it learns from henceforth.

Shapes: N rows, B of a block, L labels, K classes (the labels, and none of them where somebody answered so),
D dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from raycase.errors import note
from raycase.explore.answered import LearnedLabels, learn
from raycase.explore.classify import (
    AT_ONCE,
    MARGIN,
    join_vectors,
    label_vectors,
    row_vectors,
    unconditional_at,
)
from raycase.explore.facets import import_sklearn
from raycase.explore.promise import (
    ENOUGH,
    check_sample,
    least_checked,
    level_of,
    promise_precision,
    promise_recall,
    random_order,
    steps_of,
)
from raycase.index.answers import STATED
from raycase.index.index import Index, names_at, text_column
from raycase.index.lance_files import OFFSET
from raycase.index.rows import BATCH_ROWS
from raycase.index.topk import Blocks
from raycase.io.row_labels import DRAWN, LABEL, OPEN, RANDOM, ROUND, RowLabels, find_rows
from raycase.io.schema import ID, SCORE, TEXT

PROBABILITY, ANSWERED, PROMISED = "probability", "answered", "promised"
POOL = 5  # times as many of the least certain rows as are asked for: of these, unlike ones are picked
DOUBT_LEFT = 1e-6  # of a row with the probability 1


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The shares that are promised, None for none; each: the precision of each label apart; asked: rows to ask for."""

    precision: float | None = None
    recall: float | None = None
    each: bool = False
    asked: int = 0


@dataclass(frozen=True, kw_only=True)
class Promised:
    """Rows for which the model is right as often as promised, checked ones, too, (N,) bool; how many are checked (of
    all, where nothing is promised), and wrong ones of these; recalled: whether the recall is promised, too; looks: how
    often was looked so far; lacking: random answers, all right, that it takes at least before a look; enough: whether
    more of them would show little."""

    rows: np.ndarray
    checked: int
    wrong: int
    recalled: bool
    looks: int
    lacking: int
    enough: bool


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The rows with labels; the rows to ask for; the promise; why there are no probabilities."""

    table: pa.Table
    ask: pa.Table | None
    promised: Promised | None
    unsure: str | None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """N rows. order: at random. answer: their class, -1: without one. checked: and not learned from. best, share,
    margin, stated: the model's class, its probability, by how much that is above the second, and that of all labels."""

    order: np.ndarray
    answer: np.ndarray
    checked: np.ndarray
    best: np.ndarray
    share: np.ndarray
    margin: np.ndarray
    stated: np.ndarray

    @property
    def learned(self) -> np.ndarray:
        """Those from which the model learned: (N,) bool."""
        return (self.answer >= 0) & ~self.checked


def label_by_answers(
    index: Index,
    condition: str | None,
    blocks: Blocks,
    *,
    labels: Sequence[str],
    answers: RowLabels,
    where: str | None,
    wanted: Wanted,
) -> Labelled:
    """Label the rows in these blocks, which are under a condition of the index and pass the filter. Rows that were
    answered keep their answer; the label of one that is neither answered nor promised is left open."""
    offsets_N, rows, learned = _learn(
        index, condition, blocks, labels, answers, where, promises=wanted.precision is not None
    )
    classes = len(learned.classifier.classes_)
    promised = (
        promise(rows, wanted, max(1, answers.rounds), len(labels), classes) if wanted.precision is not None else None
    )
    answered_N = rows.answer >= 0
    promised_N = ~answered_N & promised.rows if promised else ~answered_N
    ask = None
    if promised and wanted.asked:
        ask = _ask(index, condition, offsets_N, rows, promised, labels, wanted.asked)
    class_N = np.where(answered_N, rows.answer, rows.best)
    columns = {
        ID: index.dataset.take(offsets_N, columns=[ID])[ID],
        LABEL: pa.array([*labels, None]).take(pa.array(class_N, mask=~answered_N & ~promised_N)),
        SCORE if learned.unsure else PROBABILITY: np.where(answered_N, 1, rows.share).astype(np.float32),
        MARGIN: np.where(answered_N, 1, rows.margin).astype(np.float32),
    }
    if classes > len(labels):
        columns[STATED] = np.where(answered_N, rows.answer < len(labels), rows.stated).astype(np.float32)
    columns[ANSWERED] = answered_N
    if promised:
        columns[PROMISED] = promised_N
    return Labelled(table=pa.table(columns), ask=ask, promised=promised, unsure=learned.unsure)


def _learn(
    index: Index,
    condition: str | None,
    blocks: Blocks,
    labels: Sequence[str],
    answers: RowLabels,
    where: str | None,
    *,
    promises: bool,
) -> tuple[np.ndarray, Rows, LearnedLabels]:
    """The rows, by offset, with what a model gives them that learned from the answers, but for the check sample of a
    promise."""
    at = unconditional_at(index, condition)
    labels_LJ = label_vectors(index, labels, condition, joined=at is not None)
    there = index.ids([condition], where).sort_by(OFFSET)
    offsets_N, ids = there[OFFSET].to_numpy(), [*map(str, there[ID].to_pylist())]
    places = find_rows(answers, lambda column: names_at(index, column, offsets_N))
    class_of: dict[str | None, int] = {label: i for i, label in enumerate((*labels, None))}
    answer_N, (drawn_N, checked_N), order_N = np.full(len(ids), -1), np.zeros((2, len(ids)), bool), random_order(ids)
    copied_N = np.zeros(len(ids), bool)
    for at_M, label, drawn in zip(places, answers.labels, answers.drawn, strict=True):
        drawn_N[at_M] = drawn & (drawn_N[at_M] | (answer_N[at_M] < 0))
        answer_N[at_M], copied_N[at_M[1:]] = class_of[label], True
    if promises:
        checked_N = check_sample(order_N, drawn_N, (answer_N >= 0) & ~drawn_N)
        if later := int((drawn_N & ~checked_N).sum()):
            note(f"--answers: {later:,} random rows come after one without an answer: learned from, not checked")
    learned_N = (answer_N >= 0) & ~checked_N & ~copied_N  # of several rows with the text of an answer, from one
    vectors_MJ = labels_LJ[:0]
    if learned_N.any():
        under_MD = index.vectors_at(condition, offsets_N[learned_N])
        vectors_MJ = under_MD if at is None else join_vectors(under_MD, at(offsets_N[learned_N]))
    learned = learn(vectors_MJ, answer_N[learned_N], labels_LJ, index.encoder.dim)
    best_N, (share_N, margin_N, stated_N) = np.zeros(len(ids), np.int64), np.zeros((3, len(ids)))
    for offsets_B, vectors_BJ in row_vectors(blocks, at, max(1, min(BATCH_ROWS, AT_ONCE // len(labels)))):
        at_B, of_each_BK = np.searchsorted(offsets_N, offsets_B), learned.probabilities(vectors_BJ)
        second_B2 = np.partition(of_each_BK, -2)[:, -2:]
        best_N[at_B], share_N[at_B] = of_each_BK.argmax(1), second_B2[:, 1]
        margin_N[at_B], stated_N[at_B] = second_B2[:, 1] - second_B2[:, 0], of_each_BK[:, : len(labels)].sum(1)
    found = {"best": best_N, "share": share_N, "margin": margin_N, "stated": stated_N}
    return offsets_N, Rows(order=order_N, answer=answer_N, checked=checked_N, **found), learned


def _texts(index: Index, offsets_N: np.ndarray) -> list[str] | None:
    """The texts of rows; None where the index keeps none."""
    return names_at(index, TEXT, offsets_N) if text_column(index, None) else None


def promise(rows: Rows, wanted: Wanted, looks: int, labels: int, classes: int) -> Promised:
    """What can be promised at the look of this number, from 1 on."""
    assert wanted.precision is not None
    groups = [rows.best == group for group in range(classes)] if wanted.each else [np.ones(len(rows.answer), bool)]
    shares = len(groups) * (2 if wanted.recall else 1)  # of the chance of an error
    level, right_N, left_N = level_of(looks) / shares, rows.best == rows.answer, ~rows.learned
    promised_N, confidence, looked = np.zeros(len(rows.answer), bool), np.inf, False
    for own_N in (left_N & group_N for group_N in groups):
        found = promise_precision(rows.share[own_N], rows.checked[own_N], right_N[own_N], wanted.precision, level)
        if found:
            confidence, looked = found.confidence, True
            promised_N |= own_N & (rows.share >= confidence)
    recalled = False
    if wanted.recall and promised_N.any():
        has_N = rows.checked & (rows.answer < labels)
        of_checked = rows.share[has_N], right_N[has_N]
        recalled = confidence <= promise_recall(steps_of(rows.share[left_N]), *of_checked, wanted.recall, level)
    shown_N = rows.checked & (promised_N if promised_N.any() else True)
    least = least_checked(wanted.precision, level) - int(rows.checked.sum())
    return Promised(
        rows=promised_N,
        checked=int(shown_N.sum()),
        wrong=int((shown_N & ~right_N).sum()),
        recalled=bool(recalled),
        looks=looks if looked else looks - 1,
        lacking=0 if looked else max(1, least),
        enough=rows.checked.sum() * (1 - wanted.precision) >= ENOUGH * len(groups),
    )


# -------------------------------------------------------------------------------------------------- rows to ask for


def _ask(
    index: Index,
    condition: str | None,
    offsets_N: np.ndarray,
    rows: Rows,
    promised: Promised,
    labels: Sequence[str],
    count: int,
) -> pa.Table:
    """The rows of `rows_to_ask` for a person to fill in."""

    def texts_at(at_M: np.ndarray) -> list[str] | None:
        return _texts(index, offsets_N[at_M])

    def vectors_at(at_M: np.ndarray) -> np.ndarray:
        return index.vectors_at(condition, offsets_N[at_M])

    random, uncertain = rows_to_ask(rows, promised, count, vectors_at, texts_at)
    asked = np.array([*random, *uncertain], np.int64)
    texts, words = texts_at(asked), [*labels, "", OPEN]
    columns = {
        ID: index.dataset.take(offsets_N[asked], columns=[ID])[ID],
        **({} if texts is None else {TEXT: texts}),
        LABEL: [words[answer] for answer in rows.answer[asked]],
        DRAWN: [RANDOM] * len(random) + [""] * len(uncertain),
        ROUND: np.full(len(asked), promised.looks + 1),
    }
    return pa.table(columns)


def rows_to_ask(
    rows: Rows,
    promised: Promised,
    count: int,
    vectors_at: Callable[[np.ndarray], np.ndarray],
    texts_at: Callable[[np.ndarray], list[str] | None],
) -> tuple[list[int], list[int]]:
    """So many rows whose answers would settle most, the next ones at random and uncertain ones, half each until enough
    are checked; or all that are open, where these are no more. Some of the uncertain ones may have been checked."""
    if ((rows.answer < 0) & ~promised.rows).sum() <= count:
        return [], np.flatnonzero(~rows.learned & ~promised.rows).tolist()
    uncertain = _uncertain(rows, count - (0 if promised.enough else count // 2), vectors_at, texts_at)
    is_left_N = rows.answer < 0
    is_left_N[uncertain] = False
    return rows.order[is_left_N[rows.order]][: count - len(uncertain)].tolist(), uncertain


def _uncertain(
    rows: Rows,
    count: int,
    vectors_at: Callable[[np.ndarray], np.ndarray],
    texts_at: Callable[[np.ndarray], list[str] | None],
) -> list[int]:
    """Up to so many rows that the model did not learn from, of low probability and unlike each other: those nearest to
    the centres of as many clusters of the least certain ones, weighed by their doubt (Zhdanov, 2019, arXiv:1901.05954);
    of equal texts one."""
    left = np.flatnonzero(~rows.learned)
    pool = left[np.argsort(rows.share[left], kind="stable")[: POOL * count]]
    if not len(pool):
        return []
    vectors_MD, texts = vectors_at(pool), texts_at(pool) or pool.tolist()
    seen, chosen = {*(texts_at(np.flatnonzero(rows.learned)) or [])}, []
    k_means = import_sklearn().cluster.KMeans(min(count, len(pool)), n_init=1, random_state=0)
    k_means.fit(vectors_MD, sample_weight=1 - rows.share[pool] + DOUBT_LEFT)
    for distances_M in k_means.transform(vectors_MD).T:
        nearest = (i for i in np.argsort(distances_M, kind="stable").tolist() if texts[i] not in seen)
        for i in islice(nearest, 1):
            seen.add(texts[i])
            chosen.append(int(pool[i]))
    return chosen
