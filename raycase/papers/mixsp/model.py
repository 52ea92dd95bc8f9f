"""MixSP (Ponwitayarat et al., 2024): a mixture of specialised projectors that scores pairs of sentences.

Pairs with the same meaning (scores from 4 to 5) and all others are two classes, each with a projector. A router selects
one.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.models.configs import ScorerConfig
from raycase.models.fine_tuned import Scorer, starting_encoder

MOST, UPPER = 5.0, 4.0  # highest score of STS; lowest score of two sentences with the same meaning
LOWEST = (0.0, UPPER)  # score of each range
PAIRS_AT_ONCE = 4096  # batch size of the projectors
WIDTH = 10  # a projector's hidden size / its input size; from the authors' code, the paper gives no shape


@dataclass(frozen=True, kw_only=True)
class MixSpConfig(ScorerConfig):
    """G2(z1, z2) of "[CLS] s1 [SEP] s2 [SEP]", or the encoder's tokenizer's pair. Takes no conditions."""

    SYSTEM: ClassVar[str] = "mixsp"
    known_conditions: ClassVar[tuple[str, ...] | None] = ()
    figure_names: ClassVar[tuple[str, ...]] = ("score", "range", "probability")
    APART: ClassVar[int] = 2

    def load(self, **options: Any) -> MixSp:
        scorer = MixSp(self, load_encoder(self.encoder, **options))
        self.load_extra(scorer.head)
        return scorer


class Heads(nn.Module):
    """Everything above the encoder: the router G1, one projector per range (lowest first), and G2."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, len(LOWEST))
        self.projectors = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, WIDTH * dim), nn.ReLU(), nn.Linear(WIDTH * dim, dim)) for _ in LOWEST
        )
        self.g2 = nn.Linear(2 * dim, 1)

    def forward(self, cls_ND: Tensor, first_ND: Tensor, second_ND: Tensor) -> Tensor:
        """(N, 5): G2 as a logit (eq. 4), then the logits of both ranges by each sentence (eq. 1)."""
        means = (first_ND, second_ND)
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

    def forward(self, batch: TokenBatch) -> Tensor:
        """The output of `Heads`, with a gradient, in fp32."""
        return self._heads(self.encoder.pooled(batch))

    @torch.inference_mode()
    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """Similarity in [0, 1], lowest score of the range, the router's mean probability of it, (N, 3); the work."""
        pooled_NV, work = self.encoder.encode(batch)
        figures = []
        for part in torch.from_numpy(pooled_NV).split(PAIRS_AT_ONCE):
            outputs_N5 = self._heads(part.to(self.encoder.model.device)).cpu()
            probability_N, range_N = outputs_N5[:, 1:].unflatten(1, (2, -1)).softmax(-1).mean(1).max(-1)
            lowest_N = torch.tensor(LOWEST)[range_N]
            figures.append(torch.stack([outputs_N5[:, 0].sigmoid(), lowest_N, probability_N], dim=1))
        return torch.cat(figures).numpy(), work

    def _heads(self, pooled_NV: Tensor) -> Tensor:
        with torch.autocast(pooled_NV.device.type, enabled=False):  # with 16 bits many scores would be equal
            return self.head(*pooled_NV.chunk(3, dim=1))


def mixsp(model: str) -> MixSpConfig:
    """The system before training."""
    spec = starting_encoder(model, prompt="concat-cs", cls=True)
    return MixSpConfig(name=model, encoder=replace(spec, pooling=(Pooling.MEAN,)))


SYSTEMS = {"mixsp": MixSpConfig}
