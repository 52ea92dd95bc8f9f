"""Fitting what tells whether a text says anything of a condition, above a head that stays as it is.

Shapes: N texts, each with a condition; F features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.evaluation.metrics import auc
from raycase.heads.condition_head import ConditionHead, Says
from raycase.training.condition_head_fit import EVALUATED_AT_ONCE, head_pair_vectors
from raycase.training.condition_pairs import SAYS, PairStates

EPOCHS, LEAST_STEPS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 12, 300, 512, 1e-3, 0.1, 0.3
LEFT = 5  # one text in so many calibrates, and is not trained on
BINS = 10  # of the expected calibration error


def with_says(head: ConditionHead, train: PairStates, seed: int) -> tuple[ConditionHead, dict[str, float]]:
    """The head with `Says`, in float16 as it is saved, and its figures on texts left out; itself where no data tells.

    The log-odds of those texts are scaled and shifted to be calibrated (Platt, 1999, with his targets).
    """
    rows = np.flatnonzero(train.epochs == SAYS)
    if not len(rows):
        return head, {}
    torch.manual_seed(seed)
    whole = ConditionHead(replace(head.config, says=True))
    whole.load_state_dict(head.state_dict(), strict=False)
    assert whole.says is not None
    features_NF, said_N = says_features(whole.eval(), train, rows), torch.tensor(train.ratings[rows])
    left_N = torch.from_numpy(train.sentence_index[rows, 0] % LEFT == 0)
    _fit(whole.says, features_NF[~left_N], said_N[~left_N])
    _calibrate(whole.says, features_NF[left_N], said_N[left_N])
    whole = whole.half().float().eval()
    assert whole.says is not None
    with torch.inference_mode():
        probabilities = whole.says(features_NF[left_N]).sigmoid().numpy()
    said = said_N[left_N].numpy()
    error = calibration_error(probabilities, said)
    return whole, {"auc": 100 * auc(probabilities, said), "calibration_error": error, "texts": len(said)}


@torch.inference_mode()
def says_features(head: ConditionHead, pairs: PairStates, rows: np.ndarray) -> Tensor:
    """What `Says` sees of the first sentences of these pairs: (N, F)."""
    parts = np.array_split(rows, -(-len(rows) // EVALUATED_AT_ONCE))
    found = [head_pair_vectors(head, pairs, part, head.says_features).chunk(2)[0].cpu() for part in parts]
    return torch.cat(found)


def calibration_error(probabilities_N: np.ndarray, said_N: np.ndarray) -> float:
    """Expected calibration error x 100, over `BINS` bins of equal width (Guo et al., 2017, eq. 3)."""
    bins_N = np.minimum((probabilities_N * BINS).astype(int), BINS - 1)
    members = [bins_N == b for b in np.unique(bins_N)]
    return 100 * float(sum(m.mean() * abs(probabilities_N[m].mean() - said_N[m].mean()) for m in members))


def _fit(says: Says, features_NF: Tensor, said_N: Tensor) -> None:
    optimizer = torch.optim.AdamW(says.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(max(EPOCHS, LEAST_STEPS // -(-len(said_N) // BATCH_SIZE))):
        for rows in torch.randperm(len(said_N)).split(BATCH_SIZE):
            optimizer.zero_grad()
            log_odds = says(F.dropout(features_NF[rows], DROPOUT))
            F.binary_cross_entropy_with_logits(log_odds, said_N[rows]).backward()
            optimizer.step()


def _calibrate(says: Says, features_NF: Tensor, said_N: Tensor) -> None:
    with torch.no_grad():
        log_odds_N = says(features_NF)
    ones = said_N.sum()
    targets_N = torch.where(said_N == 1, (ones + 1) / (ones + 2), 1 / (len(said_N) - ones + 2))
    factor, offset = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([factor, offset], max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(factor * log_odds_N + offset, targets_N)
        loss.backward()
        return loss

    optimizer.step(closure)
    last: Any = says.net[-1]
    with torch.no_grad():
        last.weight.mul_(factor)
        last.bias.mul_(factor).add_(offset)
