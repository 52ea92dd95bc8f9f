"""Fitting the head of condition pooling on rated pairs, with the encoder frozen: only the stored states are needed.

Shapes: N rated pairs, B pairs of a batch, S sentences and C conditions (distinct), W of the states, D vectors,
M dimensions: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.data.rated import NOT_APPLICABLE
from raycase.data.stored_states import StoredStates
from raycase.encoder.packing import token_budget_batches
from raycase.errors import check_ranges
from raycase.systems.condition_head import ConditionHead, Head, HeadConfig
from raycase.systems.projector import Activation
from raycase.training.loop import Batches, BatchLoss, Evaluation, FitConfig, FitState, fit, gather, shard
from raycase.training.losses import Loss, RatingMap, map_ratings
from raycase.training.nested import nested_correlations, nested_cosines, nested_loss, nested_range

TOKENS_AT_ONCE = 4096  # tokens, padding included, that go through the head together
EVALUATED_AT_ONCE = 1024  # pairs


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """Everything that determines the head besides the data and the seed."""

    layers: tuple[float, ...] = (2 / 3, 1.0)
    """Layers whose states the head reads, as fractions of the encoder's depth: 0 the input of the first, 1 the output
    of the last."""
    heads: int = 8
    """Number of attention distributions that are mixed."""
    head_dim: int = 64
    """Dimension of the queries and keys of each."""
    dim: int = 512
    """Dimension of the vectors."""
    activation: Activation = Activation.GELU
    """Non-linearity of the words' values."""
    dropout: float = 0.3
    """Dropout on the states of words and conditions."""
    gate: bool = True
    """Whether the condition gates the dimensions of the vector."""
    temperature: float = 20.0
    """Factor of the cosines in the softmax, at the start; it is learned."""
    nested: tuple[int, ...] = ()
    """Train the first so many dimensions too, so that vectors can be cut to them (Kusupati et al., 2022)."""
    loss: Loss = Loss.SQUARED
    """squared is the mean squared error; fitted, pearson, cosent as for the projector."""
    rating_map: RatingMap = RatingMap.UNIT
    """Target of the cosine for a rating r: unit (r - 1)/4, signed (r - 3)/2, fifth r/5."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Decoupled weight decay (AdamW)."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises to its peak; it then falls linearly to 0."""
    batch_size: int = 256
    """Rated pairs per step, over all workers."""
    epochs: int = 5
    """Number of epochs, over which the learning rate falls to 0."""
    patience: int = 5
    """Stop after this many epochs without a better one."""
    average: float = 0.0
    """Decay per step of a moving average of the weights; 0: no average."""

    @property
    def recipe(self) -> HeadRecipe:
        """The recipe among the flags of a job."""
        return HeadRecipe(**{f.name: getattr(self, f.name) for f in fields(HeadRecipe)})

    def check(self) -> None:
        """Raise RequestError for a value out of its range."""
        above, share = "a number above 0", "a share in [0, 1)"
        ranges = {
            "heads": (self.heads >= 1, above),
            "head_dim": (self.head_dim >= 1, above),
            "dim": (self.dim >= 1, above),
            "dropout": (0 <= self.dropout < 1, share),
            "temperature": (0 < self.temperature < float("inf"), above),
            "nested": nested_range(self.nested, self.dim),
            "learning_rate": (0 < self.learning_rate < float("inf"), above),
            "weight_decay": (0 <= self.weight_decay < float("inf"), "a number of at least 0"),
            "warmup": (0 <= self.warmup < 1, share),
            "batch_size": (self.batch_size >= 1, above),
            "epochs": (self.epochs >= 1, above),
            "patience": (self.patience >= 1, above),
            "average": (0 <= self.average < 1, "a decay in [0, 1)"),
        }
        check_ranges(self, ranges)

    def head(self, states_dim: int) -> HeadConfig:
        """The shape of the head for states of this dimension."""
        return HeadConfig(
            states_dim=states_dim,
            heads=self.heads,
            head_dim=self.head_dim,
            output_dim=self.dim,
            activation=self.activation,
            dropout=self.dropout,
            gate=self.gate,
            temperature=self.temperature,
            nested=tuple(sorted(set(self.nested))),
        )


@dataclass(frozen=True, kw_only=True)
class PairStates:
    """Rated pairs with the states of their sentences and conditions. The arrays may be read-only."""

    sentences: StoredStates  # S distinct ones
    conditions: np.ndarray  # (C, W) float32, mean states
    sentence_index: np.ndarray  # (N, 2)
    condition_index: np.ndarray  # (N,)
    groups: np.ndarray  # (N,) equal for pairs of the same two sentences, which share a batch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply


class HeadCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, at each of the nested dimensions and at the last."""

    def __init__(self, head: ConditionHead) -> None:
        super().__init__()
        self.head = head
        self.dims = (*head.config.nested, head.output_dim)

    def forward(self, pairs: PairStates, rows: np.ndarray) -> Tensor:
        """Cosines of these rated pairs: (B, M)."""
        if not len(rows):  # of a batch that is smaller than the number of processes
            return self.head.tau.new_zeros(0, len(self.dims)) * sum(p.sum() for p in self.parameters())
        first_BD, second_BD = pair_vectors(self.head, pairs, rows).chunk(2)
        return nested_cosines(first_BD, second_BD, self.dims)


def pair_vectors(head: Head, pairs: PairStates, rows: np.ndarray) -> Tensor:
    """Vectors of the first sentences of these pairs, then of the second ones: (2 B, D).

    Each distinct sentence and each distinct condition goes through its half of the head once.
    """
    device = head.temperatures.device
    sentences, sentence_2B = np.unique(pairs.sentence_index[rows].T.reshape(-1), return_inverse=True)
    conditions, condition_B = np.unique(pairs.condition_index[rows], return_inverse=True)
    questions = head.ask(torch.from_numpy(pairs.conditions[conditions]).to(device))
    condition_2B = np.tile(condition_B, 2)
    parts, order = [], []
    for members in token_budget_batches(pairs.sentences.counts[sentences], TOKENS_AT_ONCE):
        states_BSW, real_BS = pairs.sentences.padded(sentences[members])
        words = head.read(torch.from_numpy(states_BSW).to(device), torch.from_numpy(real_BS).to(device))
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_2B] >= 0)
        asked = questions.take(torch.from_numpy(condition_2B[there])[:, None].to(device))
        parts.append(head.pool(words.take(torch.from_numpy(place[sentence_2B[there]]).to(device)), asked)[:, 0])
        order.append(there)
    return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


def fit_condition_head(
    train: PairStates,
    validation: PairStates,
    recipe: HeadRecipe,
    *,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fit the head; yields the state after each epoch. Pairs labelled -1 are not trained on.

    `wrap` moves the module to its device and wraps it for several processes.
    """
    torch.manual_seed(seed)
    module = wrap(HeadCosine(ConditionHead(recipe.head(train.conditions.shape[1]))))
    config = FitConfig(
        epochs=recipe.epochs,
        patience=recipe.patience,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        average=recipe.average,
        warmup=recipe.warmup,
        seed=seed,
    )
    rated = np.flatnonzero(train.ratings != NOT_APPLICABLE)
    batches = group_batches(train.groups, rated, recipe.batch_size, seed)
    return fit(module, batches, _loss(train, recipe), evaluation(validation), config, state=state)


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


def _loss(train: PairStates, recipe: HeadRecipe) -> BatchLoss:
    """The recipe's loss over a whole batch: the mean over the nested dimensions and all."""
    targets_N = map_ratings(torch.tensor(train.ratings), recipe.rating_map)

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        cosines_BM = gather(module(train, shard(batch)), len(batch))
        return nested_loss(cosines_BM, targets_N[batch].to(cosines_BM.device), recipe.loss)

    return of_batch


def evaluation(validation: PairStates) -> Evaluation:
    """The `head_correlations` of the module's head."""

    def evaluate(module: Any) -> dict[str, float]:
        return head_correlations(module.head, validation, module.dims[:-1])

    return evaluate


def head_correlations(head: Head, validation: PairStates, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of the head's vectors."""
    vectors = np.concatenate(head_vectors(head, validation))
    index = np.arange(len(vectors)).reshape(2, -1).T
    return nested_correlations(vectors, index, validation.ratings, nested)


@torch.inference_mode()
def head_vectors(head: Head, pairs: PairStates) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second sentence of every pair: (N, D) each."""
    count = len(pairs.ratings)
    vectors = np.empty((2, count, head.output_dim), dtype=np.float32)
    for start in range(0, count, EVALUATED_AT_ONCE):
        rows = np.arange(start, min(count, start + EVALUATED_AT_ONCE))
        vectors[:, rows] = pair_vectors(head, pairs, rows).unflatten(0, (2, -1)).cpu().numpy()
    return vectors[0], vectors[1]
