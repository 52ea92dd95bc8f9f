"""Fine-tuning jobs on rated pairs under conditions, and on a knowledge graph."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from raycase.data.graph import Known, read_graph
from raycase.encoder.pooling import Compose, Pooling
from raycase.encoder.prompts import TextFlags
from raycase.errors import RequestError
from raycase.systems.baselines import bi_encoder, cross_encoder, tri_encoder
from raycase.systems.csr import csr, default_router
from raycase.systems.csr_router import Asks, CsrForm, Router, Weight
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.lora import lora
from raycase.training.encoder_fit import FineTuneJob, Objective, PairObjective
from raycase.training.graph_fit import GraphObjective, GraphPart
from raycase.training.losses import Loss
from raycase.training.recipe import RatedRecipe

MARGIN = 0.02  # SimKGC's, subtracted from the score of the true tail in training


@dataclass(frozen=True, kw_only=True)
class RatedJob(FineTuneJob, RatedRecipe):
    """Fine-tune an encoder on rated pairs."""

    RECIPE = RatedRecipe

    def objective(self, config: FineTunedConfig) -> Objective:
        """The loss and the measures."""
        return PairObjective(config=config)


@dataclass(frozen=True, kw_only=True)
class GraphJob(RatedJob):
    """Fine-tune an encoder on rated pairs or a knowledge graph."""

    NOT_SWEPT: ClassVar[Sequence[str]] = ("task",)

    task: Literal["rated", "kgc"] = "rated"
    """rated: pairs of sentences rated under a condition. kgc: knowledge graph completion; --train and --validation are
    then .tsv files of head, relation, tail, with entities.tsv and relations.tsv in the folder of --train, and the loss
    is SimKGC's."""

    def objective(self, config: FineTunedConfig) -> Objective:
        """The loss and the measures of the task."""
        return GraphObjective(config=config, **self.terms) if self.task == "kgc" else super().objective(config)

    @property
    def terms(self) -> dict[str, Any]:
        """The settings of the loss that are not the recipe's."""
        return {"margin": MARGIN} if self.task == "kgc" else {}

    def read_parts(self) -> tuple[Any, Any]:
        """Read the training and validation data. Raises RequestError."""
        if self.task == "rated":
            return super().read_parts()
        graph = read_graph(posixpath.dirname(self.train) or ".", "--train")
        train, validation = (graph.triples(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        shared = Known.of(train).has(validation.queries, validation.rows[:, 2])
        if shared.any():
            raise RequestError(f"--validation: expected no triple that is trained on, got {int(shared.sum())}")
        return GraphPart(graph=graph, triples=train), GraphPart(graph=graph, triples=validation)


@dataclass(frozen=True, kw_only=True)
class BiEncoderJob(TextFlags, GraphJob):
    """A bi-encoder: sentence and condition as one text (Deshpande et al., 2023)."""

    SYSTEM = "bi-encoder"

    prompt: str | None = None
    """Prompt of sentence and condition: a name, or a file NAME.json with a template of one's own (docs/encoders.md).
    Default: concat-cs:all, which is "condition: sentence"."""

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return bi_encoder(self.model, **self.text_choices)


@dataclass(frozen=True, kw_only=True)
class TriEncoderJob(GraphJob):
    """A tri-encoder: sentence and condition encoded separately, then composed (Deshpande et al., 2023)."""

    SYSTEM = "tri-encoder"

    compose: Compose = Compose.HADAMARD
    """How the two vectors are composed."""
    pooling: Pooling | None = None
    """Pooling of token vectors. Default: the encoder's."""

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return tri_encoder(self.model, compose=self.compose, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class CrossEncoderJob(RatedJob):
    """A cross-encoder: both sentences and the condition as one text (Deshpande et al., 2023).

    It scores pairs and produces no embeddings.
    """

    SYSTEM = "cross-encoder"

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return cross_encoder(self.model)


@dataclass(frozen=True, kw_only=True)
class CsrJob(GraphJob):
    """CSR: the condition weights the sentence's tokens in the last layers (Lin et al., 2024).

    The paper's router is --router query --asks cls --routed 1 --weight 1+w. It does not see the condition in an encoder
    that is averaged: there the defaults are --router query --asks words --routed 3 --weight Tw, and --router hidden for
    minilm.
    """

    SYSTEM = "csr"

    form: CsrForm = CsrForm.TRI
    """tri: sentence and condition encoded separately. bi: as one text."""
    router: Router | None = None
    """Query and keys of the router: query, the attention's (the paper's); hidden, hidden states. Default: see
    above."""
    asks: Asks | None = None
    """Query of the condition: cls, the state of its [CLS] (the paper's); words, the mean of its words, and only the
    words of the sentence are weighted. Default: see above."""
    routed: int | None = None
    """Number of last layers with a router, T - t. Default: see above."""
    weight: Weight | None = None
    """Factor of the attention's output: 1+w (the paper's); w; Tw, w times the number of weighted tokens. Default: see
    above."""

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        choices = default_router(self.model, self.form)
        choices |= {name: value for name in choices if (value := getattr(self, name)) is not None}
        return csr(self.model, form=self.form, **choices)


@dataclass(frozen=True, kw_only=True)
class LoraJob(TextFlags, RatedJob):
    """Low-rank adapters on the attention's projections of any encoder (CASE, section 4.4)."""

    SYSTEM = "lora"

    loss: Loss = Loss.PEARSON
    """squared, or pearson (the paper's)."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW; adapters need a higher one than full fine-tuning (`results/fine_tuning.md`)."""
    prompt: str | None = None
    """Prompt of sentence and condition: a name, or a file NAME.json with a template of one's own (docs/encoders.md).
    Default: the encoder's."""
    rank: int = 32
    """Rank of the adapters."""
    alpha: float = 32.0
    """The adapters' product is multiplied by alpha / rank."""

    def config(self) -> FineTunedConfig:
        """The system before training. Raises RequestError."""
        return lora(self.model, **self.text_choices, rank=self.rank, alpha=self.alpha)
