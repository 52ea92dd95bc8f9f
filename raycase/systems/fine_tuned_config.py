"""Configuration of a fine-tuned system: its encoder, its choices, how its texts become tokens. Loads no weights.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from raycase.data.fetch import INSIDE, is_trained, local_folder
from raycase.data.rated import RatedPairs
from raycase.data.storage import sha256_of_file
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import OwnPrompt, Template
from raycase.encoder.sources import (
    described,
    find_encoder,
    find_unprompted,
    load_config,
    load_tokenizer,
    weights_identity,
)
from raycase.encoder.table import ENCODERS, EncoderSpec
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import RequestError
from raycase.systems.contracts import check_conditions
from raycase.systems.fine_tuned_module import PromptEncoder, RatedTexts, training_options, with_dropout
from raycase.systems.model_folder import EXTRA
from raycase.systems.pairs import count_tokens, prepare, prepare_rated, prompt_sets


@dataclass(frozen=True, kw_only=True)
class FineTunedConfig:
    """A fine-tuned system without its weights; before training, with the encoder it starts from."""

    SYSTEM: ClassVar[str]  # its name in `raycase.json`
    known_conditions: ClassVar[tuple[str, ...] | None] = None  # None: any

    model: str
    encoder: EncoderSpec
    folder: str | None = None  # or URI

    @property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim

    @property
    def has_extra(self) -> bool:
        """Whether there are weights besides the encoder's."""
        return False

    @property
    def choices(self) -> dict[str, Any]:
        """The fields that only this system has."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "encoder", "folder")}

    @property
    def label(self) -> str:
        """Short description for people."""
        choices = {name: " ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in self.choices.items()}
        return " ".join([self.SYSTEM, *(f"{name} {value}" for name, value in choices.items())])

    @property
    def formula(self) -> str:
        """What it computes."""
        return "f(s, c)"

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction; a flag that contradicts them is refused."""
        return {"pooling": self.encoder.pooling[0], "prompt": None, "subtract": False}

    @property
    def local(self) -> Path | None:
        """The model folder, without the encoder's large files; fetched if it is on object storage."""
        return local_folder(self.folder, EXTRA)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the output, weights by hash or revision.

        Raises RequestError where the folder lacks weights.
        """
        description: dict[str, Any] = {
            "system": self.SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source, self.encoder.adapter),
            **self.choices,
            "dim": self.dim,
        }
        if self.has_extra and self.local:
            if not (self.local / EXTRA).is_file():
                raise RequestError(f"--model: expected {EXTRA} in {self.folder}, got none; train it again")
            description["extra"] = f"sha256:{sha256_of_file(self.local / EXTRA)}"
        return description

    def load(self, **options: Any) -> Any:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        raise NotImplementedError

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> Any:
        """The system with weights to train, in 32 bits; frozen weights are in `compute`.

        dropout: of every dropout layer; None: as in the encoder.
        """
        return with_dropout(self.load(**training_options()), dropout)


@dataclass(frozen=True, kw_only=True)
class FineTunedEmbedderConfig(FineTunedConfig):
    """A fine-tuned system that embeds (`raycase.systems.fine_tuned_module.Embedder`)."""

    nested: ClassVar[tuple[int, ...]] = ()  # its vectors cannot be cut

    @property
    def views_apart(self) -> list[Self]:
        """Itself: it has one view."""
        return [self]

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise pairs ahead of the encoder. Loads no weights."""
        raise NotImplementedError

    def rated(self, rated: RatedPairs) -> RatedTexts:
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        return RatedTexts(prepared=prepare_rated(self.prepare, rated), pair_index=rated.pair_index)


@dataclass(frozen=True, kw_only=True)
class PromptEncoderConfig(FineTunedEmbedderConfig):
    """A system whose vectors are those of one prompt for each pair (`PromptEncoder`)."""

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction; a flag that contradicts them is refused."""
        return self.encoder.chosen | {"subtract": False}

    def _template(self, conditions: Sequence[str] | None) -> Template:
        [prompts] = prompt_sets(self.encoder)
        return prompts.plain if conditions is None else prompts.pair

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct pair. Loads no weights. Raises RequestError for conditions it does not know."""
        check_conditions(self, conditions)
        return prepare(self.encoder, sentences, conditions, pairs=[self._template(conditions)])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompt: (N,) int64; 0 for a pair that is refused."""
        check_conditions(self, conditions)
        return count_tokens(self.encoder, sentences, conditions, [self._template(conditions)])

    def load(self, **options: Any) -> PromptEncoder:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        return PromptEncoder(self, load_encoder(self.encoder, **options))


@dataclass(frozen=True, kw_only=True)
class FineTunedScorerConfig(FineTunedConfig):
    """A fine-tuned system that scores pairs of sentences (`Scorer`) and produces no embeddings."""

    figure_names: ClassVar[tuple[str, ...]] = ("score",)  # what it says of a pair, the score first

    @property
    def has_extra(self) -> bool:
        """True: the weights above the encoder."""
        return True

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text and concatenate those of each pair; long sentences lose their ends.

        Raises ValueError for lists of different length.
        """
        raise NotImplementedError

    def rated(self, rated: RatedPairs) -> TokenBatch:
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        batch = self.tokens(rated.sentences1, rated.sentences2, rated.conditions)
        for row, reason in enumerate(batch.reasons):
            if reason is not None:
                raise RequestError(f"{rated.uri}, row {row}: expected texts that can be encoded, got: {reason}")
        return batch


def starting_encoder(
    model: str,
    *,
    prompt: str | None = None,
    pooling: Pooling | None = None,
    own: OwnPrompt | None = None,
    latent: bool = False,
    cls: bool = False,
    prompted: bool = True,
) -> EncoderSpec:
    """The encoder that training starts from.

    cls: the first token, [CLS], must see the whole text. latent: latent attention is allowed; it cannot be saved with
    the encoder. prompted: sentence and condition meet in a prompt, else each is encoded by itself. Raises RequestError
    for an encoder that cannot be trained or saved.
    """
    if is_trained(model):
        inside = INSIDE.get(model) or str(Path(model) / "encoder")
        raise RequestError(
            f"--model: expected an encoder to fine-tune, got the trained model {model}"
            + (f"; its encoder is {inside}" if model in INSIDE or Path(inside).is_dir() else "")
        )
    if (own or prompt is not None) and not (own and own.pool) and model not in ENCODERS:
        pooling = pooling or Pooling.MEAN
    spec = (
        find_encoder(model, prompt=prompt, pooling=pooling, own=own)
        if prompted
        else find_unprompted(model, pooling=pooling)
    )
    if "+" in spec.prompt:
        raise RequestError(f"--prompt: expected one view to fine-tune, got {spec.prompt}")
    if Pooling.LATENT in spec.pooling and not latent:
        raise RequestError(
            f"--model: expected an encoder without latent attention to fine-tune, got {model}; see lora --no-merged"
        )
    if cls and (spec.causal or not load_tokenizer(spec).special_tokens[0]):
        raise RequestError(f"--model: expected an encoder whose first token, [CLS], sees the whole text, got {model}")
    return spec
