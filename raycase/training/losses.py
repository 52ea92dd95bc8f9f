"""Losses over a whole batch: pure functions of (cosines, ratings) or of vectors. Metrics of rated pairs.

Shapes: N rated pairs, B pairs or triples of a batch, P vectors, D dimensions, M of them: the nested ones and all,
R ranges of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.data.rated import NOT_APPLICABLE
from raycase.data.vectors import pair_cosines
from raycase.evaluation.metrics import pearson, spearman
from raycase.systems.mixsp import MOST, UPPER, Similarity


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


# -------------------------------------------------------------- vectors that can be cut (Kusupati et al., 2022, eq. 1)


def nested_range(nested: Sequence[int], dim: int) -> tuple[bool, str]:
    """For `check_ranges`: whether all nested dimensions are below the whole one, and what is expected."""
    return all(0 < n < dim for n in nested), f"dimensions below {dim}"


def nested_cosines(first_BD: Tensor, second_BD: Tensor, dims: Sequence[int]) -> Tensor:
    """The cosine of two vectors of a pair, over their first dimensions alone: (B, D), (B, D) -> (B, M)."""
    return torch.stack([F.cosine_similarity(first_BD[:, :d], second_BD[:, :d]) for d in dims], dim=1)


def nested_loss(cosines_BM: Tensor, targets_B: Tensor, loss: Loss) -> Tensor:
    """The mean of the loss over the dimensions."""
    return torch.stack([LOSSES[loss](cosines_B, targets_B) for cosines_B in cosines_BM.unbind(1)]).mean()


def nested_correlations(
    vectors_PD: np.ndarray, pair_index_N2: np.ndarray, ratings_N: np.ndarray, nested: Sequence[int]
) -> dict[str, float]:
    """The `correlations` of the cosines, and Spearman x 100 over all pairs at each nested dimension."""
    metrics = correlations(pair_cosines(vectors_PD, pair_index_N2), ratings_N)
    for dim in nested:
        metrics[f"spearman_{dim}"] = 100 * spearman(pair_cosines(vectors_PD[:, :dim], pair_index_N2), ratings_N)
    return metrics


def correlations(scores_N: np.ndarray, ratings_N: np.ndarray) -> dict[str, float]:
    """Spearman and Pearson x 100 over all pairs, and Spearman x 100 without label -1."""
    rated = ratings_N != NOT_APPLICABLE
    return {
        "spearman": 100 * spearman(scores_N, ratings_N),
        "pearson": 100 * pearson(scores_N, ratings_N),
        "spearman_rated": 100 * spearman(scores_N[rated], ratings_N[rated]),
    }


# -------------------------------------------------------------------------------------------------- contrastive losses


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


# ------------------------------------------------------------------------------------------ scores without a condition


def scored_loss(cosines_B: Tensor, ratings_B: Tensor) -> Tensor:
    """Mean of (cos - score / 5)^2: sentence encoders on STS (Reimers and Gurevych, 2019)."""
    return squared_error(cosines_B, ratings_B / MOST)


def mixsp_loss(
    outputs_BK: Tensor,
    ratings_B: Tensor,
    *,
    ranges: Sequence[float] = (UPPER,),
    similarity: Similarity = Similarity.LINEAR,
    similarity_weight: float = 7e-4,
    range_weight: float = 1e-4,
    temperature: float = 0.05,
) -> Tensor:
    """MixSP's loss (Ponwitayarat et al., 2024, eq. 5): alpha_1 BCE(score / 5, G2) + alpha_2 (cross-entropy of the
    pair's range from the first sentence + from the second) / 2 (eqs. 4 and 2; with two ranges it is binary).

    outputs_BK: the logit of the similarity, or a cosine; each sentence's logits of the R ranges; with contrastive
    similarity, both projections z. ratings_B: 0 to 5. ranges: the lowest score of each range after the first.

    With cosine the first term is its squared error. With contrastive it is the mean of -log v(z_i1, z_i2) / sum over j
    of v(z_i1, z_j2) over the pairs i of the uppermost range, v = exp(cos / temperature); the paper gives no formula.
    """
    count = len(ranges) + 1
    similarity_B, scores_B = outputs_BK[:, 0], (ratings_B / MOST).to(outputs_BK)
    first_BR, second_BR = outputs_BK[:, 1 : 1 + 2 * count].chunk(2, dim=1)
    range_B = torch.bucketize(ratings_B, torch.tensor(ranges).to(ratings_B), right=True)
    match similarity:
        case Similarity.LINEAR:
            score_loss = F.binary_cross_entropy_with_logits(similarity_B, scores_B)
        case Similarity.COSINE:
            score_loss = squared_error(similarity_B, scores_B)
        case Similarity.CONTRASTIVE:
            score_loss = _contrast(outputs_BK[:, 1 + 2 * count :], range_B == count - 1, temperature)
    range_loss = (F.cross_entropy(first_BR, range_B) + F.cross_entropy(second_BR, range_B)) / 2
    return similarity_weight * score_loss + range_weight * range_loss


def _contrast(z_BZ: Tensor, same_B: Tensor, temperature: float) -> Tensor:
    """InfoNCE of the pairs with the same meaning, against all second sentences; 0 if there are no such pairs."""
    if not same_B.any():
        return z_BZ.sum() * 0
    first_BD, second_BD = (F.normalize(part, dim=1) for part in z_BZ.chunk(2, dim=1))
    return info_nce(first_BD[same_B], [second_BD[same_B], second_BD[~same_B]], temperature)
