"""Fitting the head of condition pooling on rated pairs: with the encoder frozen, or trained along.

Shapes: N rated pairs, B pairs of a batch, S sentences and C conditions (distinct), W of the states, D vectors,
M dimensions: the nested ones and all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.data.rated import NOT_APPLICABLE
from raycase.encoder.loading import load_encoder, whole_model
from raycase.encoder.token_states import StateReader, layer_numbers
from raycase.errors import check_ranges
from raycase.systems.condition_head import ConditionHead, Head, HeadConfig
from raycase.systems.condition_pooling import ConditionPoolingConfig
from raycase.systems.fine_tuned_module import training_options
from raycase.systems.projector import Activation
from raycase.training.condition_pairs import EncodedPairs, PairIndex, PairStates, PairTokens, ReadPairs
from raycase.training.loop import (
    Batches,
    BatchLoss,
    Evaluation,
    FitConfig,
    FitState,
    Weights,
    fit,
    gather,
    restore,
    shard,
)
from raycase.training.losses import Loss, RatingMap, map_ratings
from raycase.training.nested import nested_correlations, nested_cosines, nested_loss, nested_range

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    """Decay per step of a moving average of the weights, while the encoder is frozen; 0: no average."""
    unfreeze: bool = False
    """Then train the encoder along with the head, by the following flags."""
    unfrozen_epochs: int = 3
    """Number of epochs with the encoder."""
    unfrozen_batch_size: int = 64
    """Rated pairs per step with the encoder."""
    unfrozen_learning_rate: float = 2e-4
    """Peak learning rate of the head with the encoder."""
    encoder_learning_rate: float = 1e-4
    """Peak learning rate of the encoder."""

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
            "unfrozen_epochs": (self.unfrozen_epochs >= 1, above),
            "unfrozen_batch_size": (self.unfrozen_batch_size >= 1, above),
            "unfrozen_learning_rate": (0 < self.unfrozen_learning_rate < float("inf"), above),
            "encoder_learning_rate": (0 < self.encoder_learning_rate < float("inf"), above),
        }
        check_ranges(self, ranges)

    @property
    def unfrozen(self) -> HeadRecipe:
        """The recipe of the fit with the encoder."""
        return replace(
            self,
            epochs=self.unfrozen_epochs,
            patience=self.unfrozen_epochs,
            batch_size=self.unfrozen_batch_size,
            learning_rate=self.unfrozen_learning_rate,
            average=0.0,
        )

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


class HeadCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, at each of the nested dimensions and at the last.

    reader: of the encoder that is trained along, if any.
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

    def read(self, pairs: PairStates | PairTokens) -> ReadPairs:
        """The pairs with states."""
        if isinstance(pairs, PairStates):
            return pairs
        assert self.reader is not None
        return EncodedPairs(**vars(pairs), reader=self.reader, compute=self.compute)

    def forward(self, pairs: PairStates | PairTokens, rows: np.ndarray) -> Tensor:
        """Cosines of these rated pairs: (B, M)."""
        if not len(rows):  # of a batch that is smaller than the number of processes
            weights = [p for p in self.parameters() if p.requires_grad]
            return self.head.tau.new_zeros(0, len(self.dims)) * sum(p.sum() for p in weights)
        first_BD, second_BD = pair_vectors(self.head, self.read(pairs), rows).chunk(2)
        return nested_cosines(first_BD, second_BD, self.dims)


def pair_vectors(head: Head, pairs: ReadPairs, rows: np.ndarray) -> Tensor:
    """Vectors of the first sentences of these pairs, then of the second ones: (2 B, D).

    Each distinct sentence and each distinct condition goes through its half of the head once.
    """
    device = head.temperatures.device
    sentences, sentence_2B = np.unique(pairs.sentence_index[rows].T.reshape(-1), return_inverse=True)
    conditions, condition_B = np.unique(pairs.condition_index[rows], return_inverse=True)
    questions = head.ask(pairs.means(conditions).to(device))
    condition_2B = np.tile(condition_B, 2)
    parts, order = [], []
    for members, states_BTW, real_BT in pairs.states(sentences):
        words = head.read(states_BTW.to(device), real_BT.to(device))
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_2B] >= 0)
        asked = questions.take(torch.from_numpy(condition_2B[there])[:, None].to(device))
        parts.append(head.pool(words.take(torch.from_numpy(place[sentence_2B[there]]).to(device)), asked)[:, 0])
        order.append(there)
    return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order))).to(device)]


@dataclass(frozen=True, kw_only=True)
class Along:
    """The encoder that is trained along with a head, and the head's weights at the start."""

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

    def trained(self, state: FitState) -> PreTrainedModel:
        """The library's model with the weights of the best epoch."""
        reader = self.open()
        parts = reader.encoder.parts()
        own = {name: weights for name, weights in state.best.items() if name.startswith("encoder.")}
        restore(parts, {name.removeprefix("encoder."): weights for name, weights in own.items()})
        return whole_model(reader.encoder)


def fit_condition_head(
    train: PairStates | PairTokens,
    validation: PairStates | PairTokens,
    recipe: HeadRecipe,
    *,
    along: Along | None = None,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fit the head; yields the state after each epoch. Pairs labelled -1 are not trained on.

    Without `along` the pairs have stored states, with it they are tokenised. `wrap` moves the module to its device and
    wraps it for several processes.
    """
    torch.manual_seed(seed)
    if along is None:
        assert isinstance(train, PairStates)
        module = HeadCosine(ConditionHead(recipe.head(train.conditions.shape[1])))
    else:
        head = ConditionHead(recipe.head(along.config.states_dim))
        head.load_state_dict(along.head)
        module = HeadCosine(head, along.open(), along.compute)
    module = wrap(module)
    config = FitConfig(
        epochs=recipe.epochs,
        patience=recipe.patience,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        average=recipe.average,
        warmup=recipe.warmup,
        seed=seed,
        rates={"encoder.": recipe.encoder_learning_rate},
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


def _loss(train: PairIndex, recipe: HeadRecipe) -> BatchLoss:
    """The recipe's loss over a whole batch: the mean over the nested dimensions and all."""
    targets_N = map_ratings(torch.tensor(train.ratings), recipe.rating_map)

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        cosines_BM = gather(module(train, shard(batch)), len(batch))
        return nested_loss(cosines_BM, targets_N[batch].to(cosines_BM.device), recipe.loss)

    return of_batch


def evaluation(validation: PairStates | PairTokens) -> Evaluation:
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
        vectors[:, rows] = pair_vectors(head, pairs, rows).unflatten(0, (2, -1)).cpu().numpy()
    return vectors[0], vectors[1]
