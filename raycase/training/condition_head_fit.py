"""Fitting the head of condition pooling on rated pairs, above a frozen encoder.

Shapes: N rated pairs, B pairs of a batch, S sentences and C conditions (distinct), W of the states, P of f(s),
D vectors, M dimensions: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.heads.condition_head import ConditionHead, ConditionQueries, Head, KeysValues, PlainPart
from raycase.io.rated import NOT_APPLICABLE
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.training.condition_pairs import PairIndex, PairStates
from raycase.training.loop import Batches, BatchLoss, Evaluation, FitState, computed_rows, fit, gather
from raycase.training.losses import Loss, nested_correlations, nested_cosines, nested_loss, unit_ratings
from raycase.training.recipe import DISTILLED_WEIGHT, HeadRecipe

PoolPairs = Callable[[KeysValues, ConditionQueries], Tensor]
EVALUATED_AT_ONCE = 1024  # pairs
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

    Each distinct sentence and each distinct condition goes through its half of the head once.
    """
    device = head.temperatures.device
    sentences, sentence_2B = np.unique(pairs.sentence_index[rows].T.reshape(-1), return_inverse=True)
    conditions, condition_B = np.unique(pairs.condition_index[rows], return_inverse=True)
    questions = head.ask(pairs.means(conditions).to(device))
    condition_2B = np.tile(condition_B, 2)
    parts, order = [], []
    for members, *part in pairs.states(sentences):
        words = head.read(*(tensor.to(device) for tensor in part))
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_2B] >= 0)
        pair_questions = questions.take(torch.from_numpy(condition_2B[there])[:, None].to(device))
        pair_words = words.take(torch.from_numpy(place[sentence_2B[there]]).to(device))
        parts.append((pool or head.pool)(pair_words, pair_questions)[:, 0])
        order.append(there)
    return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


