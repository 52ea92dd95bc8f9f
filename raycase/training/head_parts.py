"""The parts of condition pooling's head that are fitted when it is trained: its unconditional part, and whether a text
states anything of a condition.

Shapes: N texts with a condition each, S sentences, W of the states, P of f(s), F features of `StatedHead`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.evaluation.metrics import auc, calibration_error
from raycase.heads.condition_head import ConditionHead, StatedHead
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.training.head_pairs import EVALUATED_AT_ONCE, PairStates, head_pair_vectors, head_vectors


@torch.no_grad()
def with_unconditional_part(
    head: ConditionHead,
    train: PairStates,
    validation: PairStates,
    system: ConditionPoolingConfig,
    share: float,
    rise: tuple[float, float, float, float],
) -> ConditionHead:
    """The head with its unconditional part, for sentences unlike those that trained it, in float16 as it is saved;
    itself where the share is 0. rise: distances, as `--unconditional-rise` has them."""
    if not share:
        return head
    shape: Any = dict(
        zip(
            ("unconditional_from", "unconditional_to", "unconditional_alone_from", "unconditional_alone_to"),
            rise,
            strict=True,
        )
    )
    shape |= {
        "unconditional_dim": system.hidden_dim,
        "unconditional_vector_dim": system.unconditional_dim,
        "unconditional_share": share,
    }
    whole = ConditionHead(replace(head.config, **shape))
    whole.load_state_dict(head.state_dict(), strict=False)
    part = whole.unconditional
    assert part is not None

    def texts(pairs: PairStates) -> tuple[Tensor, Tensor]:
        """m and f of each distinct sentence of the pairs: (S, W), (S, P)."""
        read = pairs.states(np.unique(pairs.sentence_index))
        means, own = zip(*((part.means(s, real).cpu(), own.cpu()) for _, s, real, own in read), strict=True)
        return torch.cat(means), torch.cat(own)

    means_SW, unconditional_SP = texts(train)
    part.fit(
        means_SW, unconditional_SP, texts(validation)[0], torch.from_numpy(np.concatenate(head_vectors(head, train)))
    )
    return whole.half().float().eval()


# ------------------------------------------------------------------------------- whether a text states something

EPOCHS, LEAST_STEPS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 12, 300, 512, 1e-3, 0.1, 0.3
LEFT = 5  # one text in so many calibrates, and is not trained on


def with_stated(head: ConditionHead, texts: PairStates, seed: int) -> tuple[ConditionHead, dict[str, float]]:
    """The head with `StatedHead`, in float16 as it is saved, and its figures on texts left out; itself without texts.

    texts: each as both sentences of a pair, rated 1 if it states something of the condition, else 0.

    The log-odds of those texts are scaled and shifted to be calibrated (Platt, 1999, with his targets).
    """
    if not len(texts):
        return head, {}
    torch.manual_seed(seed)
    whole = ConditionHead(replace(head.config, stated=True))
    whole.load_state_dict(head.state_dict(), strict=False)
    stated = whole.stated
    assert stated is not None
    features_NF, stated_N = stated_features(whole.eval(), texts), torch.tensor(texts.ratings)
    left_N = torch.from_numpy(texts.sentence_index[:, 0] % LEFT == 0)
    _fit_stated(stated, features_NF[~left_N], stated_N[~left_N])
    _calibrate_stated(stated, features_NF[left_N], stated_N[left_N])
    whole.half().float()  # `stated` with it
    with torch.inference_mode():
        probabilities = stated(features_NF[left_N]).sigmoid().numpy()
    truth = stated_N[left_N].numpy()
    error = calibration_error(probabilities, truth)
    return whole, {"auc": 100 * auc(probabilities, truth), "calibration_error": error, "texts": len(truth)}


@torch.inference_mode()
def stated_features(head: ConditionHead, pairs: PairStates) -> Tensor:
    """What `StatedHead` sees of the first sentences of pairs: (N, F)."""
    parts = np.array_split(np.arange(len(pairs)), -(-len(pairs) // EVALUATED_AT_ONCE))
    found = [head_pair_vectors(head, pairs, part, head.stated_features).chunk(2)[0].cpu() for part in parts]
    return torch.cat(found)


def _fit_stated(head: StatedHead, features_NF: Tensor, stated_N: Tensor) -> None:
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(max(EPOCHS, LEAST_STEPS // -(-len(stated_N) // BATCH_SIZE))):
        for rows in torch.randperm(len(stated_N)).split(BATCH_SIZE):
            optimizer.zero_grad()
            log_odds = head(F.dropout(features_NF[rows], DROPOUT))
            F.binary_cross_entropy_with_logits(log_odds, stated_N[rows]).backward()
            optimizer.step()


def _calibrate_stated(head: StatedHead, features_NF: Tensor, stated_N: Tensor) -> None:
    with torch.no_grad():
        log_odds_N = head(features_NF)
    ones = stated_N.sum()
    targets_N = torch.where(stated_N == 1, (ones + 1) / (ones + 2), 1 / (len(stated_N) - ones + 2))
    factor, offset = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([factor, offset], max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(factor * log_odds_N + offset, targets_N)
        loss.backward()
        return loss

    optimizer.step(closure)
    last: Any = head.net[-1]
    with torch.no_grad():
        last.weight.mul_(factor)
        last.bias.mul_(factor).add_(offset)
