"""A fine-tuned system with its weights, as PyTorch modules, and what training on rated pairs needs.

Shapes: N pairs, M distinct ones, K of them not refused, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import whole_model
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch
from raycase.io.vectors import pair_cosines
from raycase.models.embeds import Embeds, Loaded
from raycase.models.pairs import Encoded, Memory, RatedTexts, accepted_pairs, check_accepted, encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRAIN_TOKENS = {"cpu": 512, "cuda": 16384}  # of a padded sub-batch; smaller ones hold less padding


class FineTuned(Loaded, nn.Module):
    """A fine-tuned system with its weights."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.parts = encoder.parts()

    @property
    def extra(self) -> nn.Module | None:
        """What is saved beside the encoder."""
        return None

    def whole(self) -> PreTrainedModel:
        """The library's model with all its layers. The system cannot be used afterwards."""
        return whole_model(self.encoder)

    def save(self, folder: Path) -> None:
        """Write the model folder; `raycase.load(folder)` reads it. The system cannot be used afterwards."""
        self.config.save(folder, self.whole(), self.extra)


class Embedder(Embeds, FineTuned):
    """Base of the systems that embed; each defines `forward` and `encode_prepared`."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.memory = Memory(encoder.dim)  # for the vectors of conditions, where they are encoded apart

    @abstractmethod
    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""

    def forget(self) -> None:
        """Drop remembered vectors; needed after the weights changed."""
        self.memory.vectors.clear()


class PromptEncoder(Embedder):
    """An encoder over one prompt for each pair: (sentence, condition) -> pooled vector."""

    def forward(self, prepared: Prepared) -> Tensor:
        return self.encoder.pooled(prepared.pairs[0])[torch.from_numpy(prepared.rows)]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        vectors_KD, work = self.encoder.encode(prepared.pairs[0].take(pair_index))
        return encoded(prepared, pair_index, vectors_KD, work)


class Scorer(FineTuned):
    """Base of the systems that score pairs; each defines `head`, `forward` and `figures`."""

    head: nn.Module  # above the encoder

    @property
    def extra(self) -> nn.Module:
        return self.head

    @abstractmethod
    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """The score of each pair and what the system says beside it, in the order of `config.figure_names`, without a
        gradient, of pairs none of which is refused: (N, K) float32; and the encoder's work."""

    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Scores without a gradient, of pairs none of which is refused: (N,) float32."""
        return self.figures(batch)[0][:, 0]

    def score(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Similarity of each pair, under its condition where the system accepts one: N, N, N -> (N,) float32.

        Raises ValueError for lists of different length and for a text that cannot be encoded.
        """
        batch = self.config.tokens(sentences1, sentences2, conditions)
        check_accepted(batch.reasons, sentences1, sentences2, conditions=conditions)
        return self.scores(batch)


# ---------------------------------------------------------------------------------------------------------- training


def training_options() -> dict[str, Any]:
    """Options of `load_encoder` for training: 32-bit weights, padded batches."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return {"dtype": torch.float32, "unpadded": False, "batch_tokens": TRAIN_TOKENS[kind]}


def with_dropout(module: nn.Module, dropout: float | None) -> nn.Module:
    """The same module with every dropout layer set to `dropout`; None: unchanged."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) and dropout is not None:
            part.p = dropout
    return module


class PairCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, by a system that embeds."""

    def __init__(self, system: Embedder) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared) -> Tensor:
        """Cosines with a gradient, of what `RatedTexts.take` returned: 2 N -> (N,)."""
        return F.cosine_similarity(*self.system(prepared).float().chunk(2))

    def scores(self, texts: RatedTexts) -> np.ndarray:
        """Cosines of every rated pair, without a gradient: (N,)."""
        self.system.forget()
        return pair_cosines(self.system.encode_prepared(texts.prepared).vectors, texts.pair_index)


def pair_scores(system: Any) -> nn.Module:
    """What training on rated pairs fits, rows of `rated` -> scores: a `Scorer` itself, an `Embedder`'s cosines."""
    return PairCosine(system) if isinstance(system, Embedder) else system
