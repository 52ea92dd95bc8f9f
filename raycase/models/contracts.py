"""What a system is: its configuration, which loads no weights and is the base of each below; loaded, an
`raycase.models.embeds.Embeds` or a `raycase.models.fine_tuned.Scorer`; and the vectors of rated pairs.

Shapes: N pairs, P distinct (sentence, condition), D dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from raycase.encoder.prepared import Prepared
from raycase.encoder.sources import described, encoder_errors, load_config, weights_identity
from raycase.encoder.table import EncoderSpec, read_spec
from raycase.errors import RequestError
from raycase.heads.top import TopConfig
from raycase.io.fetch import folder_here
from raycase.io.json_values import from_json
from raycase.io.rated import NOT_APPLICABLE
from raycase.io.storage import sha256_of_file
from raycase.io.vectors import cosines
from raycase.models.embeds import Embeds

Compute = Literal["bfloat16", "float32"]  # number format inside the encoder


@dataclass(frozen=True, kw_only=True)
class SystemConfig(ABC):
    """A system without its weights: an encoder, and the choices of the system.

    SYSTEM: its name in `raycase.json`; WEIGHTS: the file of those beside the encoder's; known_conditions: the only ones
    that it accepts, `()` where it accepts none; None: any. figure_names: what it says of a pair of sentences, the score
    first; TEXTS_OF_PAIR: rows that `prepare_pairs` makes of one. model: the name, id or folder it was requested by;
    folder: where training saved it (or URI). One that needs no training has `untrained(model, pooling)`, too, which is
    found by its name, a colon and the encoder's.
    """

    SYSTEM: ClassVar[str]
    WEIGHTS: ClassVar[str]
    known_conditions: ClassVar[tuple[str, ...] | None] = None
    figure_names: ClassVar[tuple[str, ...]] = ("score",)
    TEXTS_OF_PAIR: ClassVar[int]

    model: str
    encoder: EncoderSpec
    folder: str | None = None

    @classmethod
    def read(cls, folder: str, values: dict[str, Any]) -> Self:
        """The system that training saved into a folder (or URI); `values` is its `raycase.json`."""
        choices = {n: v for n, v in values.items() if n not in ("system", "encoder")}
        return from_json(cls, choices, model=folder, encoder=read_spec(values["encoder"]).at(folder), folder=folder)

    @property
    def weighs_words(self) -> bool:
        """Whether the system, once loaded, can say which words a condition looked at (`word_weights`)."""
        return False

    @abstractmethod
    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        """Tokenise pairs of sentences, each distinct text or pair once. Loads no weights.

        Raises ValueError for lists of different length.
        """

    @property
    @abstractmethod
    def label(self) -> str:
        """Short description for people."""

    @property
    @abstractmethod
    def formula(self) -> str:
        """What it computes, in the paper's notation."""

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction; a flag that contradicts them is refused."""
        return {"prompt": None, "pooling": self.encoder.pooling[0], "subtract": False}

    @cached_property
    def hidden_dim(self) -> int:
        """Dimension of the states of the encoder's layers."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return self.encoder.vector_dim or self.hidden_dim

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim

    @property
    def local(self) -> Path | None:
        """The model folder on this machine, without the encoder's large files; fetched if it is on object storage."""
        return None if self.folder is None else folder_here(self.folder, self.WEIGHTS)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the output, `weights` by hash or revision. Equal descriptions, equal output."""
        return {
            "system": self.SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source),
            "dim": self.dim,
        }

    def own_weights(self) -> str | None:
        """The weights beside the encoder's by hash; None before training."""
        return None if self.local is None else f"sha256:{sha256_of_file(self.local / self.WEIGHTS)}"

    @abstractmethod
    def load(self, **options: Any) -> Any:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""


@dataclass(frozen=True, kw_only=True)
class EmbedderConfig(SystemConfig):
    """A system that embeds, without its weights. cut: conditional vectors have only their first so many dimensions."""

    TEXTS_OF_PAIR: ClassVar[int] = 2

    cut: int | None = None

    @property
    def top(self) -> TopConfig | None:
        """The shape of what is trained above the encoder, if anything."""
        return None

    @property
    def dim_below(self) -> int:
        """Dimension of conditional vectors where nothing is above the encoder."""
        return self.plain_dim

    @property
    def whole_dim(self) -> int:
        """Dimension of conditional vectors before the cut."""
        return self.top.output_dim if self.top else self.dim_below

    @property
    def dim(self) -> int:
        return self.cut or self.whole_dim

    @property
    def nested(self) -> tuple[int, ...]:
        """Dimensions to which the vectors may be cut."""
        return self.top.nested if self.top else ()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"dim": self.whole_dim} | ({"cut": self.cut} if self.cut else {})

    @property
    def views_apart(self) -> Sequence[EmbedderConfig]:
        """A system for each view; their vectors side by side are what this system computes before its projector."""
        return [self]

    @abstractmethod
    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct pair, sentence or condition. Loads no weights.

        Raises ValueError for lists of different length, RequestError for conditions that it does not know.
        """

    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        return self.prepare([*firsts, *seconds], None if conditions is None else [*conditions, *conditions])

    def pair_figures(self, *vectors: np.ndarray) -> np.ndarray:
        """The figures of pairs by what `prepare_pairs` gave, `TEXTS_OF_PAIR` times (N, D): (N, K). Here the cosine."""
        first_ND, second_ND = vectors
        return cosines(first_ND, second_ND)[:, None]

    @abstractmethod
    def load(self, **options: Any) -> Embeds:
        """Load the weights."""


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
        refused = config.prepare(["a"] * len(conditions), conditions).refused
    for condition, reason in zip(conditions, refused, strict=True):
        if reason is not None:
            raise RequestError(
                f"{flag}: expected words that {config.model} can read, with room for a sentence beside them and the "
                f"prompt, got {condition[:80]!r}: {reason}"
            )


@dataclass(frozen=True, kw_only=True)
class PairVectors:
    """Vectors of rated pairs, the argument of g in eq. 1. The arrays may be read-only (Ray's object store)."""

    vectors: np.ndarray  # (P, D) float32, the views side by side
    pair_index: np.ndarray  # (N, 2) int64 into `vectors`
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def applicable(self) -> PairVectors:
        """Only the pairs to which the condition applies; the label -1 is not a rating."""
        rated = self.ratings != NOT_APPLICABLE
        return PairVectors(vectors=self.vectors, pair_index=self.pair_index[rated], ratings=self.ratings[rated])
