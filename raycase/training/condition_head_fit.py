"""Fitting the head of condition pooling on rated pairs: with the encoder frozen, or trained too.

Shapes: N rated pairs, B pairs of a batch, S sentences and C conditions (distinct), W of the states, P of f(s),
D vectors, M dimensions: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.loading import load_encoder
from raycase.encoder.token_states import StateReader, layer_numbers
from raycase.heads.condition_head import ConditionHead, ConditionQueries, Head, KeysValues
from raycase.heads.plain_part import PlainPart
from raycase.io.rated import NOT_APPLICABLE
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.fine_tuned import training_options
from raycase.training.condition_pairs import PairIndex, PairStates, PairTokens, ReadPairs
from raycase.training.loop import (
    Batches,
    BatchLoss,
    Evaluation,
    FitState,
    Weights,
    fit,
    gather,
    restore,
    shard,
)
from raycase.training.losses import Loss, nested_correlations, nested_cosines, nested_loss, unit_ratings
from raycase.training.recipe import DISTILLED_WEIGHT, ENCODER_LEARNING_RATE, OF_WIDTH, HeadRecipe

PoolPairs = Callable[[KeysValues, ConditionQueries], Tensor]
EVALUATED_AT_ONCE = 1024  # pairs
DRAWN_ALONE = 512  # pairs of a batch where none are rated
MORE_CONDITIONS = 4  # further conditions of each pair of sentences of a batch


class HeadCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, at each of the nested dimensions and at the last.

    reader: of the encoder, where it is trained with the head.
    """

    def __init__(
        self, head: ConditionHead, reader: StateReader | None = None, compute: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.head = head
        self.dims = (*head.config.nested, head.output_dim)
        self.reader = reader
        self.compute = compute
        self.encoder = None if reader is None else reader.encoder.parts()

    def read(self, pairs: ReadPairs) -> ReadPairs:
        """The pairs with states."""
        return replace(pairs, reader=self.reader, compute=self.compute) if isinstance(pairs, PairTokens) else pairs

    def forward(self, pairs: ReadPairs, rows: np.ndarray) -> Tensor:
        """Cosines of these rated pairs: (B, M)."""
        if not len(rows):  # of a batch that is smaller than the number of processes
            weights = [p for p in self.parameters() if p.requires_grad]
            return self.head.tau.new_zeros(0, len(self.dims)) * sum(p.sum() for p in weights)
        first_BD, second_BD = head_pair_vectors(self.head, self.read(pairs), rows).chunk(2)
        return nested_cosines(first_BD, second_BD, self.dims)


def head_pair_vectors(head: Head, pairs: ReadPairs, rows: np.ndarray, pool: PoolPairs | None = None) -> Tensor:
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


@dataclass(frozen=True, kw_only=True)
class UnfrozenEncoder:
    """An encoder that is trained together with a head, and the head's weights at the start."""

    config: ConditionPoolingConfig
    head: Weights
    compute: torch.dtype  # of the encoder's matrix products

    def open(self) -> StateReader:
        """Load the encoder in 32 bits. Embeddings of tokens, and layers that the head does not read, stay frozen."""
        numbers = layer_numbers(self.config.encoder, self.config.layers)
        reader = StateReader(load_encoder(self.config.encoder, **training_options()), numbers)
        reader.encoder.model.get_input_embeddings().requires_grad_(False)
        for layer in reader.modules[max(reader.layers) :]:
            layer.requires_grad_(False)
        return reader

    def trained(self, state: FitState) -> StateReader:
        """The encoder with the weights of the best epoch."""
        reader = self.open()
        restore(reader.encoder.parts(), weights_of(state.best, "encoder."))
        return reader


def weights_of(weights: Weights, part: str) -> Weights:
    """The weights of the part with this prefix, by their names inside it."""
    return {name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)}


