"""Rows of an index labelled by answers that people gave some of them, with a promise, and the rows to ask for next.

A promise is checked by rows that were drawn at random and that the model did not learn from. For that, no row may be
chosen by what the check sample has: where the model picks uncertain rows to ask for, it picks among those of the check
sample, too, which it learns from henceforth.

Shapes: N rows, B of a block, L labels, K classes (the labels, and none of them where somebody answered so),
D dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raycase.errors import note
from raycase.explore.answered import learn
from raycase.explore.classify import MARGIN, best_of, label_vectors, row_vectors
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
from raycase.index.lance_files import OFFSET, offsets_of
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
    ask: pa.Table | None = None
    promised: Promised | None = None
    unsure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """N rows. order: at random. answer: their class, -1: without one. checked: and not learned from. best, share: the
    model's class, and its probability."""

    order: np.ndarray
    answer: np.ndarray
    checked: np.ndarray
    best: np.ndarray
    share: np.ndarray

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
    labels_LJ, join = label_vectors(index, labels, condition)
    there = index.ids([condition], where).sort_by(OFFSET)
    offsets_N, promised = offsets_of(there), None
    order_N, answer_N, checked_N, copied_N = _answered(index, there, labels, answers, promises=bool(wanted.precision))
    learned_N = (answer_N >= 0) & ~checked_N & ~copied_N  # of several rows with the text of an answer, from one
    vectors_MJ, offsets_M = labels_LJ[:0], offsets_N[learned_N]
    if len(offsets_M):
        vectors_MJ = join(offsets_M, index.vectors_at(condition, offsets_M))
    learned = learn(vectors_MJ, answer_N[learned_N], labels_LJ, index.encoder.dim)
    best_N, (share_N, margin_N, stated_N) = np.zeros(len(there), np.int64), np.zeros((3, len(there)))
    for offsets_B, vectors_BJ in row_vectors(blocks, join, len(labels)):
        at_B, of_each_BK = np.searchsorted(offsets_N, offsets_B), learned.probabilities(vectors_BJ)
        best_N[at_B], share_N[at_B], margin_N[at_B] = best_of(of_each_BK)
        stated_N[at_B] = of_each_BK[:, : len(labels)].sum(1)
    rows = Rows(order=order_N, answer=answer_N, checked=checked_N, best=best_N, share=share_N)
    classes = len(learned.classifier.classes_)
    if wanted.precision:
        promised = promise(rows, wanted, max(1, answers.rounds), len(labels), classes)
    answered_N = answer_N >= 0
    promised_N = ~answered_N & (promised.rows if promised else True)
    class_N = np.where(answered_N, answer_N, best_N)
    columns = {
        ID: there[ID],
        LABEL: pa.array([*labels, None]).take(pa.array(class_N, mask=~answered_N & ~promised_N)),
        SCORE if learned.unsure else PROBABILITY: np.where(answered_N, 1, share_N).astype(np.float32),
        MARGIN: np.where(answered_N, 1, margin_N).astype(np.float32),
        STATED: np.where(answered_N, answer_N < len(labels), stated_N).astype(np.float32),
        ANSWERED: answered_N,
        PROMISED: promised_N,
    }
    left_out = {STATED: classes == len(labels), PROMISED: promised is None}
    table = pa.table({name: column for name, column in columns.items() if not left_out.get(name)})
    ask = _ask(index, condition, there, rows, promised, labels, wanted.asked) if promised and wanted.asked else None
    return Labelled(table=table, ask=ask, promised=promised, unsure=learned.unsure)


