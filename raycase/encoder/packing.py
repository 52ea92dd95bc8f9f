"""Which sequences go through the encoder together: length-sorted batches, prefix trees, and rows without padding.

Shapes: N sequences, T tokens of a row. Sequences are ragged: flat ids and N + 1 offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """N sequences of token ids, one after the other: flat (sum of lengths,) int32, offsets (N + 1,) int64."""

    flat: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """From lists of ids."""
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(s) for s in sequences], out=offsets[1:])
        flat = np.fromiter((i for s in sequences for i in s), dtype=np.int32, count=int(offsets[-1]))
        return cls(flat=flat, offsets=offsets)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64."""
        return np.diff(self.offsets)

    def take(self, index: np.ndarray, start: np.ndarray | int = 0) -> Ragged:
        """The sequences of `index`, in its order, without their first `start` tokens."""
        first = self.offsets[index] + start
        offsets = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(self.offsets[index + 1] - first, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], np.diff(offsets))
        return Ragged(flat=self.flat[places], offsets=offsets)


def token_budget_batches(lengths: Sequence[int] | np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Cut sequences, longest first, into batches of at most `budget` tokens, padding counted.

    Yields index arrays that hold every position of `lengths` once. A sequence above the budget is a batch of its own.
    Raises ValueError for a budget below 1.
    """
    _check(budget)
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, budget // max(1, int(sizes[order[start]])))
        yield order[start : start + rows]
        start += rows


def _check(budget: int) -> None:
    if budget < 1:
        raise ValueError(f"batch tokens: expected at least 1, got {budget}")


# ------------------------------------------------------------------------------------------------------ prefix trees


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tokens that go through the encoder as one row: sequences in a prefix tree, or one after the other.

    ids (T,) and position (T,); token i sees the tokens j with `first[j] <= i < end[j]`. In a tree, laid out
    depth-first, `first[j]` is j itself and `end[j]` the end of its subtree; without sharing, both are those of the
    sequence. sequences (n,): which ones end in this row; paths: the place of each one's tokens in the row.
    """

    ids: np.ndarray
    position: np.ndarray
    first: np.ndarray
    end: np.ndarray
    sequences: np.ndarray
    paths: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.ids)

    def padded(self, length: int, pad: int) -> Row:
        """With tokens that see themselves alone, up to a length."""
        places = np.arange(len(self), length)
        return replace(
            self,
            ids=np.concatenate([self.ids, np.full(len(places), pad)]),
            position=np.concatenate([self.position, np.zeros_like(places)]),
            first=np.concatenate([self.first, places]),
            end=np.concatenate([self.end, places + 1]),
        )


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A row of a tree before it is laid out: sequences [start, stop) of the sorted ones, its tokens and its depth."""

    start: int
    stop: int
    tokens: int
    deepest: int


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Sequences in lexicographic order, so that each shares with the one before it all that it can.

    order (N,): place of each before sorting; shared (N,): leading tokens in common with the one before.
    """

    sequences: Ragged
    order: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, sequences: Ragged) -> Forest:
        """Sort and compare."""
        big_endian = sequences.flat.astype(">u4").tobytes()
        ends = (4 * sequences.offsets).tolist()
        keys = [big_endian[a:b] for a, b in pairwise(ends)]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
        ordered = sequences.take(order)
        return cls(sequences=ordered, order=order, shared=_shared_with_previous(ordered))

    def cuts(self, budget: int) -> list[Cut]:
        """Cut into rows of about `budget` tokens, where the fewest tokens have to be repeated in the next row.

        A row is at least half full, so that the sequences of one sentence stay together; those that share a prefix
        above the budget go beyond it by half a budget. Raises ValueError for a budget below 1.
        """
        _check(budget)
        lengths, shared = self.sequences.lengths.tolist(), self.shared.tolist()
        cuts: list[Cut] = []
        start = 0
        while start < len(lengths):
            limit = max(budget, lengths[start] + budget // 2)
            tokens = deepest = lengths[start]
            best = Cut(start=start, stop=start + 1, tokens=tokens, deepest=deepest)
            for k in range(start + 1, len(lengths)):
                if 2 * best.tokens < budget or shared[k] <= shared[best.stop]:
                    best = Cut(start=start, stop=k, tokens=tokens, deepest=deepest)
                tokens += lengths[k] - shared[k]
                deepest = max(deepest, lengths[k])
                if tokens > limit:
                    break
            else:
                best = Cut(start=start, stop=len(lengths), tokens=tokens, deepest=deepest)
            cuts.append(best)
            start = best.stop
        return cuts

    def lay(self, cut: Cut) -> Row:
        """The tree of a cut, depth-first: a token's position is its depth, and it sees its ancestors and itself."""
        members = np.arange(cut.start, cut.stop)
        lengths, shared = self.sequences.lengths[members], self.shared[members].copy()
        shared[0] = 0  # the row begins with a whole sequence
        own = self.sequences.take(members, shared)
        assert len(own.flat) == cut.tokens
        places = np.arange(cut.tokens)
        position = places + np.repeat(shared - own.offsets[:-1], own.lengths)
        end = np.full(cut.tokens, cut.tokens)
        path = np.zeros(int(lengths.max()), dtype=np.int64)  # the current sequence's tokens in the row
        paths: list[np.ndarray] = []
        depth = 0
        for length, kept, new in zip(lengths.tolist(), shared.tolist(), own.offsets[:-1].tolist(), strict=True):
            end[path[kept:depth]] = new  # these subtrees end here
            path[kept:length] = places[new : new + length - kept]
            paths.append(path[:length].copy())
            depth = length
        return Row(ids=own.flat, position=position, first=places, end=end, sequences=self.order[members], paths=paths)


def _shared_with_previous(sequences: Ragged) -> np.ndarray:
    """Leading tokens that each sequence has in common with the one before it: (N,), 0 for the first."""
    lengths = sequences.lengths
    shared = np.zeros(len(lengths), dtype=np.int64)
    if len(lengths) < 2:
        return shared
    both = np.minimum(lengths[1:], lengths[:-1])
    starts = np.concatenate([[0], np.cumsum(both)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], both)
    differs = (
        sequences.flat[np.repeat(sequences.offsets[1:-1], both) + within]
        != sequences.flat[np.repeat(sequences.offsets[:-2], both) + within]
    )
    never = np.iinfo(np.int64).max
    within[~differs] = never
    shared[1:] = np.minimum(both, np.minimum.reduceat(np.append(within, never), starts[:-1]))
    return shared


# --------------------------------------------------------------------------------------------- rows without sharing


def rows_without_padding(sequences: Ragged, budget: int) -> Iterator[Row]:
    """Sequences one after the other in rows of at most `budget` tokens, each seen by itself alone."""
    for members in _consecutive(sequences.lengths, budget):
        some = sequences.take(members)
        first, end = (np.repeat(offsets, some.lengths) for offsets in (some.offsets[:-1], some.offsets[1:]))
        places = np.arange(len(some.flat))
        yield Row(
            ids=some.flat,
            position=places - first,
            first=first,
            end=end,
            sequences=members,
            paths=np.split(places, some.offsets[1:-1]),
        )


def _consecutive(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Neighbours together, up to `budget` tokens; one above it goes alone. Raises ValueError for a budget below 1."""
    _check(budget)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + budget, side="right")))
        yield np.arange(start, stop)
        start = stop
