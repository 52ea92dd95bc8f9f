"""MixSP (Ponwitayarat et al., 2024): a mixture of specialised projectors that scores pairs of sentences.

Claim: pairs that mean the same (scores of 4 to 5) and pairs that do not are two classes and no one spectrum. A router
that tells them apart and a projector for each, of which only one is used, rank better than a weighted mean of both
(on CDSC-R validation 88.3 against 82.9 Spearman, from SimCSE-BERT).

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

from raycase.encoders import load_encoder, load_tokenizer
from raycase.engine import TextEncoder
from raycase.pooling import Pooling
from raycase.tokens import TokenBatch
from raycase.tuned import Scorer, Scoring, begin, load_extra

ROWS = 4096  # pairs that go through the projectors together
WIDTH = 10  # of a projector's hidden layer over its input; the paper gives no shape, its authors' code this one


class Select(StrEnum):
    """How the projectors' outputs become one (section 4.1)."""

    HARD = "hard"  # the likelier one's, times its probability (eq. 3)
    SOFT = "soft"  # both, weighted by their probabilities: a mixture of experts


@dataclass(frozen=True, kw_only=True)
class MixSpConfig(Scoring):
    """G2(z1, z2) of "[CLS] s1 [SEP] s2 [SEP]". It knows no conditions."""

    SYSTEM: ClassVar[str] = "mixsp"
    CHOICES: ClassVar[dict[str, type[StrEnum]]] = {"select": Select}
    CONDITIONS: ClassVar[tuple[str, ...] | None] = ()

    select: Select = Select.HARD

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct sentence and put the pairs together; [CLS] and each sentence are pooled apart.

        A long pair loses the ends of its sentences; conditions are not read. Raises ValueError for lists of different
        length.
        """
        pairs = list(zip(sentences1, sentences2, strict=True))
        return load_tokenizer(self.encoder).separated(pairs, shortened=2, apart=2)

    def load(self, **options: Any) -> MixSp:
        """Load the weights; `options` are those of `raycase.encoders.load_encoder`."""
        scorer = MixSp(self, load_encoder(self.encoder, **options))
        load_extra(scorer.head, self.local)
        return scorer


class Heads(nn.Module):
    """Everything above the encoder: G1, Upper, Lower and G2."""

    def __init__(self, dim: int, select: Select) -> None:
        super().__init__()
        self.select = select
        self.router = nn.Linear(dim, 2)  # upper range, lower range
        self.upper, self.lower = (
            nn.Sequential(nn.Linear(dim, WIDTH * dim), nn.ReLU(), nn.Linear(WIDTH * dim, dim)) for _ in range(2)
        )
        self.g2 = nn.Linear(2 * dim, 1)

    def forward(self, cls_ND: Tensor, first_ND: Tensor, second_ND: Tensor) -> Tensor:
        """(N, 3): the logit of the similarity (eq. 4), and that of the upper range by each sentence (eq. 1)."""
        projected, routes = [], []
        for mean_ND in (first_ND, second_ND):
            logits_N2 = self.router(cls_ND + mean_ND)
            shares_N2 = logits_N2.softmax(-1)
            if self.select is Select.HARD:
                shares_N2 = shares_N2 * nn.functional.one_hot(shares_N2.argmax(-1), 2).to(shares_N2)
            projected.append(self._projected(mean_ND, shares_N2))
            routes.append(logits_N2[:, 0] - logits_N2[:, 1])
        return torch.stack([self.g2(torch.cat(projected, dim=1))[:, 0], *routes], dim=1)

    def _projected(self, mean_ND: Tensor, shares_N2: Tensor) -> Tensor:
        """Eq. 3: only projectors with a share are asked."""
        found = torch.zeros_like(mean_ND)
        for projector, share_N in zip((self.upper, self.lower), shares_N2.unbind(1), strict=True):
            rows = share_N.nonzero()[:, 0]
            found = found.index_add(0, rows, (projector(mean_ND[rows]) * share_N[rows, None]).to(found))
        return found


class MixSp(Scorer):
    """A router and two projectors over one encoder of both sentences. It is a `PairScorer`."""

    def __init__(self, config: MixSpConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head = Heads(encoder.dim, config.select).to(encoder.model.device)

    def forward(self, batch: TokenBatch) -> Tensor:
        """What `Heads` gives, with a gradient: (N, 3) fp32."""
        return self._heads(self.encoder.pooled(batch))

    @torch.inference_mode()
    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Similarity in [0, 1], without: (N,) float32."""
        pooled = torch.from_numpy(self.encoder.encode(batch)[0])
        parts = [self._heads(some.to(self.encoder.model.device))[:, 0].cpu() for some in pooled.split(ROWS)]
        return torch.cat([*parts, torch.empty(0)]).sigmoid().numpy()

    def _heads(self, pooled_NV: Tensor) -> Tensor:
        with torch.autocast(pooled_NV.device.type, enabled=False):  # 16 bits would leave many scores equal
            return self.head(*pooled_NV.chunk(3, dim=1))


def mixsp(model: str, *, select: Select = Select.HARD) -> MixSpConfig:
    """Before training. Raises RequestError."""
    spec = replace(begin(model, prompt="concat-cs", cls=True), pooling=(Pooling.MEAN,), subtract=False)
    return MixSpConfig(model=model, encoder=spec, select=select)
