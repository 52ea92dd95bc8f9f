"""Giving a trained head its plain part: what it says of sentences unlike those it was trained on.

Shapes: S distinct sentences, W of the states, P of f(s).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raycase.systems.condition_head import ConditionHead
from raycase.systems.condition_pooling import ConditionPoolingConfig
from raycase.systems.plain_part import PlainPart
from raycase.training.condition_head_fit import head_vectors
from raycase.training.condition_pairs import ReadPairs
from raycase.training.condition_recipe import HeadRecipe


@torch.no_grad()
def with_plain_part(
    head: ConditionHead, train: ReadPairs, validation: ReadPairs, system: ConditionPoolingConfig, recipe: HeadRecipe
) -> ConditionHead:
    """The head with its plain part, in float16 as it is saved; itself where the share is 0."""
    if not recipe.plain_share:
        return head
    start, whole_share, again, alone = recipe.plain_rise
    config = replace(
        head.config,
        plain_dim=system.hidden_dim,
        plain_vector_dim=system.plain_dim,
        plain_share=recipe.plain_share,
        plain_from=start,
        plain_to=whole_share,
        plain_alone_from=again,
        plain_alone_to=alone,
    )
    whole = ConditionHead(config)
    whole.load_state_dict(head.state_dict(), strict=False)
    part = whole.plain
    assert part is not None
    vectors = torch.from_numpy(np.concatenate(head_vectors(head, train)))
    means_SW, plain_SP = _texts(part, train)
    part.fit(means_SW, plain_SP, _texts(part, validation)[0], vectors)
    return whole.half().float().eval()


def _texts(part: PlainPart, pairs: ReadPairs) -> tuple[Tensor, Tensor]:
    """m and f of each distinct sentence of the pairs: (S, W), (S, P)."""
    read = pairs.states(np.unique(pairs.sentence_index))
    means, plain = zip(*((part.means(s, real).cpu(), plain.cpu()) for _, s, real, plain in read), strict=True)
    return torch.cat(means), torch.cat(plain)
