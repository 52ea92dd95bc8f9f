"""A fine-tuned system with its weights, as PyTorch modules, and what training on rated pairs takes of it.

Shapes: N pairs, M distinct ones, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.cosines import pair_cosines
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import whole_model
from raycase.encoder.prepared import Prepared
from raycase.encoder.token_batch import TokenBatch
from raycase.systems.model_folder import save_folder
from raycase.systems.pairs import Encoded, accepted_pairs, embed, encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRAIN_TOKENS = {"cpu": 512, "cuda": 16384}  # of a padded batch within a batch; small ones hold less padding


class Loaded(nn.Module):
    """A system with its weights."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.parts = encoder.parts()


class Embedder(Loaded):
    """What the fine-tuned encoders that give vectors share; each has its own `forward` and `encode_prepared`."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return int(self.config.dim)

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        raise NotImplementedError

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        raise NotImplementedError

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """Vectors of pairs, or of sentences alone where `conditions` is None: N, N -> (N, dim) float32.

        One condition as a string serves every sentence. A sentence above the encoder's length loses its end.
        Raises ValueError for lists of different length and for a pair that cannot be embedded.
        """
        return embed(self.config.prepare, self.encode_prepared, sentences, conditions)

    def whole(self) -> PreTrainedModel:
        """The library's model again; this one is not to be used any more."""
        return whole_model(self.encoder)

    def save(self, folder: Path) -> None:
        """Write everything that `raycase.load(folder)` needs; this one is not to be used any more."""
        save_folder(self.config, folder, self.whole())

    def forget(self) -> None:
        """Drop what is remembered of texts; for weights that have changed."""

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured when asked for."""
        return self.encoder.matrix_product_rate()


class PromptEncoder(Embedder):
    """An encoder over the prompt of each pair: (sentence, condition) -> pooled vector. It is an `Encoder`."""

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        return self.encoder.pooled(prepared.pairs[0])[torch.from_numpy(prepared.rows)]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        kept = accepted_pairs(prepared)
        vectors_KD, work = self.encoder.encode(prepared.pairs[0].take(kept))
        return encoded(prepared, kept, vectors_KD, work)


class Scorer(Loaded):
    """What the systems that score pairs share; each has its own `head`, `forward` and `scores`."""

    head: nn.Module  # above the encoder

    @property
    def system(self) -> Scorer:
        """Itself: what is saved after training."""
        return self

    def save(self, folder: Path) -> None:
        """Write everything that `raycase.load(folder)` needs; this one is not to be used any more."""
        save_folder(self.config, folder, whole_model(self.encoder), extra=self.head)

    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Of pairs none of which is refused: (N,) float32."""
        raise NotImplementedError

    def score(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Similarity of each pair, under its condition where the system reads one: N, N, N -> (N,) float32.

        Raises ValueError for lists of different length and for a text that cannot be encoded.
        """
        batch = self.config.tokens(sentences1, sentences2, conditions)
        for row, reason in enumerate(batch.reasons):
            if reason is not None:
                columns = (sentences1, sentences2, *([] if conditions is None else [conditions]))
                raise ValueError(f"pair {row}: {reason}: {', '.join(repr(column[row]) for column in columns)}")
        return self.scores(batch)

    def scores_of(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """The same, NaN for a pair that cannot be encoded."""
        batch = self.config.tokens(sentences1, sentences2, conditions)
        found_N = np.full(len(batch), np.nan, dtype=np.float32)
        kept = np.flatnonzero(batch.refused < 0)
        found_N[kept] = self.scores(batch.take(kept))
        return found_N


# ---------------------------------------------------------------------------------------------------------- training


def training_options() -> dict[str, Any]:
    """Of `load_encoder`: 32-bit weights, padded batches."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return {"dtype": torch.float32, "unpadded": False, "batch_tokens": TRAIN_TOKENS[kind]}


def with_dropout(module: nn.Module, dropout: float | None) -> nn.Module:
    """The same module, every dropout of it set."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) and dropout is not None:
            part.p = dropout
    return module


@dataclass(frozen=True, kw_only=True)
class RatedTexts:
    """Rated pairs, tokenised: the distinct (sentence, condition), and where each pair's two stand, (N, 2)."""

    prepared: Prepared
    places: np.ndarray

    def take(self, rows: np.ndarray) -> Prepared:
        """Of some pairs: the first sentences, then the second ones, under their conditions."""
        return self.prepared.take(self.places[rows].T.reshape(-1))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each pair: (N,)."""
        prepared = self.prepared
        tokens_M = sum(batch.lengths for batch in prepared.pairs) + np.zeros(len(prepared.condition), dtype=np.int64)
        for batch in prepared.alone:
            tokens_M = tokens_M + batch.lengths[prepared.sentence]
        return tokens_M[prepared.rows][self.places].sum(1)


class PairCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, by a system that embeds."""

    def __init__(self, system: Any) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared) -> Tensor:
        """Of what `RatedTexts.take` gives: 2 N -> (N,)."""
        return F.cosine_similarity(*self.system(prepared).float().chunk(2))

    def scores(self, texts: RatedTexts) -> np.ndarray:
        """Of every pair, without gradient: (N,)."""
        self.system.forget()
        return pair_cosines(self.system.encode_prepared(texts.prepared).vectors, texts.places)
