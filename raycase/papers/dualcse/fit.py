"""Fine-tuning on premises and their inferences: DualCSE with two vectors per sentence (Oda et al., 2025), SimCSE with
one (Gao et al., 2021).

Shapes: N premises, T distinct texts, B premises of a batch, K texts of each, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.token_batch import Prepared
from raycase.models.pairs import check_accepted
from raycase.papers.dualcse.task import Inferences, accuracies, check_apart, read_inferences
from raycase.training.fine_tune import FineTuning, autocast
from raycase.training.loop import computed_rows, epoch_batches, gather
from raycase.training.recipe import Recipe

TRAINED = [0, 1, 2, 4]  # columns of `Inferences.text_index`: all but the neutral sentence


@dataclass(frozen=True, kw_only=True)
class InferenceTexts:
    """Inferences, tokenised under each of C conditions: 2, or 1 for a system without. places: (C, N, 5), the row of
    `prepared` of each premise and its hypotheses."""

    prepared: Prepared
    places: np.ndarray

    @classmethod
    def of(cls, config: Any, inferences: Inferences) -> InferenceTexts:
        """Tokenise inferences. Raises RequestError for a text that cannot be encoded."""
        names, distinct = config.known_conditions, inferences.texts.values
        count = max(1, len(names))
        texts = [*distinct] * count
        conditions = [name for name in names for _ in distinct] if names else None
        prepared = config.prepare(texts, conditions)
        check_accepted(prepared.refused, texts, conditions=conditions, source=inferences.uri)
        first_C11 = len(distinct) * np.arange(count)[:, None, None]
        return cls(prepared=prepared, places=first_C11 + inferences.text_index)


def dual_loss(explicit_4BD: Tensor, implicit_4BD: Tensor | None = None, temperature: float = 0.05) -> Tensor:
    """DualCSE's loss (Oda et al., 2025, eq. 2, in README.md), the mean over the batch. r and u: the vectors of
    premises, explicit and implied entailments and contradictions.

    The denominators between r and u are those of appendix F: as printed in eq. 2, nothing pulls r_i and u_i together.
    Without u, premises have r in its place and the terms between r and u are left out: SimCSE's supervised loss (Gao et
    al., 2021), with two positives.
    """
    premise, explicit, implied, contradiction = r = F.normalize(explicit_4BD, dim=-1)
    if implicit_4BD is None:
        terms = [(premise, [positive, contradiction]) for positive in (explicit, implied)]
    else:
        u = F.normalize(implicit_4BD, dim=-1)
        terms = [(premise, [explicit, contradiction, u[0]]), (u[0], [implied, contradiction, premise])]
        terms += [(r[of], [u[of]]) for of in (1, 2, 3)]
    return torch.stack([info_nce(*part, temperature) for part in terms]).sum()


def info_nce(anchors_BD: Tensor, candidates: list[Tensor], temperature: float) -> Tensor:
    """InfoNCE: the positive of anchor i is row i of the first candidates, its negatives are all other candidates."""
    scores = anchors_BD @ torch.cat(candidates).T / temperature
    return F.cross_entropy(scores, torch.arange(len(anchors_BD), device=scores.device))


@dataclass(frozen=True, kw_only=True)
class InferenceTuning(FineTuning):
    """An encoder that is fine-tuned on premises with explicit and implied entailments (INLI)."""

    def read(self) -> tuple[Inferences, Inferences]:
        train, validation = (read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        check_apart(validation, train, "--validation: expected premises that are not in --train")
        return train, validation

    def data(self, shared: Sequence[Inferences]) -> tuple[InferenceTexts, InferenceTexts]:
        train, validation = (InferenceTexts.of(self.config, inferences) for inferences in shared)
        return train, validation

    def batches(self, recipe: Recipe, train: InferenceTexts, epoch: int) -> list[np.ndarray]:
        return epoch_batches(train.places.shape[1], recipe.batch_size, recipe.seed, epoch)

    def batch_loss(self, train: InferenceTexts, module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        place_CKb = train.places[:, rows_b][..., TRAINED].transpose(0, 2, 1)
        with autocast(module, self.dtype):
            vectors_VD = module(train.prepared.take(place_CKb.reshape(-1))).float()
        vectors_bKD = vectors_VD.unflatten(0, (-1, len(rows_b))).transpose(0, 1)[:count]
        return dual_loss(*gather(vectors_bKD, len(batch)).transpose(0, 1).split(len(TRAINED)))

    def evaluate(self, validation: InferenceTexts, module: Any) -> dict[str, float]:
        """`accuracies` of its vectors."""
        vectors = module.encode_prepared(validation.prepared).vectors
        metrics = accuracies(np.split(vectors, len(validation.places)), validation.places[0])
        # vectors that are not finite would count as no entailments
        return metrics if np.isfinite(vectors).all() else dict.fromkeys(metrics, math.nan)
