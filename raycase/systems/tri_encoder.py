"""Tri-encoder (Deshpande et al., 2023, C-STS): sentence and condition encoded separately, fine-tuned on rated pairs.

Claim: each text is encoded only once, whatever it is paired with; predicts similarity much worse than a bi-encoder.

Shapes: N pairs, M distinct pairs, K of them not refused, S sentences, C conditions, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Compose, Pooling, compose
from raycase.encoder.prepared import Prepared
from raycase.systems.fine_tuned_config import ApartConfig, read_elsewhere, starting_encoder
from raycase.systems.fine_tuned_module import Embedder
from raycase.systems.pairs import SENTENCE, Encoded, accepted_pairs, encoded, tokens_apart


@dataclass(frozen=True, kw_only=True)
class TriEncoderConfig(ApartConfig):
    """compose(f(s), f(c)), without weights."""

    SYSTEM: ClassVar[str] = "tri-encoder"

    compose: Compose = Compose.HADAMARD

    @property
    def dim(self) -> int:
        return self.plain_dim * (2 if self.compose is Compose.CONCAT else 1)

    @property
    def text_of_pair(self) -> str | None:
        """That of the sentence, the encoder's part of a pair."""
        return SENTENCE.pattern if read_elsewhere(self.encoder) else None

    def load(self, **options: Any) -> TriEncoder:
        return TriEncoder(self, load_encoder(self.encoder, **options))


class TriEncoder(Embedder):
    """compose(f(s), f(c))."""

    def forward(self, prepared: Prepared) -> Tensor:
        if prepared.conditions is None:
            return self.encoder.pooled(prepared.alone[0])[torch.from_numpy(prepared.sentence[prepared.rows])]
        sentence_N, condition_N = (
            torch.from_numpy(index[prepared.rows]) for index in (prepared.sentence, prepared.condition)
        )
        sentences_SD, conditions_CD = (self.encoder.pooled(kind[0]) for kind in (prepared.alone, prepared.bases))
        return compose(sentences_SD[sentence_N], conditions_CD[condition_N], self.config.compose)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        sentences, sentence_index = np.unique(prepared.sentence[pair_index], return_inverse=True)
        sentences_SD, work = self.encoder.encode(prepared.alone[0].take(sentences))
        vectors_KD = sentences_SD[sentence_index]
        if prepared.conditions is not None:
            conditions_CD, condition_index, new_work = self.memory.of(
                prepared, pair_index, lambda new: self.encoder.encode(prepared.bases[0].take(new))
            )
            work += new_work
            first_KD, second_KD = (torch.from_numpy(v) for v in (vectors_KD, conditions_CD[condition_index]))
            vectors_KD = compose(first_KD, second_KD, self.config.compose).numpy()
        return encoded(prepared, pair_index, vectors_KD, replace(work, tokens=tokens_apart(prepared, pair_index)))


def tri_encoder(model: str, *, compose: Compose = Compose.HADAMARD, pooling: Pooling | None = None) -> TriEncoderConfig:
    """The system before training. Raises RequestError."""
    spec = starting_encoder(model, prompt="concat-cs", pooling=pooling)
    return TriEncoderConfig(model=model, encoder=replace(spec, subtract=False), compose=compose)
