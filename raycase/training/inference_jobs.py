"""Fine-tuning jobs on premises with explicit and implied entailments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from raycase.data.inferences import HYPOTHESES, Inferences, read_inferences
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.systems.baselines import sentence_encoder
from raycase.systems.dualcse import DualCseForm, dualcse
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.training.encoder_fit import TuneRecipe
from raycase.training.encoder_job import FineTuneJob, TuningTask
from raycase.training.inference_fit import DualObjective, InferenceTexts
from raycase.training.job import part_metrics


@dataclass(frozen=True, kw_only=True)
class InferencesJob(FineTuneJob, TuneRecipe):
    """Fine-tune an encoder on premises with explicit and implied entailments (INLI)."""

    train: str
    """Training premises: .csv, .jsonl or .parquet with premise, explicit_entailment, implied_entailment, neutral,
    contradiction."""
    validation: str
    """Validation premises, which select the best epoch; never trained on."""
    learning_rate: float = 5e-5
    """Peak learning rate of AdamW."""
    batch_size: int = 64
    """Premises per batch, over all workers."""
    temperature: float = 0.05
    """Divisor of the cosines in the loss."""
    pooling: Pooling = Pooling.CLS
    """How tokens become one vector: cls (the paper's), or mean, for mean-pooled encoders (MiniLM)."""

    @property
    def recipe(self) -> TuneRecipe:
        """Everything that determines the weights besides the data, the system and the seed."""
        return TuneRecipe.of(self)

    @property
    def terms(self) -> dict[str, Any]:
        """The settings of the loss. Raises RequestError."""
        if not 0 < self.temperature < float("inf"):
            raise RequestError(f"--temperature: expected a number above 0, got {self.temperature:g}")
        return {"temperature": self.temperature}

    @property
    def metric_names(self) -> Sequence[str]:
        """The metrics of entailment."""
        return ("rte", "eis", *(f"rte_{kind}" for kind in HYPOTHESES.values()))

    def objective(self, config: FineTunedConfig) -> DualObjective:
        """The loss and the measures of entailment. Raises RequestError."""
        return DualObjective(config=config, **self.terms)

    def read_parts(self) -> tuple[Inferences, Inferences]:
        """Read the training and validation premises. Raises RequestError."""
        train, validation = (read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        shared = set(train.columns["premise"]) & set(validation.columns["premise"])
        if shared:
            raise RequestError(
                f"--validation: expected no premise that is trained on, got {len(shared)}, one of them "
                f"{min(shared)[:80]!r}"
            )
        return train, validation

    def task_of(self, config: FineTunedConfig, train: Inferences, validation: Inferences) -> TuningTask:
        """The task on these premises."""
        parts = {"train": train, "validation": validation}
        return TuningTask(
            identity=["inferences", *self.terms.values()],
            data={part: part_metrics(inferences, len(inferences)) for part, inferences in parts.items()},
            texts=lambda: [InferenceTexts.of(config, inferences) for inferences in parts.values()],
        )


@dataclass(frozen=True, kw_only=True)
class DualCseJob(InferencesJob):
    """DualCSE: one vector for the explicit and one for the implicit meaning of a sentence (Oda et al., 2025).

    The defaults are the paper's for --form cross; for bi the paper uses --batch-size 32 and --learning-rate 3e-5.
    """

    SYSTEM = "dualcse"
    FORMER: ClassVar = InferencesJob.FORMER | {"pair_encoding": "tokenizer"}

    form: DualCseForm = DualCseForm.CROSS
    """cross: one encoder, with the word explicit or implicit after the sentence. bi: two encoders."""
    contradiction: bool = True
    """Use contradictions as negatives; without: eq. 6."""
    intra: bool = True
    """Push the two vectors of a premise apart and pull those of a hypothesis together; without: eq. 7."""

    @property
    def terms(self) -> dict[str, Any]:
        """The settings of the loss. Raises RequestError."""
        return super().terms | {"contradiction": self.contradiction, "intra": self.intra}

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return dualcse(self.model, form=self.form, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class SimCseJob(InferencesJob):
    """SimCSE's supervised loss: one vector per sentence (Gao et al., 2021), with both entailments as positives."""

    SYSTEM = "simcse"

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return sentence_encoder(self.model, pooling=self.pooling)
