"""Fine-tuning jobs on premises with explicit and implied entailments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raycase.data.inferences import read_inferences
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.systems.dualcse import Form, dualcse
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.sentence_encoder import sentence_encoder
from raycase.training.encoder_fit import TuneRecipe, recipe_of
from raycase.training.encoder_job import FineTuneJob, Task
from raycase.training.inference_fit import Dual, InferenceTexts, fit_dual


@dataclass(frozen=True, kw_only=True)
class InferencesJob(FineTuneJob, TuneRecipe):
    """Fine-tune an encoder on premises with explicit and implied entailments (INLI)."""

    train: str
    """Premises to learn from: .csv, .jsonl or .parquet with premise, explicit_entailment, implied_entailment, neutral,
    contradiction."""
    validation: str
    """Premises to choose the epoch by; never trained on."""
    learning_rate: float = 5e-5
    """The largest, of AdamW."""
    batch_size: int = 64
    """Premises of a batch, over all workers together."""
    temperature: float = 0.05
    """Cosines are divided by it."""
    pooling: Pooling = Pooling.CLS
    """How tokens become one vector: cls (the paper's), or mean, for an encoder that is averaged (MiniLM)."""

    @property
    def recipe(self) -> TuneRecipe:
        """What decides the weights besides the data, the system and the seed."""
        return recipe_of(TuneRecipe, self)

    @property
    def terms(self) -> dict[str, Any]:
        """What the loss is."""
        if not 0 < self.temperature < float("inf"):
            raise RequestError(f"--temperature: expected a number above 0, got {self.temperature:g}")
        return {"temperature": self.temperature}

    def read_task(self, config: FineTunedConfig) -> Task:
        """The data and the fit. Raises RequestError."""
        parts = {name: read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation")}
        seen = set(parts["train"].columns["premise"]) & set(parts["validation"].columns["premise"])
        if seen:
            raise RequestError(
                f"--validation: expected no premise that is trained on, got {len(seen)}, one of them {min(seen)[:80]!r}"
            )
        return Task(
            identity=["inferences", *self.terms.values()],
            data={
                part: {"file": Path(inferences.uri).name, "rows": len(inferences), "sha256": inferences.data_sha256}
                for part, inferences in parts.items()
            },
            texts=lambda: [InferenceTexts.of(config, inferences) for inferences in parts.values()],
            fitting=partial(fit_dual, config=config, **self.terms),
            module=Dual,
        )


@dataclass(frozen=True, kw_only=True)
class DualCseJob(InferencesJob):
    """DualCSE: a vector of what a sentence says, and one of what it implies (Oda et al., 2025).

    The defaults are the paper's for --form cross; for bi it takes --batch-size 32 and --learning-rate 3e-5.
    """

    form: Form = Form.CROSS
    """cross: one encoder, with the word explicit or implicit behind the sentence. bi: an encoder for each."""
    contradiction: bool = True
    """Whether contradictions are pushed away; without: eq. 6."""
    intra: bool = True
    """Whether a premise's two vectors are pushed apart and a hypothesis's drawn together; without: eq. 7."""

    @property
    def terms(self) -> dict[str, Any]:
        """What the loss is."""
        return super().terms | {"contradiction": self.contradiction, "intra": self.intra}

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return dualcse(self.model, form=self.form, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class SimCseJob(InferencesJob):
    """SimCSE's supervised loss: one vector a sentence (Gao et al., 2021), with both entailments as positives."""

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return sentence_encoder(self.model, pooling=self.pooling)
