"""Which sequences go through the encoder together: batches sorted by length, prefix trees, rows without padding.

Shapes: N sequences, T tokens of a row. Sequences are ragged: flat ids and N + 1 offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raycase.io.ragged import Ragged


def token_budget_batches(
    lengths: Sequence[int] | np.ndarray, budget: int, *, equal: bool = False
) -> Iterator[np.ndarray]:
    """Cut sequences, longest first, into batches by index of at most `budget` tokens, padding included, or of one
    sequence. equal: those of a batch have one length."""
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, stable=True)
    start = 0
    while start < len(order):
        stop = start + max(1, budget // max(1, int(sizes[order[start]])))
        if equal:
            stop = min(stop, start + int((sizes[order[start:stop]] == sizes[order[start]]).sum()))
        yield order[start:stop]
        start += len(order[start:stop])


# ------------------------------------------------------------------------------------------------------ prefix trees

AT_ONCE = 128  # sequences laid out together
ROW_COST = 256  # tokens that take as long as what a row costs beside its tokens; assumed, not measured
Padded = Callable[[np.ndarray], np.ndarray]  # tokens -> the lengths of the rows that hold them


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tokens that go through the encoder as one row: sequences in a prefix tree, or one after the other.

    Token i attends to the tokens j with `first[j] <= i < end[j]`. In a tree, laid out depth-first, `first[j]` is j and
    `end[j]` the end of its subtree; without sharing, they are the first token and the end of the sequence.
    """

    ids: np.ndarray  # (T,), as `position`, `first` and `end`
    position: np.ndarray
    first: np.ndarray
    end: np.ndarray
    sequences: np.ndarray  # index of each sequence in this row
    paths: Ragged  # of each, the index of its tokens in the row

    def __len__(self) -> int:
        return len(self.ids)

    def padded(self, length: int, pad: int) -> Row:
        """The row filled up to a length with tokens that attend to themselves only."""
        added = np.arange(len(self), length)
        return replace(
            self,
            ids=np.concatenate([self.ids, np.full(len(added), pad)]),
            position=np.concatenate([self.position, np.zeros_like(added)]),
            first=np.concatenate([self.first, added]),
            end=np.concatenate([self.end, added + 1]),
        )


class Cut(NamedTuple):
    """A row before it is laid out: sequences [start, stop) in sorted order, its tokens, the longest sequence."""

    start: int
    stop: int
    tokens: int
    deepest: int


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Sequences to lay out in rows: sorted, so that each shares its longest prefix with a neighbour; where tokens see
    those behind them, nothing is shared, and they stay in their order."""

    sequences: Ragged
    order: np.ndarray  # (N,) index of each before sorting
    shared: np.ndarray  # (N,) leading tokens in common with the one before
    causal: bool = True

    @classmethod
    def of(cls, sequences: Ragged, *, causal: bool = True) -> Forest:
        """Sort the sequences and compare neighbours."""
        if not causal:
            nothing = np.zeros_like(sequences.counts)
            return cls(sequences=sequences, order=np.arange(len(sequences)), shared=nothing, causal=False)
        big_endian = sequences.flat.astype(">u4").tobytes()
        keys = [big_endian[a:b] for a, b in pairwise((4 * sequences.offsets).tolist())]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
        ordered = sequences.take(order)
        return cls(sequences=ordered, order=order, shared=_shared_with_previous(ordered))

    def cuts(self, budget: int, padded: Padded) -> list[Cut]:
        """Cut the sequences into rows of at most `budget` tokens, each where the tokens that fill it up, those that the
        next row has to repeat, and what any row costs, are the smallest part of it. A sequence above the budget may
        have up to half of it beside it, so that it stays together with those that share it."""
        lengths = self.sequences.counts
        total = np.cumsum(lengths - self.shared)
        repeated = np.append(self.shared[1:], 0)  # by the next row, of a row whose last sequence this is
        found: list[Cut] = []
        start = 0
        while start < len(lengths):
            first = int(lengths[start])
            limit = budget if first <= budget else first + budget // 2
            before = int(total[start]) - first
            end = max(start + 1, int(np.searchsorted(total, limit + before, side="right")))
            tokens = total[start:end] - before
            waste = padded(tokens) - tokens + repeated[start:end] + ROW_COST
            stop = end - int(np.argmin((waste / tokens)[::-1]))
            found.append(Cut(start, stop, int(tokens[stop - start - 1]), int(lengths[start:stop].max())))
            start = stop
        return found

    def lay(self, cut: Cut) -> Row:
        """The row of a cut; a token's position is its depth."""
        members = np.arange(cut.start, cut.stop)
        lengths, shared = self.sequences.counts[members], self.shared[members].copy()
        shared[0] = 0  # the row begins with a whole sequence
        suffixes = self.sequences.take(members, shared)
        assert len(suffixes.flat) == cut.tokens
        index = np.arange(cut.tokens)
        starts, stops = suffixes.offsets[:-1], suffixes.offsets[1:]
        paths = _paths(lengths, shared, starts)
        last = np.empty(cut.tokens, dtype=np.int64)  # sequence with this token: NumPy keeps the last one written
        last[paths.flat] = np.repeat(np.arange(len(members)), lengths)
        return Row(
            ids=suffixes.flat,
            position=index + np.repeat(shared - starts, suffixes.counts),
            first=index if self.causal else np.repeat(starts, lengths),
            end=stops[last],
            sequences=self.order[members],
            paths=paths,
        )


