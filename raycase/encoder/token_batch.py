"""Tokenised prompts: one (`Tokens`), and many whose common parts are held once (`TokenBatch`).

Shapes: N prompts, V views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from raycase.data.schema import Reason
from raycase.encoder.packing import Ragged

REASONS = list(Reason)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One tokenised prompt: ids, the pooled tokens [start, end), and what became of a prompt that was too long."""

    ids: list[int]
    start: int
    end: int
    truncated: bool = False
    refused: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """N tokenised prompts, each a left piece and a right one, so that what many share is held once.

    left, right (N,): places in `pieces`; start, end (N, V): the pooled tokens, of one or several views; truncated (N,)
    bool; refused (N,): place in `REASONS`, or -1.
    """

    pieces: Ragged
    left: np.ndarray
    right: np.ndarray
    start: np.ndarray
    end: np.ndarray
    truncated: np.ndarray
    refused: np.ndarray

    @classmethod
    def of(cls, *views: Sequence[Tokens]) -> TokenBatch:
        """Each prompt in one piece; views have the same tokens and pool different ones."""
        tokens = views[0]
        return cls(
            pieces=Ragged.of([[], *(t.ids for t in tokens)]),
            left=np.arange(1, len(tokens) + 1),
            right=np.zeros(len(tokens), dtype=np.int64),
            start=np.array([[t.start for t in view] for view in views], dtype=np.int64).T,
            end=np.array([[t.end for t in view] for view in views], dtype=np.int64).T,
            truncated=np.array([t.truncated for t in tokens], dtype=bool),
            refused=np.array([-1 if t.refused is None else REASONS.index(t.refused) for t in tokens], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.left)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt: (N,)."""
        lengths = self.pieces.lengths
        return lengths[self.left] + lengths[self.right]

    @property
    def reasons(self) -> list[Reason | None]:
        """Why a prompt is refused, or None: (N,)."""
        return [None if i < 0 else REASONS[i] for i in self.refused.tolist()]

    def ids(self, rows: np.ndarray) -> Ragged:
        """The complete prompts of `rows`."""
        both = self.pieces.take(np.stack([self.left[rows], self.right[rows]], axis=1).reshape(-1))
        return Ragged(flat=both.flat, offsets=both.offsets[::2])

    def take(self, rows: np.ndarray) -> TokenBatch:
        """The prompts of `rows`, over the same pieces."""
        own = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "pieces"}
        return replace(self, **own)

    def replaced(self, rows: np.ndarray, others: TokenBatch) -> TokenBatch:
        """With `others` in the place of `rows`."""
        pieces = Ragged(
            flat=np.concatenate([self.pieces.flat, others.pieces.flat]),
            offsets=np.concatenate([self.pieces.offsets, self.pieces.offsets[-1] + others.pieces.offsets[1:]]),
        )
        own = {f.name: getattr(self, f.name).copy() for f in fields(self) if f.name != "pieces"}
        for name, values in own.items():
            moved = len(self.pieces.lengths) if name in ("left", "right") else 0
            values[rows] = getattr(others, name) + moved
        return TokenBatch(pieces=pieces, **own)

    def refuse(self, rows: np.ndarray, reason: Reason) -> TokenBatch:
        """With some prompts, (N,) bool, refused that were not yet."""
        return replace(self, refused=np.where(rows & (self.refused < 0), REASONS.index(reason), self.refused))

    def arrays(self) -> dict[str, np.ndarray]:
        """For transport; `from_arrays` takes them back."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "pieces"}
        return own | {"flat": self.pieces.flat, "offsets": self.pieces.offsets}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> TokenBatch:
        """The opposite of `arrays`."""
        own = {f.name: arrays[f.name] for f in fields(cls) if f.name != "pieces"}
        return cls(pieces=Ragged(flat=arrays["flat"], offsets=arrays["offsets"]), **own)
