"""What a system is: its configuration, which loads no weights, and loaded, an `Encoder` or a `PairScorer`.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from raycase.data.schema import Reason
from raycase.data.storage import Location
from raycase.data.stored_states import StoredStates
from raycase.encoder.prepared import Prepared
from raycase.encoder.sources import encoder_errors
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import RequestError
from raycase.systems.pairs import Encoded

if TYPE_CHECKING:
    from raycase.systems.condition_pooling import ConditionPoolingConfig

Compute = Literal["bfloat16", "float32"]  # number format inside the encoder


class SystemConfig(Protocol):
    """A system without its weights."""

    @property
    def model(self) -> str:
        """The name, id or folder it was requested by."""

    @property
    def label(self) -> str:
        """Short description for people."""

    @property
    def formula(self) -> str:
        """What it computes, in the paper's notation."""

    @property
    def known_conditions(self) -> tuple[str, ...] | None:
        """The only conditions it accepts, `()` where it accepts none; None: any condition."""

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction of a trained system; a flag that contradicts them is refused."""

    def describe(self) -> dict[str, Any]:
        """Everything that determines the output; `weights` names them by hash or revision."""

    def load(self, **options: Any) -> Any:
        """Load the weights (device, dtype, batch_tokens)."""


class EmbedderConfig(SystemConfig, Protocol):
    """A system that embeds, without its weights."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""

    @property
    def plain_dim(self) -> int:
        """Dimension of unconditional vectors."""

    @property
    def nested(self) -> tuple[int, ...]:
        """Dimensions to which conditional vectors may be cut; such a configuration has a field `cut`."""

    @property
    def views_apart(self) -> Sequence[EmbedderConfig]:
        """A system for each view; their vectors side by side are what this system computes before its projector."""

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise pairs ahead of the encoder. Loads no weights."""

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompts: (N,) int64; 0 for a pair that would be refused. Loads no weights."""

    def load(self, **options: Any) -> Encoder:
        """Load the weights (device, dtype, batch_tokens)."""


@runtime_checkable
class ScorerConfig(SystemConfig, Protocol):
    """A system that scores pairs of sentences and produces no embeddings, without its weights."""

    @property
    def figure_names(self) -> tuple[str, ...]:
        """What it says of a pair: its score, and figures beside it."""

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise pairs of sentences. Loads no weights."""

    def load(self, **options: Any) -> PairScorer:
        """Load the weights (device, dtype, batch_tokens)."""


@runtime_checkable
class Encoder(Protocol):
    """A loaded system that embeds: its vectors can be written to disk and searched."""

    @property
    def config(self) -> EmbedderConfig:
        """The system without its weights."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """Vectors of (sentence, condition) pairs: N, N -> (N, dim) float32, not normalised."""

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """Vectors of what `EmbedderConfig.prepare` returned, counts, and the reason of each refused pair."""

    def compile(self) -> None:
        """Compile for this machine. Takes half a minute, which pays off in long jobs."""

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's number format; measured on each call."""


@runtime_checkable
class RoundsVectors(Protocol):
    """An `Encoder` that can round its vectors where it computes them, so that less leaves the device."""

    def round_to(self, dtype: str) -> None:
        """Let `encode_prepared` give vectors of this type."""


@runtime_checkable
class PairScorer(Protocol):
    """A loaded system that scores pairs of sentences and produces no embeddings."""

    def score(self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str]) -> np.ndarray:
        """Similarity of each pair under its condition: N, N, N -> (N,)."""

    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """Each of `ScorerConfig.figure_names` of what `ScorerConfig.tokens` returned, none of it refused: (N, K); and
        the work."""


class VectorsOf(Protocol):
    """Computes the vectors of many texts; `raycase.corpus.vector_cache` implements it by the embedding job."""

    def __call__(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        config: EmbedderConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None,
    ) -> np.ndarray:
        """f(s) of distinct sentences, or the vectors before g of distinct (sentence, condition): P -> (P, D) float32.

        name: of the data, for messages; cache: folder that keeps the vectors. Raises RequestError for a text that
        cannot be embedded.
        """


class StatesOf(Protocol):
    """Computes the states of many texts; `raycase.corpus.vector_cache` implements it by the embedding job."""

    def __call__(
        self,
        texts: Sequence[str],
        config: ConditionPoolingConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None,
    ) -> tuple[StoredStates, np.ndarray]:
        """States of the tokens of N distinct texts, by a system that keeps them, and f of each text, (N, D) float32.

        The other arguments are those of `VectorsOf`; raises RequestError for a text without states.
        """


def check_conditions(config: SystemConfig, conditions: Sequence[str] | None) -> None:
    """Raise RequestError for a condition that the system does not know, and for None where it requires one."""
    known = config.known_conditions
    if known is None:
        return
    unknown = [c for c in conditions or () if c not in known]
    if unknown or (conditions is None) == bool(known):
        got = "none" if conditions is None else repr(unknown[0][:80]) if unknown else "some"
        raise RequestError(f"--conditions: expected {' or '.join(known) or 'none'} for {config.model}, got {got}")


def check_room(config: EmbedderConfig, conditions: Sequence[str], flag: str) -> None:
    """Raise RequestError for a condition under which no sentence can be encoded: without words, or too long."""
    with encoder_errors(f"a tokenizer that reads any text at {config.model}"):
        prepared = config.prepare(["a"] * len(conditions), conditions)
    reasons = prepared.reasons
    for condition, pair in zip(conditions, prepared.rows.tolist(), strict=True):
        got = repr(condition[:80])
        if reasons[pair] is Reason.NO_ROOM:
            raise RequestError(
                f"{flag}: expected room for a sentence in {config.model}, got none beside {got} and the prompt"
            )
        if reasons[pair] is not None:
            raise RequestError(f"{flag}: expected words that {config.model} can read, got {got}: {reasons[pair]}")
