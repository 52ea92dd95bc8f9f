"""The flags of MixSP and of a sentence encoder, which learn from pairs of sentences scored without a condition.

Shapes: B pairs of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.commands.systems import TrainFlags
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError, note
from raycase.names import Advanced
from raycase.training.recipe import Recipe, squared_error

if TYPE_CHECKING:
    from torch import Tensor

    from raycase.io.rated_pairs import RatedPairs
    from raycase.models.configs import SystemConfig
    from raycase.training.procedure import Training

SCORE_WEIGHT, RANGE_WEIGHT = 7e-4, 1e-4  # alpha_1 and alpha_2 of eq. 5


def read_scored(train_uri: str, validation_uri: str) -> tuple[RatedPairs, RatedPairs]:
    """Scored pairs to train on, without those to validate with, and these."""
    import numpy as np

    from raycase.io.rated_pairs import SCORE, read_rated, rows_in
    from raycase.papers.mixsp.model import MOST

    train, validation = (
        read_rated(uri, flag, None, SCORE) for flag, uri in (("--train", train_uri), ("--validation", validation_uri))
    )
    for flag, scored in (("--train", train), ("--validation", validation)):
        invalid = scored.ratings[(scored.ratings < 0) | (scored.ratings > MOST)]
        if len(invalid):
            raise RequestError(f"{flag}: expected scores from 0 to {MOST:g}, got {invalid[0]:g}")
    shared = rows_in(train, validation)  # STS-B has some
    if len(shared):
        note(f"{len(shared)} training pairs are also validation pairs and are left out")
        train = train.take(np.setdiff1d(np.arange(len(train)), shared))
        if not len(train):
            raise RequestError("--train: expected pairs that are not in --validation, got none")
    return train, validation


def sentence_loss(scores_B: Tensor, ratings_B: Tensor) -> Tensor:
    """The squared error of cosines (Reimers and Gurevych, 2019)."""
    from raycase.papers.mixsp.model import MOST

    return squared_error(scores_B, ratings_B / MOST)


def mixsp_loss(scores_B: Tensor, ratings_B: Tensor) -> Tensor:
    """alpha_1 BCE(score / 5, G2) + alpha_2 (cross-entropy of the pair's range from the first sentence + from the
    second) / 2 (eqs. 2, 4 and 5). scores: the outputs of `Heads`, (B, 5)."""
    import torch.nn.functional as F

    from raycase.papers.mixsp.model import MOST, UPPER

    first_B2, second_B2 = scores_B[:, 1:].chunk(2, dim=1)
    range_B = (ratings_B >= UPPER).long()
    score_loss = F.binary_cross_entropy_with_logits(scores_B[:, 0], (ratings_B / MOST).to(scores_B))
    range_loss = (F.cross_entropy(first_B2, range_B) + F.cross_entropy(second_B2, range_B)) / 2
    return SCORE_WEIGHT * score_loss + RANGE_WEIGHT * range_loss


@dataclass(frozen=True, kw_only=True)
class MixSpFlags(TrainFlags):
    """MixSP: a router and two projectors over both sentences (Ponwitayarat et al., 2024).

    It scores pairs and produces no embeddings.
    """

    train: str
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, score (0 to 5)."""
    validation: str
    """Validation pairs, which select the best epoch; never trained on."""
    learning_rate: float = 5e-5
    batch_size: int = 16
    """Scored pairs per batch, over all workers."""
    epochs: int = 10

    SYSTEM = "mixsp"
    RECIPE = Recipe(patience=10, weight_decay=0.1, warmup=0.1)
    loss_of = staticmethod(mixsp_loss)

    def config(self) -> SystemConfig:
        from raycase.papers.mixsp.model import mixsp

        return mixsp(self.model)

    def training(self) -> Training:
        from raycase.training.fine_tune import PairTuning

        of_task: dict[str, Any] = {"task": "scored", "read_pairs": read_scored, "loss": self.loss_of}
        return PairTuning(**self.common, **of_task, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderFlags(MixSpFlags):
    """A sentence encoder without conditions: squared error of the cosine (Reimers and Gurevych, 2019)."""

    pooling: Advanced[Pooling | None] = None
    """Pooling of token vectors. Default: the encoder's."""

    SYSTEM = "sentence-encoder"
    loss_of = staticmethod(sentence_loss)

    def config(self) -> SystemConfig:
        from raycase.models.configs import sentence_encoder

        return sentence_encoder(self.model, pooling=self.pooling)


FLAGS = {"mixsp": MixSpFlags, "sentence-encoder": SentenceEncoderFlags}
