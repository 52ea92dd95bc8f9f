"""The two contracts of the house: what can be written to disk and searched, and what can only rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from raycase.data.storage import Location
from raycase.encoder.prepared import Prepared
from raycase.systems.pairs import Encoded

Compute = Literal["bfloat16", "float32"]  # number format inside the encoder


class SystemConfig(Protocol):
    """What a system is, without its weights."""

    @property
    def model(self) -> str:
        """What it was asked for by: a name, an id, a folder."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""

    @property
    def plain_dim(self) -> int:
        """Dimension of unconditional vectors."""

    @property
    def label(self) -> str:
        """What it is, for people."""

    @property
    def formula(self) -> str:
        """What its vectors are."""

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction of a saved one, which no flag may contradict."""

    @property
    def views_apart(self) -> Sequence[SystemConfig]:
        """Systems whose vectors side by side are what this one has before its projector."""

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

    def encode_prepared(self, prepared: Prepared) -> Encoded:
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


class VectorsOf(Protocol):
    """Gives the vectors of many texts; `raycase.distributed.vector_cache` has the one that runs the embedding job."""

    def __call__(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        config: SystemConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None,
    ) -> np.ndarray:
        """Of distinct sentences f(s), of distinct (sentence, condition) the vectors before g: P -> (P, D) float32.

        `name` is the data's, for people; `cache` keeps the vectors. Raises RequestError where one has no vector.
        """
