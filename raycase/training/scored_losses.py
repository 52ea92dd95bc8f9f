"""Losses over a batch of scored pairs: STS, MixSP.

Shapes: B pairs, D dimensions, R ranges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.systems.mixsp import MOST, UPPER, Similarity
from raycase.training.losses import info_nce, squared_error


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
