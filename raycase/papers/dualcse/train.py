"""Fine-tuning on premises and their inferences: DualCSE with two vectors per sentence (Oda et al., 2025), SimCSE with
one (Gao et al., 2021).

Shapes: N premises, T distinct texts, B premises of a batch, K kinds of vectors, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.models.fine_tuned import FineTunedConfig, sentence_encoder
from raycase.models.pairs import prepare_accepted
from raycase.papers.dualcse.model import DualCseForm, dualcse
from raycase.papers.dualcse.task import (
    Inferences,
    accuracies,
    best_threshold,
    check_apart,
    entailment_scores,
    read_inferences,
)
from raycase.training.encoder_fit import FineTuneJob, Objective
from raycase.training.loop import Batches, BatchLoss, Evaluation, computed_rows, epoch_batches, gather, unwrapped
from raycase.training.losses import info_nce
from raycase.training.recipe import TuneRecipe

PREMISE, EXPLICIT, IMPLIED, _, CONTRADICTION = range(5)  # columns of `Inferences.text_index`


@dataclass(frozen=True, kw_only=True)
class InferenceTexts:
    """Inferences, tokenised. text_index: (N, 5), each premise and its hypotheses among the T distinct texts."""

    prepared: Prepared  # the distinct texts under the first condition, then under the second; or once without condition
    text_index: np.ndarray
    conditions: int  # 2; 1 for a system without conditions

    @classmethod
    def of(cls, config: Any, inferences: Inferences) -> InferenceTexts:
        """Tokenise inferences. Raises RequestError for a text that cannot be encoded."""
        texts, names = inferences.distinct, config.known_conditions
        conditions = [name for name in names for _ in texts] if names else None
        prepared = prepare_accepted(config, texts * max(1, len(names)), conditions, inferences.uri)
        return cls(prepared=prepared, text_index=inferences.text_index, conditions=max(1, len(names)))

    def take(self, texts: np.ndarray, conditions: np.ndarray) -> Prepared:
        """The texts with these indices, each under the condition with its index."""
        return self.prepared.take(conditions * (len(self.prepared.rows) // self.conditions) + texts)


class Dual(nn.Module):
    """The vectors of premises and hypotheses, from a system that embeds."""

    def __init__(self, system: Any) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared, kinds: int) -> Tensor:
        """K kinds in sequence, B texts each -> (B, K, D)."""
        return self.system(prepared).float().unflatten(0, (kinds, -1)).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class DualObjective(Objective):
    """Eq. 2 of DualCSE, or its ablations; for a system with one vector, SimCSE's supervised loss."""

    TASK = "inferences"
    SELECT = "rte"

    contradiction: bool = True
    intra: bool = True
    has_terms: bool = True  # SimCSE's loss has neither

    @property
    def terms(self) -> tuple[Any, ...]:
        return (self.contradiction, self.intra) if self.has_terms else ()

    def texts(self, parts: Sequence[Inferences]) -> list[InferenceTexts]:
        return [InferenceTexts.of(self.config, inferences) for inferences in parts]

    def module(self, system: Any) -> Dual:
        return Dual(system)

    def batches(self, train: InferenceTexts, recipe: TuneRecipe, seed: int) -> Batches:
        return epoch_batches(len(train.text_index), recipe.batch_size, seed)

    def batch_loss(self, train: InferenceTexts, recipe: TuneRecipe) -> BatchLoss:
        explicit = [PREMISE, EXPLICIT, IMPLIED, *([CONTRADICTION] if self.contradiction else [])]
        one = train.conditions == 1
        implicit = [] if one else explicit if self.intra else [PREMISE]

        def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
            rows_b, count = computed_rows(batch)
            kinds = [*explicit, *implicit]
            conditions = np.repeat([0] * len(explicit) + [1] * len(implicit), len(rows_b))
            with self.autocast(module):
                texts = train.text_index[rows_b][:, kinds].T.reshape(-1)
                vectors_bKD = module(train.take(texts, conditions), len(kinds))
            vectors_KBD = gather(vectors_bKD[:count], len(batch)).transpose(0, 1)
            explicit_KBD = vectors_KBD[: len(explicit)]
            return dual_loss(
                explicit_KBD,
                explicit_KBD[:1] if one else vectors_KBD[len(explicit) :],
                contradiction=self.contradiction,
                intra=self.intra and not one,
            )

        return of_batch

    def evaluation(self, train: InferenceTexts, validation: InferenceTexts) -> Evaluation:
        """Accuracy x 100 of RTE, over all pairs and for each kind of hypothesis, and of EIS; and eq. 3's threshold, the
        best over all pairs."""

        def evaluate(module: nn.Module) -> dict[str, float]:
            system: Any = unwrapped(module).system
            system.forget()
            with self.autocast(module):
                vectors = system.encode_prepared(validation.prepared).vectors
            explicit_TD, *implicit = np.split(vectors, validation.conditions)
            metrics = accuracies(explicit_TD, implicit[0] if implicit else None, validation.text_index)
            if not np.isfinite(vectors).all():  # which would be told to be no entailments
                return dict.fromkeys((*metrics, "threshold"), math.nan)
            implicit_TD = implicit[0] if implicit else explicit_TD
            scores_NH = entailment_scores(explicit_TD, implicit_TD, validation.text_index)
            return metrics | {"threshold": best_threshold(scores_NH)}

        return evaluate


