"""The sentence alone, without a condition: the plain encoder, fine-tuned, that the other systems are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raycase.encoder.pooling import Pooling
from raycase.systems.fine_tuned_config import PromptEncoderConfig, starting_encoder


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(PromptEncoderConfig):
    """f(s): the sentence alone."""

    SYSTEM: ClassVar[str] = "sentence-encoder"
    known_conditions: ClassVar[tuple[str, ...] | None] = ()

    @property
    def formula(self) -> str:
        return "f(s)"


def sentence_encoder(model: str, *, pooling: Pooling | None = None) -> SentenceEncoderConfig:
    """Before training. Raises RequestError."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=pooling)
    return SentenceEncoderConfig(model=model, encoder=replace(spec, subtract=False))
