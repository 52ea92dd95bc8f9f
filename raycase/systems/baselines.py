"""Bi-, tri- and cross-encoders (Deshpande et al., 2023, C-STS): fine-tuned on rated pairs, by squared error.

Claim: a condition acts best where the encoder reads it beside the sentence (bi-encoder); apart (tri-encoder) each text
is encoded once for all pairs, and much is lost; both sentences and the condition together (cross-encoder) only rank.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder, load_tokenizer
from raycase.encoder.pooling import Compose, Pooling, compose
from raycase.encoder.tokens import Prepared, TokenBatch
from raycase.systems.pairs import (
    CONDITION,
    SENTENCE,
    Encoded,
    Memory,
    count_tokens,
    encoded,
    kept_pairs,
    prepare,
    tokens_apart,
)
from raycase.systems.tuned import Embedder, Prompted, Scorer, Scoring, Tuned, begin, load_extra

# ------------------------------------------------------------------------------------ sentence and condition together


@dataclass(frozen=True, kw_only=True)
class BiEncoderConfig(Prompted):
    """f("c: s"): sentence and condition as one text."""

    SYSTEM: ClassVar[str] = "bi-encoder"


# ------------------------------------------------------------------------------------------------- no condition at all


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(Prompted):
    """f(s): the sentence alone."""

    SYSTEM: ClassVar[str] = "sentence-encoder"
    CONDITIONS: ClassVar[tuple[str, ...] | None] = ()

    @property
    def formula(self) -> str:
        """What its vectors are."""
        return "f(s)"


# ----------------------------------------------------------------------------------------- sentence and condition apart


@dataclass(frozen=True, kw_only=True)
class TriEncoderConfig(Tuned):
    """f(s) and f(c) apart, then composed."""

    SYSTEM: ClassVar[str] = "tri-encoder"
    CHOICES: ClassVar[dict[str, type[StrEnum]]] = {"compose": Compose}

    compose: Compose = Compose.HADAMARD

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim * (2 if self.compose is Compose.CONCAT else 1)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct sentence and condition. Loads no weights."""
        return prepare(self.encoder, sentences, conditions, alone=[SENTENCE], bases=[CONDITION])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's two texts: (N,) int64; 0 for a pair that is refused."""
        return count_tokens(self.encoder, sentences, conditions, [SENTENCE, *([CONDITION] if conditions else [])])

    def load(self, **options: Any) -> TriEncoder:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        return TriEncoder(self, load_encoder(self.encoder, **options))


class TriEncoder(Embedder):
    """compose(f(s), f(c)). It is an `Encoder`."""

    def __init__(self, config: TriEncoderConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self._memory = Memory(encoder.dim)

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        if prepared.conditions is None:
            return self.encoder.pooled(prepared.alone[0])[torch.from_numpy(prepared.sentence[prepared.rows])]
        sentence_N, condition_N = (
            torch.from_numpy(places[prepared.rows]) for places in (prepared.sentence, prepared.condition)
        )
        sentences_SD, conditions_CD = (self.encoder.pooled(kind[0]) for kind in (prepared.alone, prepared.bases))
        return compose(sentences_SD[sentence_N], conditions_CD[condition_N], self.config.compose)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        kept = kept_pairs(prepared)
        which, places = np.unique(prepared.sentence[kept], return_inverse=True)
        sentences_SD, work = self.encoder.encode(prepared.alone[0].take(which))
        vectors_KD = sentences_SD[places]
        if prepared.conditions is not None:
            which, places = np.unique(prepared.condition[kept], return_inverse=True)
            conditions_CD, some = self._memory.of(
                prepared, which, lambda new: self.encoder.encode(prepared.bases[0].take(new))
            )
            work += some
            first_KD, second_KD = (torch.from_numpy(vectors) for vectors in (vectors_KD, conditions_CD[places]))
            vectors_KD = compose(first_KD, second_KD, self.config.compose).numpy()
        return encoded(prepared, kept, vectors_KD, replace(work, tokens=tokens_apart(prepared, kept)))

    def forget(self) -> None:
        """Drop what is remembered of conditions; for weights that have changed."""
        self._memory.vectors.clear()


# ------------------------------------------------------------------------------------- both sentences and the condition


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(Scoring):
    """A score of "[CLS] s1 [SEP] s2 [SEP] c [SEP]"."""

    SYSTEM: ClassVar[str] = "cross-encoder"

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text, put the triples together; a long one loses the ends of its sentences.

        Raises ValueError for lists of different length, and without conditions.
        """
        if conditions is None:
            raise ValueError("expected a condition for each pair, got none")
        triples = list(zip(sentences1, sentences2, conditions, strict=True))
        return load_tokenizer(self.encoder).separated(triples, shortened=2)

    def load(self, **options: Any) -> CrossEncoder:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        scorer = CrossEncoder(self, load_encoder(self.encoder, **options))
        load_extra(scorer.head, self.local)
        return scorer


class CrossEncoder(Scorer):
    """[CLS] through dropout and one linear layer: a score. It is a `PairScorer`."""

    def __init__(self, config: CrossEncoderConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head = nn.Linear(encoder.dim, 1, device=encoder.model.device)
        self.dropout = nn.Dropout(getattr(encoder.model.config, "hidden_dropout_prob", 0.0))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Scores with a gradient: (N,)."""
        return self._scored(self.dropout(self.encoder.pooled(batch)))

    @torch.inference_mode()
    def scores(self, batch: TokenBatch) -> np.ndarray:
        """The same without: (N,) float32."""
        cls_ND = torch.from_numpy(self.encoder.encode(batch)[0]).to(self.encoder.model.device)
        return self._scored(cls_ND).cpu().numpy()

    def _scored(self, cls_ND: Tensor) -> Tensor:
        with torch.autocast(cls_ND.device.type, enabled=False):  # 16 bits would leave many scores equal
            return self.head(cls_ND)[:, 0]


# ----------------------------------------------------------------------------------------------------- where they begin


def bi_encoder(model: str, *, prompt: str | None = None, pooling: Pooling | None = None) -> BiEncoderConfig:
    """Before training. The default reads "c: s" and pools every token. Raises RequestError."""
    spec = begin(model, prompt=prompt or "concat-cs:all", pooling=pooling)
    return BiEncoderConfig(model=model, encoder=replace(spec, separator=": ", subtract=False))


def sentence_encoder(model: str, *, pooling: Pooling | None = None) -> SentenceEncoderConfig:
    """Before training. Raises RequestError."""
    spec = begin(model, prompt="concat-cs:all", pooling=pooling)
    return SentenceEncoderConfig(model=model, encoder=replace(spec, subtract=False))


def tri_encoder(model: str, *, compose: Compose = Compose.HADAMARD, pooling: Pooling | None = None) -> TriEncoderConfig:
    """Before training. Raises RequestError."""
    return TriEncoderConfig(
        model=model, encoder=replace(begin(model, prompt="concat-cs", pooling=pooling), subtract=False), compose=compose
    )


def cross_encoder(model: str) -> CrossEncoderConfig:
    """Before training. Raises RequestError."""
    spec = begin(model, prompt="concat-cs", cls=True)
    return CrossEncoderConfig(model=model, encoder=replace(spec, pooling=(Pooling.CLS,), subtract=False))