def fit_condition_head(
    train: PairStates,
    validation: PairStates,
    recipe: HeadRecipe,
    *,
    pseudo_labelled: PairIndex | None = None,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fit the head; yields the state after each epoch. Pairs labelled -1 are not trained on.

    pseudo_labelled: further pairs of the training sentences, rated by teachers (`condition_pairs`). `wrap` moves the
    module to its device and wraps it for several processes.
    """
    torch.manual_seed(seed)
    head = ConditionHead(recipe.head(train.dim))
    if recipe.activation is None:
        head.start_from_states(train.dim // len(recipe.layers))
    module = wrap(HeadCosine(head))
    settings = recipe.settings | ({} if pseudo_labelled is None else {"patience": recipe.epochs})
    rated = train.rated[train.ratings[train.rated] != NOT_APPLICABLE]
    batches = group_batches(train.groups, rated, recipe.batch_size, seed)
    if pseudo_labelled is not None:
        batches = with_pseudo_labelled(batches, train, len(pseudo_labelled.ratings), seed)
    if (train.epochs > 0).any():
        batches = with_drawn(batches, train.epochs)
    loss, evaluate = _loss(train, recipe, pseudo_labelled), head_evaluation(validation)
    return fit(module, batches, loss, evaluate, **settings, seed=seed, state=state)


def group_batches(groups_N: np.ndarray, rated: np.ndarray, batch_size: int, seed: int) -> Batches:
    """The rows `rated` once an epoch, in an order that seed and epoch determine.

    Pairs of the same two sentences stand together, so that their words go through the head once.
    """

    def batches(epoch: int) -> Iterator[np.ndarray]:
        key = np.random.default_rng([seed, epoch]).permutation(int(groups_N.max()) + 1)
        rows = rated[np.argsort(key[groups_N[rated]], kind="stable")]
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]

    return batches


def with_drawn(batches: Batches, epochs_N: np.ndarray) -> Batches:
    """The batches, each with a part of the rows that are drawn for the epoch; without batches, `DRAWN_ALONE` at a time.

    After the last epoch that has some, those of the first come again.
    """

    def both(epoch: int) -> Iterator[np.ndarray]:
        rows = np.flatnonzero(epochs_N == (epoch - 1) % int(epochs_N.max()) + 1)
        rated = list(batches(epoch)) or [rows[:0]] * -(-len(rows) // DRAWN_ALONE)
        for batch, part in zip(rated, np.array_split(rows, len(rated)), strict=True):
            yield np.concatenate([batch, part])

    return both


def with_pseudo_labelled(batches: Batches, train: PairIndex, pseudo_labelled: int, seed: int) -> Batches:
    """The batches, each with `MORE_CONDITIONS` pseudo-labelled rows of each of its pairs of sentences, whose words it
    reads anyway.

    pseudo_labelled: number of these rows, which follow the N others in the order of the groups of rated ones.
    """
    names, group_N = np.unique(train.groups[train.rated], return_inverse=True)  # rated rows stand first
    each = pseudo_labelled // len(names)

    def both(epoch: int) -> Iterator[np.ndarray]:
        for step, rows in enumerate(batches(epoch)):
            random = np.random.default_rng([seed, epoch, step])
            groups = np.unique(group_N[rows])
            orders = random.permuted(np.tile(np.arange(each), (len(groups), 1)), axis=1)
            yield np.concatenate(
                [rows, len(train.ratings) + (each * groups[:, None] + orders[:, :MORE_CONDITIONS]).reshape(-1)]
            )

    return both


def _loss(train: PairStates, recipe: HeadRecipe, pseudo_labelled: PairIndex | None) -> BatchLoss:
    """The recipe's loss of the rated rows of a batch, the mean over the nested dimensions and all; plus the squared
    errors of the rows drawn from labels, and of the pseudo-labelled ones to what the teachers say."""
    ratings = torch.tensor(train.ratings)
    drawn = torch.from_numpy(train.epochs != 0)
    targets, kinds = torch.where(drawn, ratings, unit_ratings(ratings)), drawn.int()
    pairs = train
    if pseudo_labelled is not None:
        pairs = train.then(pseudo_labelled)
        targets = torch.cat([targets, torch.tensor(pseudo_labelled.ratings)])
        kinds = torch.cat([kinds, torch.full((len(pseudo_labelled.ratings),), 2)])
    losses = ((recipe.loss, 1.0), (Loss.SQUARED, 1.0), (Loss.SQUARED, DISTILLED_WEIGHT))

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        cosines_BM = gather(module(pairs, rows_b)[:count], len(batch))
        targets_B, kinds_B = (part[batch].to(cosines_BM.device) for part in (targets, kinds))
        found = cosines_BM.new_zeros(())
        for kind, (loss, weight) in enumerate(losses):
            if (rows_B := kinds_B == kind).any():
                found = found + weight * nested_loss(cosines_BM[rows_B], targets_B[rows_B], loss)
        return found

    return of_batch


def head_evaluation(validation: PairStates) -> Evaluation:
    """The `head_correlations` of the module's head."""

    def evaluate(module: Any) -> dict[str, float]:
        return head_correlations(module.head, validation, module.dims[:-1])

    return evaluate


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
def with_plain_part(
    head: ConditionHead, train: PairStates, validation: PairStates, system: ConditionPoolingConfig, recipe: HeadRecipe
) -> ConditionHead:
    """The head with its plain part, for sentences unlike those that trained it, in float16 as it is saved; itself where
    the share is 0."""
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


def _texts(part: PlainPart, pairs: PairStates) -> tuple[Tensor, Tensor]:
    """m and f of each distinct sentence of the pairs: (S, W), (S, P)."""
    read = pairs.states(np.unique(pairs.sentence_index))
    means, plain = zip(*((part.means(s, real).cpu(), plain.cpu()) for _, s, real, plain in read), strict=True)
    return torch.cat(means), torch.cat(plain)
