"""Losses over a whole batch: pure functions of the (cosines, ratings) of pairs, or of the vectors of triples.

Shapes: B pairs or triples, D dimensions.
"""

from __future__ import annotations

from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor


class Loss(StrEnum):
    """Losses over ratings."""

    SQUARED = "squared"
    PEARSON = "pearson"


def unit_ratings(ratings: Tensor) -> Tensor:
    """Targets of the cosine, from 0 to 1, for ratings from 1 to 5; eq. 2 does not specify them, and C-STS has no
    opposites (`results/csts_minilm.md`)."""
    return (ratings - 1) / 4


def squared_error(cosines_B: Tensor, targets_B: Tensor) -> Tensor:
    """Mean of (cos - r)^2 (CASE, eq. 2; the mean, so that the learning rate does not depend on the batch size)."""
    return (cosines_B - targets_B).square().mean()


def pearson_loss(cosines_B: Tensor, targets_B: Tensor) -> Tensor:
    """1 - Pearson's correlation over the batch (CASE, section 4.4)."""
    cosines, targets = cosines_B - cosines_B.mean(), targets_B - targets_B.mean()
    # clamp before the square root, whose gradient at 0 is infinite
    norms = (cosines.square().sum() * targets.square().sum()).clamp(min=1e-24).sqrt()
    return 1 - (cosines * targets).sum() / norms


LOSSES = {Loss.SQUARED: squared_error, Loss.PEARSON: pearson_loss}


def contrastive_loss(
    queries_BD: Tensor, tails_BD: Tensor, heads_BD: Tensor, known_BB: Tensor, self_known_B: Tensor, margin: float
) -> Tensor:
    """InfoNCE with an additive margin, in both directions (SimKGC, Wang et al., 2022, eq. 4):

    -log exp((q_i . t_i - margin) / tau) / (exp((q_i . t_i - margin) / tau) + sum over j of exp(q_i . n_j / tau))

    and the same from tails to queries. Negatives of a query are the batch's other tails and the query's head, without
    those that form known triples (`known_BB`, `self_known_B`). Tails and heads have length 1, queries 1 / tau: the
    gradient of the temperature thus flows through the queries, in the process that holds them.
    """
    true_BB = torch.eye(len(queries_BD), dtype=torch.bool, device=queries_BD.device)
    scores_BB = queries_BD @ tails_BD.T - true_BB.to(queries_BD) * margin * queries_BD.norm(dim=1, keepdim=True)
    scores_BB = scores_BB.masked_fill(known_BB & ~true_BB, float("-inf"))
    self_B1 = (queries_BD * heads_BD).sum(1).masked_fill(self_known_B, float("-inf")).unsqueeze(1)
    target_B = torch.arange(len(queries_BD), device=queries_BD.device)
    return F.cross_entropy(torch.cat([scores_BB, self_B1], dim=1), target_B) + F.cross_entropy(scores_BB.T, target_B)


def dual_loss(
    explicit_KBD: Tensor,
    implicit_KBD: Tensor,
    *,
    contradiction: bool = True,
    intra: bool = True,
    temperature: float = 0.05,
) -> Tensor:
    """DualCSE's loss (Oda et al., 2025, eq. 2), the mean over the batch; without `contradiction`, `intra` or both: eqs.
    6, 7 and 8. r and u: the vectors of K kinds of sentences (premise, explicit and implied entailment, contradiction).

    -log v(r_i, r+_i1) / sum over j of (v(r_i, r+_j1) + v(r_i, r-_j) + v(r_i, u_j)), v = exp(cos / temperature),
    -log v(u_i, r+_i2) / sum over j of (v(u_i, r+_j2) + v(u_i, r-_j) + v(u_i, r_j)), and, for both entailments and the
    contradiction, -log v(r_i, u_i) / sum over j of v(r_i, u_j).

    The last denominators are those of appendix F: as printed in eq. 2, v(r_j, u_j), nothing pulls r_i and u_i together.
    Without `contradiction` the fourth kind is ignored, without `intra` all implicit vectors except the premise's. With
    u = r and without `intra` this is SimCSE's supervised loss (Gao et al., 2021), with two positives.
    """
    r, u = F.normalize(explicit_KBD, dim=-1), F.normalize(implicit_KBD, dim=-1)
    against = [r[3]] if contradiction else []
    loss = info_nce(r[0], [r[1], *against, *([u[0]] if intra else [])], temperature)
    loss = loss + info_nce(u[0], [r[2], *against, *([r[0]] if intra else [])], temperature)
    if intra:
        for kind in range(1, 4 if contradiction else 3):
            loss = loss + info_nce(r[kind], [u[kind]], temperature)
    return loss


def info_nce(anchors_BD: Tensor, candidates: list[Tensor], temperature: float) -> Tensor:
    """InfoNCE: the positive of anchor i is row i of the first candidates, its negatives are all other candidates."""
    scores = anchors_BD @ torch.cat(candidates).T / temperature
    return F.cross_entropy(scores, torch.arange(len(anchors_BD), device=scores.device))
