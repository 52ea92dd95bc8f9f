"""Fitting the head of condition pooling on rated pairs, above a frozen encoder; then its unconditional part, and
whether a text states anything of a condition.

Shapes: N rated pairs, or texts with a condition each, B pairs of a batch, S sentences and C conditions (distinct),
W of the states, P of f(s), D vectors, M dimensions: the nested ones and all, F features of `StatedHead`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.evaluation.metrics import auc, calibration_error
from raycase.heads.condition_head import ConditionHead, ConditionQueries, Head, KeysValues, StatedHead
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.pairs import distinct
from raycase.names import Loss
from raycase.training.condition_pairs import OF_STATED, PairIndex, PairStates
from raycase.training.loop import BatchLoss, computed_rows, gather
from raycase.training.losses import nested_correlations, nested_cosines, nested_loss, unit_ratings

PoolPairs = Callable[[KeysValues, ConditionQueries], Tensor]
EVALUATED_AT_ONCE = 1024  # pairs
DISTILLED_WEIGHT = 4.0  # of the teachers' loss (`results/condition_pooling.md`)
DRAWN_ALONE = 512  # pairs of a batch where none are rated
MORE_CONDITIONS = 4  # further conditions of each pair of sentences of a batch


class HeadCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, at each of the nested dimensions and at the last."""

    def __init__(self, head: ConditionHead) -> None:
        super().__init__()
        self.head = head
        self.dims = (*head.config.nested, head.output_dim)

    def forward(self, pairs: PairStates, rows: np.ndarray) -> Tensor:
        """Cosines of these rated pairs: (B, M)."""
        first_BD, second_BD = head_pair_vectors(self.head, pairs, rows).chunk(2)
        return nested_cosines(first_BD, second_BD, self.dims)


def head_pair_vectors(head: Head, pairs: PairStates, rows: np.ndarray, pool: PoolPairs | None = None) -> Tensor:
    """Vectors of the first sentences of these pairs, then of the second ones: (2 B, D); or what `pool` makes of them.

    Each distinct sentence, each distinct condition and each distinct pair of these goes through its part of the head
    once: pairs drawn from labels are all pairs of a few texts, whose keys and values would be copied for each.
    """
    device = head.temperatures.device
    sentences, sentence_2B = np.unique(pairs.sentence_index[rows].T.reshape(-1), return_inverse=True)
    conditions, condition_B = np.unique(pairs.condition_index[rows], return_inverse=True)
    questions = head.ask(torch.from_numpy(pairs.conditions[conditions]).to(device))
    under_U, under_2B = distinct(sentence_2B * len(conditions) + np.tile(condition_B, 2))
    sentence_U, condition_U = np.divmod(under_U, len(conditions))
    parts, order = [], []
    for members, *part in pairs.states(sentences):
        words = head.read(*(tensor.to(device) for tensor in part))
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_U] >= 0)
        pair_questions = questions.take(torch.from_numpy(condition_U[there])[:, None].to(device))
        pair_words = words.take(torch.from_numpy(place[sentence_U[there]]).to(device))
        parts.append((pool or head.pool)(pair_words, pair_questions)[:, 0])
        order.append(there)
    return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order))[under_2B]).to(device)]


