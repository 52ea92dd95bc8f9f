"""Configuration of a fine-tuned system: which encoder, which choices, how its texts become tokens. Loads no weights.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from raycase.data.fetch import fetch, is_remote
from raycase.data.rated import RatedPairs
from raycase.data.storage import sha256_of_file
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import Template
from raycase.encoder.sources import described, find_encoder, load_config, load_tokenizer, weights_identity
from raycase.encoder.table import ENCODERS, EncoderSpec
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import RequestError
from raycase.systems.fine_tuned_module import PairCosine, PromptEncoder, RatedTexts, training_options, with_dropout
from raycase.systems.model_folder import EXTRA, SYSTEM
from raycase.systems.pairs import count_tokens, prepare, prompt_sets


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A fine-tuned encoder without its weights; before training, the encoder it begins with."""

    SYSTEM: ClassVar[str]
    CHOICES: ClassVar[dict[str, type[StrEnum]]] = {}  # fields that JSON leaves as strings
    EMBEDS: ClassVar[bool] = True  # else it only scores pairs
    CONDITIONS: ClassVar[tuple[str, ...] | None] = None  # the only ones that it knows; None: any, or none

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
    def own(self) -> dict[str, Any]:
        """The choices of this system alone."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "encoder", "folder")}

    @property
    def label(self) -> str:
        """For people."""
        own = {name: " ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in self.own.items()}
        return " ".join([self.SYSTEM, *(f"{name} {value}" for name, value in own.items())])

    @property
    def formula(self) -> str:
        """What its vectors are."""
        return "f(s, c)"

    @property
    def fixed(self) -> dict[str, Any]:
        """What no flag may contradict."""
        return {"pooling": self.encoder.pooling[0], "prompt": None, "subtract": False}

    @property
    def views_apart(self) -> list[Self]:
        """Its vectors are of one piece."""
        return [self]

    @property
    def local(self) -> Path | None:
        """The folder that training saved, without the encoder's large files; fetched if it is on object storage."""
        if self.folder is None:
            return None
        return fetch(self.folder, large=False, named=EXTRA) if is_remote(self.folder) else Path(self.folder)

    def check_conditions(self, conditions: Sequence[str] | None) -> None:
        """Raise RequestError for a condition that it does not know, and for None where it needs one."""
        known = self.CONDITIONS
        if known is None:
            return
        unknown = [c for c in conditions or () if c not in known]
        if unknown or (conditions is None) == bool(known):
            found = "none" if conditions is None else repr(unknown[0][:80]) if unknown else "some"
            raise RequestError(f"--conditions: expected {' or '.join(known) or 'none'} for {self.model}, got {found}")

    def describe(self) -> dict[str, Any]:
        """Everything that decides the vectors, weights by hash or revision; equal means the same vectors."""
        found: dict[str, Any] = {
            "system": self.SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source, self.encoder.adapter),
            **self.own,
            "dim": self.dim,
        }
        if self.has_extra and self.local:
            if not (self.local / EXTRA).is_file():
                raise RequestError(f"--model: expected {EXTRA} in {self.folder}, got none; train it again")
            found["extra"] = f"sha256:{sha256_of_file(self.local / EXTRA)}"
        return found

    def rated(self, rated: RatedPairs) -> RatedTexts:
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        sentences, conditions = zip(*rated.distinct, strict=True)
        prepared = self.prepare(sentences, conditions if any(conditions) else None)
        for row, reason in enumerate(prepared.reasons):
            if reason is not None:
                raise RequestError(
                    f"{rated.uri}: expected texts that can be encoded, got: {reason}: {sentences[row][:80]!r} under "
                    f"{conditions[row][:80]!r}; fix or remove the row"
                )
        return RatedTexts(prepared=prepared, places=rated.pair_index)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise pairs ahead of the encoder. Loads no weights."""
        raise NotImplementedError

    def load(self, **options: Any) -> Any:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        raise NotImplementedError

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> nn.Module:
        """What training takes: (rows of `rated`) -> scores. `dropout` None: as the encoder's authors have it.

        Weights that are trained are in 32 bits; `compute` is the number format of what is frozen.
        """
        return PairCosine(with_dropout(self.load(**training_options()), dropout))


@dataclass(frozen=True, kw_only=True)
class Prompted(Tuned):
    """One whose vectors are those of a prompt of each pair, by `PromptEncoder`."""

    @property
    def fixed(self) -> dict[str, Any]:
        """What no flag may contradict."""
        return {"prompt": self.encoder.prompt, "pooling": self.encoder.pooling[0], "subtract": False}

    def _template(self, conditions: Sequence[str] | None) -> Template:
        [prompts] = prompt_sets(self.encoder)
        return prompts.plain if conditions is None else prompts.pair

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct pair. Loads no weights."""
        self.check_conditions(conditions)
        return prepare(self.encoder, sentences, conditions, pairs=[self._template(conditions)])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair: (N,) int64; 0 for a pair that is refused."""
        self.check_conditions(conditions)
        return count_tokens(self.encoder, sentences, conditions, [self._template(conditions)])

    def load(self, **options: Any) -> PromptEncoder:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        return PromptEncoder(self, load_encoder(self.encoder, **options))


@dataclass(frozen=True, kw_only=True)
class Scoring(Tuned):
    """One that scores pairs of sentences, by a `Scorer`, and gives no vectors."""

    EMBEDS: ClassVar[bool] = False

    @property
    def has_extra(self) -> bool:
        """What is above the encoder."""
        return True

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text and put the pairs together; a long one loses the ends of its sentences.

        Raises ValueError for lists of different length.
        """
        raise NotImplementedError

    def rated(self, rated: RatedPairs) -> TokenBatch:  # type: ignore[override]
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        batch = self.tokens(rated.sentences1, rated.sentences2, rated.conditions)
        for row, reason in enumerate(batch.reasons):
            if reason is not None:
                raise RequestError(f"{rated.uri}, row {row}: expected texts that can be encoded, got: {reason}")
        return batch

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> nn.Module:
        """What training takes: (rows of `rated`) -> what its loss is of."""
        return with_dropout(self.load(**training_options()), dropout)


def begin(
    model: str, *, prompt: str | None = None, pooling: Pooling | None = None, latent: bool = False, cls: bool = False
) -> EncoderSpec:
    """The encoder that training begins with; `cls`: [CLS] will be read. Raises RequestError for what cannot be trained,
    or not be saved: latent attention, which is no part of the library's model, unless it stays where it is (`latent`).
    """
    if (Path(model) / SYSTEM).is_file():
        inside = Path(model) / "encoder"
        raise RequestError(
            f"--model: expected an encoder to fine-tune, got the trained model {model}"
            + (f"; its encoder is {inside}" if inside.is_dir() else "")
        )
    if prompt is not None and model not in ENCODERS:
        pooling = pooling or Pooling.MEAN
    spec = find_encoder(model, prompt=prompt, pooling=pooling)
    if "+" in spec.prompt:
        raise RequestError(f"--prompt: expected one view to fine-tune, got {spec.prompt}")
    if Pooling.LATENT in spec.pooling and not latent:
        raise RequestError(
            f"--model: expected an encoder without latent attention to fine-tune, got {model}; see lora --no-merged"
        )
    if cls and (spec.causal or not load_tokenizer(spec).special_tokens[0]):
        raise RequestError(f"--model: expected an encoder whose first token, [CLS], sees the whole text, got {model}")
    return spec