def _answered(
    index: Index, there: pa.Table, labels: Sequence[str], answers: RowLabels, *, promises: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of N rows, `Rows.order`, `Rows.answer` and `Rows.checked`; and which have an answer as others of their text."""
    offsets_N, order_N = offsets_of(there), random_order([*map(str, there[ID].to_pylist())])
    class_of: dict[str | None, int] = {label: i for i, label in enumerate((*labels, None))}
    answer_N, (drawn_N, copied_N, checked_N) = np.full(len(there), -1), np.zeros((3, len(there)), bool)
    places = find_rows(answers, lambda column: names_at(index, column, offsets_N))
    for at_M, (row, label) in zip(places, answers.label_of.items(), strict=True):
        drawn_N[at_M] = (row in answers.drawn) & (drawn_N[at_M] | (answer_N[at_M] < 0))
        answer_N[at_M], copied_N[at_M[1:]] = class_of[label], True
    if promises:
        checked_N = check_sample(order_N, drawn_N, (answer_N >= 0) & ~drawn_N)
        if later := int((drawn_N & ~checked_N).sum()):
            note(f"--answers: {later:,} random rows come after one without an answer: learned from, not checked")
    return order_N, answer_N, checked_N, copied_N


def promise(rows: Rows, wanted: Wanted, looks: int, labels: int, classes: int) -> Promised:
    """What can be promised at the look of this number, from 1 on."""
    assert wanted.precision is not None
    groups = [rows.best == group for group in range(classes)] if wanted.each else [np.ones(len(rows.answer), bool)]
    shares = len(groups) * (2 if wanted.recall else 1)  # of the chance of an error
    level, right_N, left_N = level_of(looks) / shares, rows.best == rows.answer, ~rows.learned
    promised_N, looked = np.zeros(len(rows.answer), bool), False
    for own_N in (left_N & group_N for group_N in groups):
        least = promise_precision(rows.share[own_N], rows.checked[own_N], right_N[own_N], wanted.precision, level)
        if least is not None:
            looked = True
            promised_N |= own_N & (rows.share >= least)
    recalled = False
    if wanted.recall and promised_N.any():
        has_N = rows.checked & (rows.answer < labels)
        of_checked = rows.share[has_N], right_N[has_N]
        of_recall = promise_recall(steps_of(rows.share[left_N]), *of_checked, wanted.recall, level)
        recalled = bool(rows.share[promised_N].min() <= of_recall)
    shown_N = rows.checked & (promised_N if promised_N.any() else True)
    lacking = max(1, least_checked(wanted.precision, level) - int(rows.checked.sum()))
    return Promised(
        rows=promised_N,
        checked=int(shown_N.sum()),
        wrong=int((shown_N & ~right_N).sum()),
        recalled=recalled,
        looks=looks if looked else looks - 1,
        lacking=0 if looked else lacking,
        enough=rows.checked.sum() * (1 - wanted.precision) >= ENOUGH * len(groups),
    )


def _ask(
    index: Index,
    condition: str | None,
    there: pa.Table,
    rows: Rows,
    promised: Promised,
    labels: Sequence[str],
    count: int,
) -> pa.Table:
    """The rows of `rows_to_ask` for a person to fill in."""
    offsets_N, has_texts = offsets_of(there), text_column(index, None) is not None

    def texts_at(at_M: np.ndarray) -> list[str]:
        return names_at(index, TEXT if has_texts else ID, offsets_N[at_M])

    def vectors_at(at_M: np.ndarray) -> np.ndarray:
        return index.vectors_at(condition, offsets_N[at_M])

    random, uncertain = rows_to_ask(rows, promised, count, vectors_at, texts_at)
    asked, words = np.array([*random, *uncertain], np.int64), [*labels, "", OPEN]
    columns = {
        ID: there[ID].take(asked),
        **({TEXT: texts_at(asked)} if has_texts else {}),
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
    texts_at: Callable[[np.ndarray], list[str]],
) -> tuple[list[int], list[int]]:
    """So many rows whose answers would settle most, the next ones at random and uncertain ones, half each until enough
    are checked; or all that are open, where these are no more. Some of the uncertain ones may have been checked.

    Uncertain ones are of low probability and unlike each other: those nearest to the centres of as many clusters of
    the least certain ones, weighed by their doubt (Zhdanov, 2019, arXiv:1901.05954); of equal texts one."""
    if ((rows.answer < 0) & ~promised.rows).sum() <= count:
        return [], np.flatnonzero(~rows.learned & ~promised.rows).tolist()
    left, wanted = np.flatnonzero(~rows.learned), count - (0 if promised.enough else count // 2)
    pool = left[np.argsort(rows.share[left], kind="stable")[: POOL * wanted]]
    vectors_MD, texts, uncertain = vectors_at(pool), texts_at(pool), list[int]()
    seen = {*texts_at(np.flatnonzero(rows.learned))}
    k_means = import_sklearn().cluster.KMeans(min(wanted, len(pool)), n_init=1, random_state=0)
    k_means.fit(vectors_MD, sample_weight=1 - rows.share[pool] + DOUBT_LEFT)
    for distances_M in k_means.transform(vectors_MD).T:
        nearest = (i for i in np.argsort(distances_M, kind="stable").tolist() if texts[i] not in seen)
        if (i := next(nearest, None)) is not None:
            seen.add(texts[i])
            uncertain.append(int(pool[i]))
    is_left_N = rows.answer < 0
    is_left_N[uncertain] = False
    return rows.order[is_left_N[rows.order]][: count - len(uncertain)].tolist(), uncertain
