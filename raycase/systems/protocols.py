"""The two contracts of the house: what can be written to disk and searched, and what can only rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from raycase.schema import Encoded


class SystemConfig(Protocol):
    """What a system is, without its weights."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""

    @property
    def plain_dim(self) -> int:
        """Dimension of unconditional vectors."""

    def describe(self) -> dict[str, Any]:
        """Everything that decides the vectors; `weights` names them by hash or revision."""

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompt: (N,) int64; 0 for a pair that would be refused. Loads no weights."""

    def load(self, **options: Any) -> Encoder:
        """Load the weights (device, dtype, batch_tokens)."""


@runtime_checkable
class Encoder(Protocol):
    """Conditional sentence embeddings: what can be written to disk and searched."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """Vectors of (sentence, condition) pairs: N, N -> (N, dim) float32, not normalised."""

    def encode(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Encoded:
        """The same with counts, and a reason instead of an exception for each pair that cannot be embedded."""


@runtime_checkable
class PairScorer(Protocol):
    """Cross-encoders: what can only rank."""

    def score(self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str]) -> np.ndarray:
        """Similarity of each pair under its condition: N, N, N -> (N,)."""
