"""Cross-encoder (Deshpande et al., 2023, C-STS): both sentences and the condition as one text; fine-tuned on ratings.

Claim: it reads everything together, and scores pairs; it produces no embeddings, so nothing can be stored or searched.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.several_texts import separated
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import PairEncoding
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch
from raycase.systems.fine_tuned_config import ScorerConfig, starting_encoder
from raycase.systems.fine_tuned_module import Scorer


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(ScorerConfig):
    """A score of "[CLS] s1 [SEP] s2 [SEP] c [SEP]", or what the encoder's tokenizer makes of the three texts."""

    SYSTEM: ClassVar[str] = "cross-encoder"

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text, put the triples together. Raises ValueError without conditions, too."""
        if conditions is None:
            raise ValueError("expected a condition for each pair, got none")
        triples = list(zip(sentences1, sentences2, conditions, strict=True))
        return separated(load_tokenizer(self.encoder), triples, encoding=self.encoder.pair_encoding, shortened=2)

    def load(self, **options: Any) -> CrossEncoder:
        scorer = CrossEncoder(self, load_encoder(self.encoder, **options))
        self.load_extra(scorer.head)
        return scorer


class CrossEncoder(Scorer):
    """[CLS] through dropout and one linear layer: a score."""

    def __init__(self, config: CrossEncoderConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head = nn.Linear(encoder.dim, 1, device=encoder.model.device)
        self.dropout = nn.Dropout(getattr(encoder.model.config, "hidden_dropout_prob", 0.0))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Scores with a gradient: (N,)."""
        return self._scored(self.dropout(self.encoder.pooled(batch)))

    @torch.inference_mode()
    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        encoded_ND, work = self.encoder.encode(batch)
        cls_ND = torch.from_numpy(encoded_ND).to(self.encoder.model.device)
        return self._scored(cls_ND)[:, None].cpu().numpy(), work

    def _scored(self, cls_ND: Tensor) -> Tensor:
        with torch.autocast(cls_ND.device.type, enabled=False):  # 16 bits would leave many scores equal
            return self.head(cls_ND)[:, 0]


def cross_encoder(model: str, *, pair_encoding: PairEncoding = PairEncoding.TOKENIZER) -> CrossEncoderConfig:
    """Before training. Raises RequestError."""
    spec = starting_encoder(model, prompt="concat-cs", cls=True)
    spec = replace(spec, pooling=(Pooling.CLS,), subtract=False, pair_encoding=pair_encoding)
    return CrossEncoderConfig(model=model, encoder=spec)
