"""MixSP (Ponwitayarat et al., 2024): a mixture of specialised projectors that scores pairs of sentences.

Claim: pairs with the same meaning (scores from 4 to 5) and all others are two classes, not one spectrum. A router that
selects one of two projectors, one per class, ranks better than a weighted mean of both (88.3 against 82.9 Spearman on
CDSC-R validation, from SimCSE-BERT).

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.several_texts import separated
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.errors import RequestError, check_ranges
from raycase.models.fine_tuned import Scorer, ScorerConfig, starting_encoder

MOST, UPPER = 5.0, 4.0  # highest score of STS; lowest score of two sentences with the same meaning
PAIRS_AT_ONCE = 4096  # batch size of the projectors
WIDTH = 10  # a projector's hidden size / its input size; from the authors' code, the paper gives no shape


class Similarity(StrEnum):
    """How two projections become a score, and the loss of that score (Table 4)."""

    LINEAR = "linear"  # G2; binary cross-entropy (eq. 4)
    COSINE = "cosine"  # the cosine; squared error
    CONTRASTIVE = "contrastive"  # the cosine; InfoNCE against the batch's other pairs


class Select(StrEnum):
    """How the projectors' outputs are combined (section 4.1)."""

    HARD = "hard"  # the output of the most probable one, times its probability (eq. 3)
    SOFT = "soft"  # all, weighted by their probabilities: a mixture of experts
    NONE = "none"  # there are none: h_cls is classified, as in any text classification (Table 5, "vanilla")


class Route(StrEnum):
    """Input of the router (Table 4)."""

    CLS = "cls"  # h_cls + h_xj (eq. 1)
    OWN = "own"  # h_xj alone
    BOTH = "both"  # h_x1 + h_x2


