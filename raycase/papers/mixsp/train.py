"""Training on pairs of sentences scored without a condition: MixSP, and a sentence encoder.

Shapes: B pairs of a batch, D dimensions, R ranges of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError, check_ranges, note
from raycase.io.rated import SCORE, RatedPairs, read_rated, rows_in
from raycase.models.fine_tuned import FineTunedConfig, sentence_encoder
from raycase.papers.mixsp.model import MOST, UPPER, Route, Select, Similarity, mixsp
from raycase.training.encoder_fit import FineTuneJob, PairObjective
from raycase.training.losses import info_nce, squared_error
from raycase.training.recipe import TuneRecipe


class ScoredObjective(PairObjective):
    """Pairs get the scores, from 0 to 5, that people gave them without a condition."""

    TASK = "scored"
    PATIENCE = 10

    def loss(self, scores_B: Tensor, ratings_B: Tensor, recipe: Any) -> Tensor:
        """Mean of (cos - score / 5)^2: sentence encoders on STS (Reimers and Gurevych, 2019)."""
        return squared_error(scores_B, ratings_B / MOST)


@dataclass(frozen=True, kw_only=True)
class MixSpObjective(ScoredObjective):
    """MixSP's loss, eq. 5. similarity_weight: alpha_1; range_weight: alpha_2."""

    similarity_weight: float = 7e-4
    range_weight: float = 1e-4

    @property
    def terms(self) -> tuple[Any, ...]:
        return self.similarity_weight, self.range_weight

    def loss(self, scores_B: Tensor, ratings_B: Tensor, recipe: Any) -> Tensor:
        return mixsp_loss(
            scores_B,
            ratings_B,
            ranges=self.config.ranges,
            similarity=self.config.similarity,
            similarity_weight=self.similarity_weight,
            range_weight=self.range_weight,
        )


def mixsp_loss(
    outputs_BK: Tensor,
    ratings_B: Tensor,
    *,
    ranges: Sequence[float] = (UPPER,),
    similarity: Similarity = Similarity.LINEAR,
    similarity_weight: float = 7e-4,
    range_weight: float = 1e-4,
    temperature: float = 0.05,
) -> Tensor:
    """MixSP's loss (Ponwitayarat et al., 2024, eq. 5): alpha_1 BCE(score / 5, G2) + alpha_2 (cross-entropy of the
    pair's range from the first sentence + from the second) / 2 (eqs. 4 and 2; with two ranges it is binary).

    outputs_BK: the logit of the similarity, or a cosine; each sentence's logits of the R ranges; with contrastive
    similarity, both projections z. ratings_B: 0 to 5. ranges: the lowest score of each range after the first.

    With cosine the first term is its squared error. With contrastive it is the mean of -log v(z_i1, z_i2) / sum over j
    of v(z_i1, z_j2) over the pairs i of the uppermost range, v = exp(cos / temperature); the paper gives no formula.
    """
    count = len(ranges) + 1
    similarity_B, scores_B = outputs_BK[:, 0], (ratings_B / MOST).to(outputs_BK)
    first_BR, second_BR = outputs_BK[:, 1 : 1 + 2 * count].chunk(2, dim=1)
    range_B = torch.bucketize(ratings_B, torch.tensor(ranges).to(ratings_B), right=True)
    match similarity:
        case Similarity.LINEAR:
            score_loss = F.binary_cross_entropy_with_logits(similarity_B, scores_B)
        case Similarity.COSINE:
            score_loss = squared_error(similarity_B, scores_B)
        case Similarity.CONTRASTIVE:
            score_loss = _contrast(outputs_BK[:, 1 + 2 * count :], range_B == count - 1, temperature)
    range_loss = (F.cross_entropy(first_BR, range_B) + F.cross_entropy(second_BR, range_B)) / 2
    return similarity_weight * score_loss + range_weight * range_loss