def fit_condition_head(
    train: ReadPairs,
    validation: ReadPairs,
    recipe: HeadRecipe,
    *,
    pseudo_labelled: PairIndex | None = None,
    unfrozen: UnfrozenEncoder | None = None,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fit the head; yields the state after each epoch. Pairs labelled -1 are not trained on.

    pseudo_labelled: further pairs of the training sentences, rated by teachers (`condition_teachers`). Without
    `unfrozen` the pairs have stored states, with it they are tokenised. `wrap` moves the module to its device and wraps
    it for several processes.
    """
    torch.manual_seed(seed)
    if unfrozen is None:
        assert isinstance(train, PairStates)
        head = ConditionHead(recipe.head(train.dim))
        if recipe.activation is None:
            head.start_from_states(train.dim // len(recipe.layers))
        module = HeadCosine(head)
    else:
        head = ConditionHead(recipe.head(unfrozen.config.states_dim))
        head.load_state_dict(unfrozen.head)
        module = HeadCosine(head, unfrozen.open(), unfrozen.compute)
    special: dict[str, Any] = {}
    if pseudo_labelled is not None or module.reader is not None:
        special["patience"] = recipe.epochs
    if module.reader is not None:
        width = module.reader.encoder.model.config.hidden_size
        special["rates"] = {"encoder.": ENCODER_LEARNING_RATE * OF_WIDTH / width}
    config = recipe.fit_config(seed, **special)
    module = wrap(module)
    rated = train.rated[train.ratings[train.rated] != NOT_APPLICABLE]
    batches = group_batches(train.groups, rated, recipe.batch_size, seed)
    if pseudo_labelled is not None:
        batches = with_pseudo_labelled(batches, train, len(pseudo_labelled.ratings), seed)
    if (train.epochs > 0).any():
        batches = with_drawn(batches, train.epochs)
    return fit(module, batches, _loss(train, recipe, pseudo_labelled), head_evaluation(validation), config, state=state)


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


def _loss(train: ReadPairs, recipe: HeadRecipe, pseudo_labelled: PairIndex | None) -> BatchLoss:
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
        cosines_BM = gather(module(pairs, shard(batch)), len(batch))
        targets_B, kinds_B = (part[batch].to(cosines_BM.device) for part in (targets, kinds))
        found = cosines_BM.new_zeros(())
        for kind, (loss, weight) in enumerate(losses):
            if (rows_B := kinds_B == kind).any():
                found = found + weight * nested_loss(cosines_BM[rows_B], targets_B[rows_B], loss)
        return found

    return of_batch


def head_evaluation(validation: ReadPairs) -> Evaluation:
    """The `head_correlations` of the module's head."""

    def evaluate(module: Any) -> dict[str, float]:
        return head_correlations(module.head, module.read(validation), module.dims[:-1])

    return evaluate


def head_correlations(head: Head, pairs: ReadPairs, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of the head's vectors of rated pairs."""
    vectors = np.concatenate(head_vectors(head, pairs))
    index = np.arange(len(vectors)).reshape(2, -1).T
    return nested_correlations(vectors, index, pairs.ratings, nested)


@torch.inference_mode()
def head_vectors(head: Head, pairs: ReadPairs) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second sentence of every pair: (N, D) each."""
    count = len(pairs.ratings)
    vectors = np.empty((2, count, head.output_dim), dtype=np.float32)
    for start in range(0, count, EVALUATED_AT_ONCE):
        rows = np.arange(start, min(count, start + EVALUATED_AT_ONCE))
        vectors[:, rows] = head_pair_vectors(head, pairs, rows).unflatten(0, (2, -1)).cpu().numpy()
    return vectors[0], vectors[1]


@torch.no_grad()
def with_plain_part(
    head: ConditionHead, train: ReadPairs, validation: ReadPairs, system: ConditionPoolingConfig, recipe: HeadRecipe
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


def _texts(part: PlainPart, pairs: ReadPairs) -> tuple[Tensor, Tensor]:
    """m and f of each distinct sentence of the pairs: (S, W), (S, P)."""
    read = pairs.states(np.unique(pairs.sentence_index))
    means, plain = zip(*((part.means(s, real).cpu(), plain.cpu()) for _, s, real, plain in read), strict=True)
    return torch.cat(means), torch.cat(plain)