def dual_loss(
    explicit_KBD: Tensor,
    implicit_KBD: Tensor,
    *,
    contradiction: bool = True,
    intra: bool = True,
    temperature: float = 0.05,
) -> Tensor:
    """DualCSE's loss (Oda et al., 2025, eq. 2), the mean over the batch; without `contradiction`, `intra` or both: eqs.
    6, 7 and 8. r and u: the vectors of K kinds of sentences (premise, explicit and implied entailment, contradiction).

    -log v(r_i, r+_i1) / sum over j of (v(r_i, r+_j1) + v(r_i, r-_j) + v(r_i, u_j)), v = exp(cos / temperature),
    -log v(u_i, r+_i2) / sum over j of (v(u_i, r+_j2) + v(u_i, r-_j) + v(u_i, r_j)), and, for both entailments and the
    contradiction, -log v(r_i, u_i) / sum over j of v(r_i, u_j).

    The last denominators are those of appendix F: as printed in eq. 2, v(r_j, u_j), nothing pulls r_i and u_i together.
    Without `contradiction` the fourth kind is ignored, without `intra` all implicit vectors except the premise's. With
    u = r and without `intra` this is SimCSE's supervised loss (Gao et al., 2021), with two positives.
    """
    r, u = F.normalize(explicit_KBD, dim=-1), F.normalize(implicit_KBD, dim=-1)
    against = [r[3]] if contradiction else []
    loss = info_nce(r[0], [r[1], *against, *([u[0]] if intra else [])], temperature)
    loss = loss + info_nce(u[0], [r[2], *against, *([r[0]] if intra else [])], temperature)
    if intra:
        for kind in range(1, 4 if contradiction else 3):
            loss = loss + info_nce(r[kind], [u[kind]], temperature)
    return loss


# ------------------------------------------------------------------------------------------------------------- the jobs


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
    pooling: Pooling = Pooling.CLS
    """How tokens become one vector: cls (the paper's), or mean, for mean-pooled encoders (MiniLM)."""

    RECIPE = TuneRecipe

    def objective(self, config: FineTunedConfig) -> DualObjective:
        return DualObjective(config=config, has_terms=False)

    def read_parts(self) -> tuple[Inferences, Inferences]:
        train, validation = (read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        check_apart(validation, train, "--validation: expected premises that are not in --train")
        return train, validation


@dataclass(frozen=True, kw_only=True)
class DualCseJob(InferencesJob):
    """DualCSE: one vector for the explicit and one for the implicit meaning of a sentence (Oda et al., 2025).

    The defaults are the paper's for --form cross; for bi the paper uses --batch-size 32 and --learning-rate 3e-5.
    """

    SYSTEM = "dualcse"

    form: DualCseForm = DualCseForm.CROSS
    """cross: one encoder, with the word explicit or implicit after the sentence. bi: two encoders."""
    contradiction: bool = True
    """Use contradictions as negatives."""
    intra: bool = True
    """Push the two vectors of a premise apart and pull those of a hypothesis together."""

    def objective(self, config: FineTunedConfig) -> DualObjective:
        return DualObjective(config=config, contradiction=self.contradiction, intra=self.intra)

    def config(self) -> FineTunedConfig:
        return dualcse(self.model, form=self.form, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class SimCseJob(InferencesJob):
    """SimCSE's supervised loss: one vector per sentence (Gao et al., 2021), with both entailments as positives."""

    SYSTEM = "simcse"

    def config(self) -> FineTunedConfig:
        return sentence_encoder(self.model, pooling=self.pooling)


JOBS = {"dualcse": DualCseJob, "simcse": SimCseJob}
