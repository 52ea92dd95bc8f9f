"""The recipe of condition pooling's head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from raycase.errors import at_least
from raycase.systems.top import MOST_NUMBER, MOST_WIDTH, Activation, HeadConfig
from raycase.training.losses import Loss
from raycase.training.nested import nested_range
from raycase.training.recipe import SHARE, FitRecipe, Ranges

LEAST_DIM = 512  # by default
# Factor of the teachers' loss, and epochs of the fit with them; these and the next were measured
# (`results/condition_pooling.md`).
DISTILLED_WEIGHT, DISTILLED_EPOCHS = 4.0, 12
UNFROZEN_BATCH_SIZE, UNFROZEN_LEARNING_RATE = 64, 2e-4  # peak rate of the head
# Peak rate of an encoder of this width; wider ones take a lower one in proportion (Yang et al., 2022, table 3)
ENCODER_LEARNING_RATE, OF_WIDTH = 1e-4, 384


@dataclass(frozen=True, kw_only=True)
class FrozenHeadRecipe(FitRecipe):
    """Everything that determines one fit of the head, on a frozen encoder, besides the data and the seed."""

    layers: tuple[float, ...] = (2 / 3, 1.0)
    """Layers whose states the head reads, as fractions of the encoder's depth: 0 the input of the first, 1 the output
    of the last."""
    heads: int = 8
    """Number of attention distributions that are mixed."""
    head_dim: int = 64
    """Dimension of the queries and keys of each."""
    dim: int | None = None
    """Dimension of the vectors. Default: 512, or that of the encoder's states where it is larger, so that the plain
    vector has room."""
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
    """squared is the mean squared error; pearson one minus the correlation over the batch."""
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

    FORMER: ClassVar = FitRecipe.FORMER | {"rating_map": "unit"}


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(FrozenHeadRecipe):
    """Everything that determines the head, which takes several fits with teachers or with --unfreeze."""

    teachers: int = 0
    """Number of heads that are fitted first, with the following seeds. Besides the ratings the head then learns the
    mean of what they say of the same sentences under other conditions."""
    unfreeze: bool = False
    """After the fit on the frozen encoder, train encoder and head together."""
    unfrozen_epochs: int = 3
    """Number of epochs in which encoder and head are trained together."""
    plain_share: float = 0.5
    """Share of the plain vector in the vectors of sentences unlike the training data; 0: none."""
    plain_rise: tuple[float, float, float, float] = (1.4, 2.0, 3.2, 4.0)
    """Four distances of a sentence from the training data, 1 that of a usual sentence: the share begins at the first
    and is full from the second; it rises again from the third, and from the fourth there is only the plain vector."""

    FORMER: ClassVar = FrozenHeadRecipe.FORMER | {
        "distilled_weight": DISTILLED_WEIGHT,
        "distilled_epochs": DISTILLED_EPOCHS,
        "unfrozen_batch_size": UNFROZEN_BATCH_SIZE,
        "unfrozen_learning_rate": UNFROZEN_LEARNING_RATE,
        "encoder_learning_rate": ENCODER_LEARNING_RATE,
    }

    @property
    def expected(self) -> Ranges:
        """Whether each field is in its range, and what is expected."""
        return super().expected | {
            **at_least(1, self, "heads", "dim", most=MOST_WIDTH),
            **at_least(1, self, "head_dim", most=MOST_WIDTH // max(1, self.heads)),
            "dropout": (0 <= self.dropout < 1, SHARE),
            "temperature": (0 < self.temperature <= MOST_NUMBER, "a number above 0, at most 2^40"),
            "nested": nested_range(self.nested, self.dim or LEAST_DIM),
            "warmup": (0 <= self.warmup < 1, SHARE),
            "teachers": (self.teachers >= 0, "0 or more"),
            **at_least(1, self, "unfrozen_epochs"),
            "plain_share": (0 <= self.plain_share < 1, SHARE),
            "plain_rise": (_rises(self.plain_rise), "numbers from 0 to 2^40 of which each pair rises"),
        }

    @property
    def distilled(self) -> HeadRecipe:
        """The recipe of the fit with teachers."""
        return replace(self, epochs=DISTILLED_EPOCHS, patience=DISTILLED_EPOCHS)

    @property
    def unfrozen(self) -> HeadRecipe:
        """The recipe of the fit with the encoder."""
        return replace(
            self,
            epochs=self.unfrozen_epochs,
            patience=self.unfrozen_epochs,
            batch_size=UNFROZEN_BATCH_SIZE,
            learning_rate=UNFROZEN_LEARNING_RATE,
        )

    def head(self, states_dim: int) -> HeadConfig:
        """The shape of the head for states of this dimension."""
        return HeadConfig(
            states_dim=states_dim,
            heads=self.heads,
            head_dim=self.head_dim,
            output_dim=self.dim or max(LEAST_DIM, states_dim // len(self.layers)),
            activation=self.activation,
            dropout=self.dropout,
            gate=self.gate,
            temperature=self.temperature,
            nested=tuple(sorted(set(self.nested))),
        )


def _rises(bounds: tuple[float, float, float, float]) -> bool:
    """Whether these are two intervals."""
    first, second = bounds[:2], bounds[2:]
    return all(0 <= low < high <= MOST_NUMBER for low, high in (first, second))
