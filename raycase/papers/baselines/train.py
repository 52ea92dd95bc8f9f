"""The flags of the three encoders of C-STS and of low-rank adapters, which learn from rated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raycase.commands.flags import TextFlags
from raycase.commands.systems import RatedFlags
from raycase.encoder.pooling import Pooling
from raycase.names import Advanced, Hidden
from raycase.papers.baselines import Compose
from raycase.training.recipe import Loss

if TYPE_CHECKING:
    from raycase.models.configs import SystemConfig


@dataclass(frozen=True, kw_only=True)
class BiEncoderFlags(TextFlags, RatedFlags):
    """A bi-encoder: sentence and condition as one text (Deshpande et al., 2023)."""

    SYSTEM = "bi-encoder"

    prompt: str | None = None
    """Prompt of sentence and condition: a name, or a file NAME.json with your own template (docs/encoders.md).
    Default: concat-cs:all, which is "condition: sentence"."""

    def config(self) -> SystemConfig:
        from raycase.papers.baselines.model import bi_encoder

        return bi_encoder(self.model, **self.text_choices)


@dataclass(frozen=True, kw_only=True)
class TriEncoderFlags(RatedFlags):
    """A tri-encoder: sentence and condition encoded separately, then composed (Deshpande et al., 2023)."""

    SYSTEM = "tri-encoder"

    compose: Compose = Compose.HADAMARD
    """How the two vectors are composed."""
    pooling: Advanced[Pooling | None] = None
    """Pooling of token vectors. Default: the encoder's."""

    def config(self) -> SystemConfig:
        from raycase.papers.baselines.model import TriEncoderConfig

        return TriEncoderConfig.untrained(self.model, self.pooling, self.compose)


@dataclass(frozen=True, kw_only=True)
class CrossEncoderFlags(RatedFlags):
    """A cross-encoder: both sentences and the condition as one text (Deshpande et al., 2023).

    It scores pairs and produces no embeddings.
    """

    SYSTEM = "cross-encoder"

    def config(self) -> SystemConfig:
        from raycase.papers.baselines.model import cross_encoder

        return cross_encoder(self.model)


@dataclass(frozen=True, kw_only=True)
class LoraFlags(TextFlags, RatedFlags):
    """Low-rank adapters on the attention's projections of any encoder (CASE, section 4.4)."""

    SYSTEM = "lora"

    loss: Advanced[Loss] = Loss.PEARSON
    """squared, or pearson (the paper's)."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW; adapters need a higher one than full fine-tuning (`results/fine_tuning.md`)."""
    prompt: str | None = None
    """Prompt of sentence and condition: a name, or a file NAME.json with your own template (docs/encoders.md).
    Default: the encoder's."""
    rank: int = 32
    """Rank of the adapters."""
    alpha: Hidden[float] = 32.0
    """The adapters' product is multiplied by alpha / rank."""

    def config(self) -> SystemConfig:
        from raycase.papers.baselines.model import lora

        return lora(self.model, **self.text_choices, rank=self.rank, alpha=self.alpha)


FLAGS = {flags.SYSTEM: flags for flags in (BiEncoderFlags, TriEncoderFlags, CrossEncoderFlags, LoraFlags)}
