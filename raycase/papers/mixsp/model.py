"""MixSP (Ponwitayarat et al., 2024): a mixture of specialised projectors that scores pairs of sentences.

Pairs with the same meaning (scores from 4 to 5) and all others are two classes, each with a projector. A router selects
one.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.token_batch import TokenBatch
from raycase.encoder.tokenizer import separated
from raycase.models.configs import ScorerConfig
from raycase.models.fine_tuned import Scorer, starting_encoder

MOST, UPPER = 5.0, 4.0  # highest score of STS; lowest score of two sentences with the same meaning
LOWEST = (0.0, UPPER)  # score of each range
WIDTH = 10  # a projector's hidden size / its input size; from the authors' code, the paper gives no shape


class Heads(nn.Module):
    """Everything above the encoder: the router G1, one projector per range (lowest first), and G2."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, len(LOWEST))
        self.projectors = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, WIDTH * dim), nn.ReLU(), nn.Linear(WIDTH * dim, dim)) for _ in LOWEST
        )
        self.g2 = nn.Linear(2 * dim, 1)

    def forward(self, pooled_NV: Tensor) -> Tensor:
        """Of [CLS] and both sentences side by side, (N, 3 D) -> (N, 5): G2 as a logit (eq. 4), then the logits of both
        ranges by each sentence (eq. 1)."""
        cls_ND, *means = pooled_NV.chunk(3, dim=1)
        logits = [self.router(cls_ND + mean_ND) for mean_ND in means]
        projected = [self._projected(mean_ND, r_N2) for mean_ND, r_N2 in zip(means, logits, strict=True)]
        return torch.cat([self.g2(torch.cat(projected, dim=1)), *logits], dim=1)

    def _projected(self, mean_ND: Tensor, logits_N2: Tensor) -> Tensor:
        """Eq. 3: what the most probable projector gives, times its probability; it runs on these rows alone."""
        share_N, likeliest_N = logits_N2.softmax(-1).max(-1)
        projected_ND = torch.zeros_like(mean_ND)
        for number, projector in enumerate(self.projectors):
            rows = (likeliest_N == number).nonzero()[:, 0]
            part_ND = projector(mean_ND[rows]) * share_N[rows, None]
            projected_ND = projected_ND.index_add(0, rows, part_ND.to(projected_ND))
        return projected_ND


class MixSp(Scorer):
    """A router and projectors over one encoder, which reads both sentences."""

    def __init__(self, config: MixSpConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head: Heads = Heads(encoder.dim).to(encoder.model.device)

    def figures_of(self, outputs_N: Tensor) -> Tensor:
        """Similarity in [0, 1], lowest score of the range, the router's mean probability of it: (N, 3)."""
        probability_N, range_N = outputs_N[:, 1:].unflatten(1, (2, -1)).softmax(-1).mean(1).max(-1)
        return torch.stack([outputs_N[:, 0].sigmoid(), torch.tensor(LOWEST)[range_N], probability_N], dim=1)


@dataclass(frozen=True, kw_only=True)
class MixSpConfig(ScorerConfig):
    """G2(z1, z2) of "[CLS] s1 [SEP] s2 [SEP]", or the encoder's tokenizer's pair. Takes no conditions."""

    SYSTEM = "mixsp"
    LOADED = MixSp
    known_conditions = ()
    figure_names = ("score", "range", "probability")

    def tokenize_pairs(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Pooled are [CLS] and each sentence."""
        rows = list(zip(sentences1, sentences2, strict=True))
        return separated(load_tokenizer(self.encoder), rows, shortened=2, apart=2)


def mixsp(model: str) -> MixSpConfig:
    """The system before training."""
    spec = starting_encoder(model, prompt="concat-cs", cls=True)
    return MixSpConfig(name=model, encoder=replace(spec, pooling=(Pooling.MEAN,)))


SYSTEMS = {"mixsp": MixSpConfig}
