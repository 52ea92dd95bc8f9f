"""Bi-encoder (Deshpande et al., 2023, C-STS): sentence and condition as one text, fine-tuned on rated pairs.

Claim: a condition acts best where the encoder reads it beside the sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt
from raycase.systems.fine_tuned_config import PromptEncoderConfig, starting_encoder


@dataclass(frozen=True, kw_only=True)
class BiEncoderConfig(PromptEncoderConfig):
    """f("c: s"): sentence and condition as one text."""

    SYSTEM: ClassVar[str] = "bi-encoder"


def bi_encoder(
    model: str, *, prompt: str | None = None, pooling: Pooling | None = None, own: OwnPrompt | None = None
) -> BiEncoderConfig:
    """Before training. The default reads "c: s" and pools every token. Raises RequestError."""
    default = None if own else "concat-cs:all"
    spec = starting_encoder(model, prompt=prompt or default, pooling=pooling, own=own)
    return BiEncoderConfig(model=model, encoder=replace(spec, separator=": ", subtract=False))
