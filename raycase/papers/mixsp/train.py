"""Training on pairs of sentences scored without a condition: MixSP, and a sentence encoder.

Shapes: B pairs of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from raycase.commands.flags import Advanced
from raycase.errors import RequestError, note
from raycase.io.rated_pairs import SCORE, RatedPairs, read_rated, rows_in
from raycase.models.configs import SystemConfig, sentence_encoder
from raycase.names import Pooling
from raycase.papers.mixsp.model import MOST, UPPER, mixsp
from raycase.training.fine_tune_job import PairFlags
from raycase.training.losses import squared_error

SCORE_WEIGHT, RANGE_WEIGHT = 7e-4, 1e-4  # alpha_1 and alpha_2 of eq. 5


@dataclass(frozen=True, kw_only=True)
class ScoredFlags(PairFlags):
    """Fine-tune an encoder on pairs of sentences scored from 0 to 5 without a condition (STS)."""

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

    TASK = "scored"
    PATIENCE = 10

    def read_parts(self) -> tuple[RatedPairs, RatedPairs]:
        flags = {"--train": self.train, "--validation": self.validation}
        train, validation = (read_rated(uri, flag, None, SCORE) for flag, uri in flags.items())
        for flag, scored in zip(flags, (train, validation), strict=True):
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
class SentenceEncoderFlags(ScoredFlags):
    """A sentence encoder without conditions: squared error of the cosine (Reimers and Gurevych, 2019)."""

    SYSTEM = "sentence-encoder"

    pooling: Advanced[Pooling | None] = None
    """Pooling of token vectors. Default: the encoder's."""

    def config(self) -> SystemConfig:
        return sentence_encoder(self.model, pooling=self.pooling)

    def loss_of(self, scores_B: Tensor, ratings_B: Tensor) -> Tensor:
        return squared_error(scores_B, ratings_B / MOST)


@dataclass(frozen=True, kw_only=True)
class MixSpFlags(ScoredFlags):
    """MixSP: a router and two projectors over both sentences (Ponwitayarat et al., 2024).

    It scores pairs and produces no embeddings.
    """

    SYSTEM = "mixsp"

    def config(self) -> SystemConfig:
        return mixsp(self.model)

    def loss_of(self, scores_B: Tensor, ratings_B: Tensor) -> Tensor:
        """alpha_1 BCE(score / 5, G2) + alpha_2 (cross-entropy of the pair's range from the first sentence + from the
        second) / 2 (eqs. 2, 4 and 5). scores: the outputs of `Heads`, (B, 5)."""
        first_B2, second_B2 = scores_B[:, 1:].chunk(2, dim=1)
        range_B = (ratings_B >= UPPER).long()
        score_loss = F.binary_cross_entropy_with_logits(scores_B[:, 0], (ratings_B / MOST).to(scores_B))
        range_loss = (F.cross_entropy(first_B2, range_B) + F.cross_entropy(second_B2, range_B)) / 2
        return SCORE_WEIGHT * score_loss + RANGE_WEIGHT * range_loss


JOBS = {"mixsp": MixSpFlags, "sentence-encoder": SentenceEncoderFlags}