def _contrast(z_BZ: Tensor, same_B: Tensor, temperature: float) -> Tensor:
    """InfoNCE of the pairs with the same meaning, against all second sentences; 0 if there are no such pairs."""
    if not same_B.any():
        return z_BZ.sum() * 0
    first_BD, second_BD = (F.normalize(part, dim=1) for part in z_BZ.chunk(2, dim=1))
    return info_nce(first_BD[same_B], [second_BD[same_B], second_BD[~same_B]], temperature)


@dataclass(frozen=True, kw_only=True)
class ScoredJob(FineTuneJob, TuneRecipe):
    """Fine-tune an encoder on pairs of sentences scored without a condition (STS)."""

    train: str
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, score (0 to 5)."""
    validation: str
    """Validation pairs, which select the best epoch; never trained on."""
    learning_rate: float = 5e-5
    """Peak learning rate of AdamW."""
    batch_size: int = 16
    """Scored pairs per batch, over all workers."""
    epochs: int = 10
    """Maximum number of epochs, over which the learning rate falls to 0."""

    RECIPE = TuneRecipe

    def objective(self, config: FineTunedConfig) -> ScoredObjective:
        return ScoredObjective(config=config)

    def read_parts(self) -> tuple[RatedPairs, RatedPairs]:
        flags = {"--train": self.train, "--validation": self.validation}
        train, validation = (read_rated(uri, flag, None, SCORE) for flag, uri in flags.items())
        for flag, scored in (("--train", train), ("--validation", validation)):
            invalid = scored.ratings[(scored.ratings < 0) | (scored.ratings > MOST)]
            if len(invalid):
                raise RequestError(f"{flag}: expected scores from 0 to {MOST:g}, got {invalid[0]:g}")
        shared = rows_in(train, validation)  # STS-B has some
        if len(shared):
            note(f"{len(shared)} training pairs are also validation pairs and are left out")
            train = train.without(shared)
            if not len(train):
                raise RequestError("--train: expected pairs that are not in --validation, got none")
        return train, validation


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderJob(ScoredJob):
    """A sentence encoder without conditions: squared error of the cosine (Reimers and Gurevych, 2019)."""

    SYSTEM = "sentence-encoder"

    pooling: Pooling | None = None
    """Pooling of token vectors. Default: the encoder's."""

    def config(self) -> FineTunedConfig:
        return sentence_encoder(self.model, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class MixSpJob(ScoredJob):
    """MixSP: a router and two projectors over both sentences (Ponwitayarat et al., 2024).

    It scores pairs and produces no embeddings.
    """

    SYSTEM = "mixsp"

    select: Select = Select.HARD
    """hard: only the most probable projector. soft: the weighted sum of all, a mixture of experts, without the router's
    loss. none: no projectors, a plain classifier of [CLS] into the ranges, whose score is the expected range."""
    ranges: tuple[float, ...] = (UPPER,)
    """Lowest score of each range after the first; one projector per range."""
    route: Route = Route.CLS
    """Input of the router: cls, [CLS] and the sentence; own, the sentence alone; both, the two sentences."""
    similarity: Similarity = Similarity.LINEAR
    """How two projections become a score: linear, a layer over both; cosine, with its squared error as the loss;
    contrastive, a cosine with InfoNCE against the batch's other pairs as the loss."""
    range_weight: float | None = None
    """Weight of the router's loss. Default: 1e-4; 0 with --select soft."""

    def objective(self, config: FineTunedConfig) -> MixSpObjective:
        router = 0.0 if self.select is Select.SOFT else 1e-4
        return MixSpObjective(
            config=config,
            similarity_weight=0.0 if self.select is Select.NONE else 7e-4,
            range_weight=router if self.range_weight is None else self.range_weight,
        )

    def check_flags(self) -> None:
        super().check_flags()
        check_ranges(self, {"range_weight": (self.range_weight is None or self.range_weight >= 0, "at least 0")})

    def config(self) -> FineTunedConfig:
        choices = {name: getattr(self, name) for name in ("select", "ranges", "route", "similarity")}
        return mixsp(self.model, **choices)


JOBS = {"mixsp": MixSpJob, "sentence-encoder": SentenceEncoderJob}
