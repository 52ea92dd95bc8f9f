"""Giving a trained head its plain part: what it says of sentences unlike those it was trained on.

Shapes: S distinct sentences, W of the states.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raycase.systems.condition_head import ConditionHead
from raycase.systems.plain_part import PlainPart
from raycase.training.condition_head_fit import head_vectors
from raycase.training.condition_pairs import ReadPairs


@torch.no_grad()
def with_plain_part(
    head: ConditionHead, train: ReadPairs, validation: ReadPairs, *, plain_dim: int, share: float
) -> ConditionHead:
    """The head with its plain part, in float16 as it is saved; itself where the share is 0.

    plain_dim: dimension of a layer's states.
    """
    if not share:
        return head
    whole = ConditionHead(replace(head.config, plain_dim=plain_dim, plain_share=share))
    whole.load_state_dict(head.state_dict(), strict=False)
    part = whole.plain
    assert part is not None
    vectors = torch.from_numpy(np.concatenate(head_vectors(head, train)))
    part.fit(_means(part, train), _means(part, validation), vectors)
    return whole.half().float().eval()


def _means(part: PlainPart, pairs: ReadPairs) -> Tensor:
    """m of each distinct sentence of the pairs: (S, W)."""
    return torch.cat([part.means(s, real).cpu() for _, s, real in pairs.states(np.unique(pairs.sentence_index))])
