"""Fine-tuning jobs on pairs of sentences scored without a condition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from raycase.data.rated import SCORE, RatedPairs, read_rated, rows_in
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError, check_ranges, note
from raycase.systems.baselines import sentence_encoder
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.mixsp import MOST, UPPER, Route, Select, Similarity, mixsp
from raycase.training.encoder_fit import FineTuneJob, PairLoss, PairObjective
from raycase.training.losses import mixsp_loss, scored_loss
from raycase.training.recipe import TuneRecipe


class ScoredObjective(PairObjective):
    """Pairs get the scores that people gave them without a condition."""

    TASK = "scored"


class ScoredRecipe(TuneRecipe):
    """A `TuneRecipe` of more epochs."""

    PATIENCE: ClassVar[int] = 10


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

    RECIPE = ScoredRecipe

    def loss(self) -> PairLoss:
        """The loss over the module's outputs and the scores."""
        return scored_loss

    def objective(self, config: FineTunedConfig) -> ScoredObjective:
        """The loss and the correlations of scores. Raises RequestError."""
        return ScoredObjective(config=config, loss=self.loss())

    def read_parts(self) -> tuple[RatedPairs, RatedPairs]:
        """Read the training and validation pairs. Raises RequestError."""
        flags = {"--train": self.train, "--validation": self.validation}
        train, validation = (read_rated(uri, flag, None, SCORE) for flag, uri in flags.items())
        for flag, scored in (("--train", train), ("--validation", validation)):
            invalid = scored.ratings[(scored.ratings < 0) | (scored.ratings > MOST)]
            if len(invalid):
                raise RequestError(f"{flag}: expected scores from 0 to {MOST:g}, got {invalid[0]:g}")
        shared = rows_in(train, validation)  # STS-B has some
        if len(shared):
            note(f"{len(shared)} training pairs are validation pairs, too, and are left out")
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
        """The system before training. Raises RequestError."""
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
    """alpha_2, the weight of the router's loss (eq. 5). Default: 1e-4; 0 with --select soft."""

    @property
    def terms(self) -> dict[str, Any]:
        """The settings of the loss."""
        router = 0.0 if self.select is Select.SOFT else 1e-4
        return {
            "similarity_weight": 0.0 if self.select is Select.NONE else 7e-4,
            "range_weight": router if self.range_weight is None else self.range_weight,
        }

    def check_flags(self) -> None:
        """Raise RequestError for flags out of their range, or that contradict each other."""
        super().check_flags()
        check_ranges(self, {"range_weight": (self.range_weight is None or self.range_weight >= 0, "at least 0")})

    def loss(self) -> PairLoss:
        """The loss over the module's outputs and the scores."""
        return partial(mixsp_loss, ranges=self.ranges, similarity=self.similarity, **self.terms)

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        choices = {name: getattr(self, name) for name in ("select", "ranges", "route", "similarity")}
        return mixsp(self.model, **choices)
