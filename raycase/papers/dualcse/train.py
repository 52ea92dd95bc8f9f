"""The flags of DualCSE and SimCSE, which learn from premises and their inferences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raycase.commands.systems import TrainFlags
from raycase.encoder.pooling import Pooling
from raycase.names import Advanced
from raycase.papers.dualcse import DualCseForm
from raycase.training.recipe import Recipe

if TYPE_CHECKING:
    from raycase.models.configs import SystemConfig
    from raycase.training.procedure import Training


@dataclass(frozen=True, kw_only=True)
class SimCseFlags(TrainFlags):
    """SimCSE's supervised loss: one vector per sentence (Gao et al., 2021), with both entailments as positives."""

    train: str
    """Training premises: .csv, .jsonl or .parquet with premise, explicit_entailment, implied_entailment, neutral,
    contradiction."""
    validation: str
    """Validation premises, which select the best epoch; never trained on."""
    learning_rate: float = 5e-5
    batch_size: int = 64
    """Premises per batch, over all workers."""
    epochs: int = 3
    pooling: Advanced[Pooling] = Pooling.CLS
    """How tokens become one vector: cls (the paper's), or mean, for mean-pooled encoders (MiniLM)."""

    SYSTEM = "simcse"
    RECIPE = Recipe(patience=3, weight_decay=0.1, warmup=0.1, select="rte")

    def config(self) -> SystemConfig:
        from raycase.models.configs import sentence_encoder

        return sentence_encoder(self.model, pooling=self.pooling)

    def training(self) -> Training:
        from raycase.papers.dualcse.task import InferenceTuning

        return InferenceTuning(**self.common, task="inferences", dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class DualCseFlags(SimCseFlags):
    """DualCSE: one vector for the explicit and one for the implicit meaning of a sentence (Oda et al., 2025).

    The defaults are the paper's for --form cross; for bi the paper uses --batch-size 32 and --learning-rate 3e-5.
    """

    form: DualCseForm = DualCseForm.CROSS
    """cross: one encoder, with the word explicit or implicit after the sentence. bi: two encoders."""

    SYSTEM = "dualcse"

    def config(self) -> SystemConfig:
        from raycase.papers.dualcse.model import dualcse

        return dualcse(self.model, form=self.form, pooling=self.pooling)


FLAGS = {"dualcse": DualCseFlags, "simcse": SimCseFlags}
