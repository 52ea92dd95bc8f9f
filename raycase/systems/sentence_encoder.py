"""The sentence alone, without a condition: the plain encoder, fine-tuned, that the other systems are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raycase.encoder.pooling import Pooling
from raycase.systems.fine_tuned_config import Prompted, begin


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(Prompted):
    """f(s): the sentence alone."""

    SYSTEM: ClassVar[str] = "sentence-encoder"
    CONDITIONS: ClassVar[tuple[str, ...] | None] = ()

    @property
    def formula(self) -> str:
        """What its vectors are."""
        return "f(s)"


def sentence_encoder(model: str, *, pooling: Pooling | None = None) -> SentenceEncoderConfig:
    """Before training. Raises RequestError."""
    spec = begin(model, prompt="concat-cs:all", pooling=pooling)
    return SentenceEncoderConfig(model=model, encoder=replace(spec, subtract=False))