def _paths(lengths: np.ndarray, shared: np.ndarray, starts: np.ndarray) -> Ragged:
    """Index in the row of each sequence's tokens: its own from `starts` on; a shared one is the latest at its depth."""
    before, parts = np.full(int(lengths.max()), -1), []
    for k in range(0, len(lengths), AT_ONCE):  # so that a long one costs its neighbours alone
        length, prefix, start = (a[k : k + AT_ONCE, None] for a in (lengths, shared, starts))
        depth = np.arange(int(length.max()))
        there = depth < length
        own = np.where(there & (depth >= prefix), start + depth - prefix, -1)
        own[0] = np.maximum(own[0], before[: len(depth)])
        index = np.maximum.accumulate(own)  # later tokens have larger ones
        before[: len(depth)] = index[-1]
        parts.append(index[there])
    return Ragged.by_counts(np.concatenate(parts), lengths)


def _shared_with_previous(sequences: Ragged) -> np.ndarray:
    """Leading tokens that each sequence has in common with the one before it: (N,), 0 for the first."""
    lengths = sequences.counts
    both = np.minimum(lengths[1:], lengths[:-1])
    before, after = (sequences.take(rows, stop=both) for rows in (slice(None, -1), slice(1, None)))
    place = np.arange(len(before.flat)) - np.repeat(before.offsets[:-1], both)
    never = np.iinfo(np.int64).max
    differs = np.append(np.where(before.flat == after.flat, never, place), never)
    return np.append(0, np.minimum(both, np.minimum.reduceat(differs, before.offsets[:-1])))[: len(lengths)]


# ------------------------------------------------------------------------------------------------- lengths of rows

STEP = 128  # FlexAttention's blocks, of either size, in a row


def row_lengths(budget: int) -> list[int]:
    """The lengths of rows for FlexAttention, which is compiled for each: at most six, first the longest, the budget."""
    return sorted({-(-(budget >> shift) // STEP) * STEP for shift in (0, 1, 2, 3, 4, 6)} - {0}, reverse=True)


def padded_lengths(tokens: np.ndarray, row_lengths: Sequence[int]) -> np.ndarray:
    """The shortest of these lengths that holds so many tokens; above the longest, that times a power of two."""
    ascending = np.sort(row_lengths)
    longest = ascending[-1]
    place = np.searchsorted(ascending, tokens)
    doublings = np.ceil(np.log2(np.maximum(tokens, 1) / longest)).clip(0).astype(np.int64)  # few lengths: few graphs
    return np.where(tokens <= longest, ascending[np.minimum(place, len(ascending) - 1)], longest * 2**doublings)