@dataclass(frozen=True, kw_only=True)
class MixSpConfig(ScorerConfig):
    """G2(z1, z2) of "[CLS] s1 [SEP] s2 [SEP]", or the encoder's tokenizer's pair. Takes no conditions."""

    SYSTEM: ClassVar[str] = "mixsp"
    known_conditions: ClassVar[tuple[str, ...] | None] = ()
    figure_names: ClassVar[tuple[str, ...]] = ("score", "range", "probability")

    select: Select = Select.HARD
    ranges: tuple[float, ...] = (UPPER,)  # lowest score of each range after the first; one projector per range
    route: Route = Route.CLS
    similarity: Similarity = Similarity.LINEAR

    def __post_init__(self) -> None:
        rise = (
            list(self.ranges) == sorted(set(self.ranges))
            and 0 < min(self.ranges, default=0) <= max(self.ranges) <= MOST
        )
        check_ranges(self, {"ranges": (rise, f"rising scores above 0, at most {MOST:g}")})
        if self.select is Select.NONE and (self.route, self.similarity) != (Route.CLS, Similarity.LINEAR):
            raise RequestError(
                f"--select none: expected no other route or similarity, for it has no projectors, got {self.route} "
                f"and {self.similarity}"
            )

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise pairs of sentences; [CLS] and both are pooled separately. Conditions are ignored."""
        pairs = list(zip(sentences1, sentences2, strict=True))
        return separated(load_tokenizer(self.encoder), pairs, shortened=2, apart=2)

    def load(self, **options: Any) -> MixSp:
        scorer = MixSp(self, load_encoder(self.encoder, **options))
        self.load_extra(scorer.head)
        return scorer


class Heads(nn.Module):
    """Everything above the encoder: the router G1, one projector per range (lowest first), and G2.

    With `Select.NONE` the router alone.
    """

    def __init__(self, dim: int, config: MixSpConfig) -> None:
        super().__init__()
        self.config = config
        ranges = len(config.ranges) + 1
        self.router = nn.Linear(dim, ranges)
        projectors = 0 if config.select is Select.NONE else ranges
        self.projectors = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, WIDTH * dim), nn.ReLU(), nn.Linear(WIDTH * dim, dim))
            for _ in range(projectors)
        )
        self.g2 = nn.Linear(2 * dim, 1) if projectors and config.similarity is Similarity.LINEAR else None

    def forward(self, cls_ND: Tensor, first_ND: Tensor, second_ND: Tensor) -> Tensor:
        """(N, 1 + 2 R): the similarity (eq. 4; G2 as a logit), then each sentence's logits of the R ranges (eq. 1).

        With the contrastive loss both projections follow: (N, 1 + 2 R + 2 D). Without projectors the similarity is the
        expected place of the range, from 0 to 1 (of two ranges, the probability of the upper one), and both sentences
        have the pair's logits.
        """
        if self.config.select is Select.NONE:
            logits_NR = self.router(cls_ND)
            places_R = torch.linspace(0, 1, logits_NR.shape[1]).to(logits_NR)
            return torch.cat([(logits_NR.softmax(-1) * places_R).sum(1, keepdim=True), logits_NR, logits_NR], dim=1)
        means = (first_ND, second_ND)
        states = {
            Route.CLS: [cls_ND + mean_ND for mean_ND in means],
            Route.OWN: means,
            Route.BOTH: [first_ND + second_ND] * 2,
        }[self.config.route]
        logits = [self.router(state_ND) for state_ND in states]
        z1_ND, z2_ND = (self._projected(h_ND, self._shares(r_NR)) for h_ND, r_NR in zip(means, logits, strict=True))
        if self.g2 is None:
            score_N1 = F.cosine_similarity(z1_ND, z2_ND)[:, None]
        else:
            score_N1 = self.g2(torch.cat([z1_ND, z2_ND], dim=1))
        contrasted = [z1_ND, z2_ND] if self.config.similarity is Similarity.CONTRASTIVE else []
        return torch.cat([score_N1, *logits, *contrasted], dim=1)

    def _shares(self, logits_NR: Tensor) -> Tensor:
        shares_NR = logits_NR.softmax(-1)
        if self.config.select is Select.SOFT:
            return shares_NR
        return shares_NR * F.one_hot(shares_NR.argmax(-1), shares_NR.shape[1]).to(shares_NR)

    def _projected(self, mean_ND: Tensor, shares_NR: Tensor) -> Tensor:
        """Eq. 3; each projector runs only on the rows in which its share is above 0."""
        projected_ND = torch.zeros_like(mean_ND)
        for projector, share_N in zip(self.projectors, shares_NR.unbind(1), strict=True):
            rows = share_N.nonzero()[:, 0]
            part_ND = projector(mean_ND[rows]) * share_N[rows, None]
            projected_ND = projected_ND.index_add(0, rows, part_ND.to(projected_ND))
        return projected_ND


class MixSp(Scorer):
    """A router and projectors over one encoder, which reads both sentences."""

    def __init__(self, config: MixSpConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head: Heads = Heads(encoder.dim, config).to(encoder.model.device)

    def forward(self, batch: TokenBatch) -> Tensor:
        """The output of `Heads`, with a gradient, in fp32."""
        return self._heads(self.encoder.pooled(batch))

    @torch.inference_mode()
    def figures(self, batch: TokenBatch, pairs_at_once: int = PAIRS_AT_ONCE) -> tuple[np.ndarray, Work]:
        """Of each pair, without a gradient: its similarity, that of G2 in [0, 1]; the lowest score of its range; the
        router's probability of that range, the mean of both sentences': (N, 3) float32; and the encoder's work."""
        pooled_NV, work = self.encoder.encode(batch)
        parts = torch.from_numpy(pooled_NV).split(pairs_at_once)
        lowest_R = torch.tensor([0.0, *self.config.ranges])
        figures = [torch.empty(0, 3)]
        for part in parts:
            outputs_NK = self._heads(part.to(self.encoder.model.device)).cpu()
            scores_N = outputs_NK[:, 0] if self.head.g2 is None else outputs_NK[:, 0].sigmoid()
            logits_NSR = outputs_NK[:, 1 : 1 + 2 * len(lowest_R)].unflatten(1, (2, len(lowest_R)))
            probability_N, range_N = logits_NSR.softmax(-1).mean(1).max(-1)
            figures.append(torch.stack([scores_N, lowest_R[range_N], probability_N], dim=1))
        return torch.cat(figures).numpy(), work

    def _heads(self, pooled_NV: Tensor) -> Tensor:
        with torch.autocast(pooled_NV.device.type, enabled=False):  # with 16 bits many scores would be equal
            return self.head(*pooled_NV.chunk(3, dim=1))


def mixsp(model: str, **choices: Any) -> MixSpConfig:
    """The system before training; choices: the other fields of `MixSpConfig`. Raises RequestError."""
    spec = starting_encoder(model, prompt="concat-cs", cls=True)
    spec = replace(spec, pooling=(Pooling.MEAN,), subtract=False)
    return MixSpConfig(model=model, encoder=spec, **choices | {"ranges": tuple(choices.get("ranges", (UPPER,)))})


SYSTEMS = {"mixsp": MixSpConfig}