def head_batches(
    train: PairIndex, rated: np.ndarray, batch_size: int, seed: int, pseudo_labelled: int, epoch: int
) -> list[np.ndarray]:
    """The rows `rated` once, in an order that seed and epoch determine.

    Pairs of the same two sentences stand together, so that their words go through the head once. pseudo_labelled:
    number of these rows, which follow all others in the order of the groups of rated ones; each batch has
    `MORE_CONDITIONS` of them for each of its pairs of sentences, whose words it reads anyway. Each batch also has a
    part of the rows that are drawn for the epoch; without rated pairs, batches have `DRAWN_ALONE` of these. After the
    last epoch that has some, those of the first come again.
    """
    names, group_R = np.unique(train.groups[train.rated], return_inverse=True)  # rated rows stand first
    each = pseudo_labelled // max(1, len(names))
    last = int(train.epochs.max(initial=0))

    def further(step: int, rows: np.ndarray) -> np.ndarray:
        random = np.random.default_rng([seed, epoch, step])
        groups = np.unique(group_R[rows])
        orders = random.permuted(np.tile(np.arange(each), (len(groups), 1)), axis=1)
        return len(train.ratings) + (each * groups[:, None] + orders[:, :MORE_CONDITIONS]).reshape(-1)

    key = np.random.default_rng([seed, epoch]).permutation(int(train.groups.max()) + 1)
    rows = rated[np.argsort(key[train.groups[rated]], kind="stable")]
    parts = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    if pseudo_labelled:
        parts = [np.concatenate([part, further(step, part)]) for step, part in enumerate(parts)]
    if last > 0:
        drawn = np.flatnonzero(train.epochs == (epoch - 1) % last + 1)
        parts = parts or [rows] * -(-len(drawn) // DRAWN_ALONE)
        shares = np.array_split(drawn, len(parts))
        parts = [np.concatenate(both) for both in zip(parts, shares, strict=True)]
    return parts


def head_loss(train: PairStates, loss: Loss, pseudo_labelled: PairIndex | None = None) -> BatchLoss:
    """The loss of the rated rows of a batch, the mean over the nested dimensions and all; plus the squared
    errors of the rows drawn from labels, and of the pseudo-labelled ones to what the teachers say."""
    ratings = torch.tensor(train.ratings)
    drawn = torch.from_numpy(train.epochs != 0)
    targets, kinds = torch.where(drawn, ratings, unit_ratings(ratings)), drawn.int()
    pairs = train
    if pseudo_labelled is not None:
        pairs = train.then(pseudo_labelled)
        targets = torch.cat([targets, torch.tensor(pseudo_labelled.ratings)])
        kinds = torch.cat([kinds, torch.full((len(pseudo_labelled.ratings),), 2)])
    losses = ((loss, 1.0), (Loss.SQUARED, 1.0), (Loss.SQUARED, DISTILLED_WEIGHT))

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        cosines_BM = gather(module(pairs, rows_b)[:count], len(batch))
        targets_B, kinds_B = (part[batch].to(cosines_BM.device) for part in (targets, kinds))
        found = cosines_BM.new_zeros(())
        for kind, (of_kind, weight) in enumerate(losses):
            if (rows_B := kinds_B == kind).any():
                found = found + weight * nested_loss(cosines_BM[rows_B], targets_B[rows_B], of_kind)
        return found

    return of_batch


def head_correlations(head: Head, pairs: PairStates, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of the head's vectors of rated pairs."""
    vectors = np.concatenate(head_vectors(head, pairs))
    index = np.arange(len(vectors)).reshape(2, -1).T
    return nested_correlations(vectors, index, pairs.ratings, nested)


@torch.inference_mode()
def head_vectors(head: Head, pairs: PairStates) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second sentence of every pair: (N, D) each."""
    count = len(pairs.ratings)
    vectors = np.empty((2, count, head.output_dim), dtype=np.float32)
    for start in range(0, count, EVALUATED_AT_ONCE):
        rows = np.arange(start, min(count, start + EVALUATED_AT_ONCE))
        vectors[:, rows] = head_pair_vectors(head, pairs, rows).unflatten(0, (2, -1)).cpu().numpy()
    return vectors[0], vectors[1]


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


def with_stated(head: ConditionHead, train: PairStates, seed: int) -> tuple[ConditionHead, dict[str, float]]:
    """The head with `StatedHead`, in float16 as it is saved, and its figures on texts left out; itself without them.

    The log-odds of those texts are scaled and shifted to be calibrated (Platt, 1999, with his targets).
    """
    rows = np.flatnonzero(train.epochs == OF_STATED)
    if not len(rows):
        return head, {}
    torch.manual_seed(seed)
    whole = ConditionHead(replace(head.config, stated=True))
    whole.load_state_dict(head.state_dict(), strict=False)
    stated = whole.stated
    assert stated is not None
    features_NF, stated_N = stated_features(whole.eval(), train, rows), torch.tensor(train.ratings[rows])
    left_N = torch.from_numpy(train.sentence_index[rows, 0] % LEFT == 0)
    _fit_stated(stated, features_NF[~left_N], stated_N[~left_N])
    _calibrate_stated(stated, features_NF[left_N], stated_N[left_N])
    whole.half().float()  # `stated` with it
    with torch.inference_mode():
        probabilities = stated(features_NF[left_N]).sigmoid().numpy()
    truth = stated_N[left_N].numpy()
    error = calibration_error(probabilities, truth)
    return whole, {"auc": 100 * auc(probabilities, truth), "calibration_error": error, "texts": len(truth)}


@torch.inference_mode()
def stated_features(head: ConditionHead, pairs: PairStates, rows: np.ndarray) -> Tensor:
    """What `StatedHead` sees of the first sentences of these pairs: (N, F)."""
    parts = np.array_split(rows, -(-len(rows) // EVALUATED_AT_ONCE))
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
