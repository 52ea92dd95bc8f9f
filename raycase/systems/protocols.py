"""The two contracts of the house: what can be written to disk and searched, and what can only rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from raycase.rates import Work
from raycase.schema import Reason
from raycase.tokens import Prepared


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What an encoder gives for N pairs.

    vectors (N, dim) float32, NaN where `refused`; refused (N,) the reason or None; truncated (N,) bool;
    work: what was computed; distinct: distinct pairs encoded.
    """

    vectors: np.ndarray
    refused: list[Reason | None]
    truncated: np.ndarray
    work: Work
    distinct: int


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

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise pairs ahead of the encoder. Loads no weights."""

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompts: (N,) int64; 0 for a pair that would be refused. Loads no weights."""

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

    def encode(self, prepared: Prepared) -> Encoded:
        """The same of what `SystemConfig.prepare` gives, with counts, and a reason for each pair without a vector."""

    def compile(self) -> None:
        """Compile for this machine: takes half a minute, and repays itself in long jobs."""

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured when asked for."""


@runtime_checkable
class PairScorer(Protocol):
    """Cross-encoders: what can only rank."""

    def score(self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str]) -> np.ndarray:
        """Similarity of each pair under its condition: N, N, N -> (N,)."""
