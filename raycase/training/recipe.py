"""What the recipes of all systems share, and the recipes of fine-tuning and of condition pooling's head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from raycase.errors import at_least, check_ranges
from raycase.heads.condition_head import HeadConfig
from raycase.heads.layers import MOST_WIDTH, Activation
from raycase.training.losses import Loss, nested_range

Ranges = dict[str, tuple[bool, str]]  # as `check_ranges` takes them
SHARE = "a share in [0, 1)"

MOST_NUMBER = 2**40  # of a distance: its products fit into float32
LEAST_DIM = 512  # of condition pooling's vectors, by default
# Factor of the teachers' loss, and epochs of the fit with them (`results/condition_pooling.md`)
DISTILLED_WEIGHT, DISTILLED_EPOCHS = 4.0, 12


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """Everything that determines the weights besides the data, the system and the seed."""

    learning_rate: float
    batch_size: int
    epochs: int

    PATIENCE: ClassVar[int] = 0  # epochs without a better one, after which a fit stops
    WEIGHT_DECAY: ClassVar[float] = 0.0  # decoupled (AdamW)
    WARMUP: ClassVar[float | None] = None  # share of the steps up to the peak learning rate, then down to 0

    @property
    def record(self) -> dict[str, Any]:
        """The recipe by name, as fingerprints and `metrics.json` have it."""
        return asdict(self)

    @property
    def expected(self) -> Ranges:
        """Whether each field is in its range, and what is expected."""
        return {
            "learning_rate": (0 < self.learning_rate < float("inf"), "a number above 0"),
            **at_least(1, self, "batch_size", "epochs"),
        }

    def check(self) -> None:
        """Raise RequestError for a value out of its range."""
        check_ranges(self, self.expected)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the loop (`fit`)."""
        decay = {"weight_decay": self.WEIGHT_DECAY, "warmup": self.WARMUP}
        return {"epochs": self.epochs, "patience": self.PATIENCE, "learning_rate": self.learning_rate} | decay


@dataclass(frozen=True, kw_only=True)
class TuneRecipe(FitRecipe):
    """Everything that determines the weights of a fine-tuned encoder besides the data, the system, the loss and the
    seed."""

    learning_rate: float = 1e-4
    """Peak learning rate of AdamW."""
    batch_size: int = 32
    """Rated pairs per batch, over all workers."""
    dropout: float | None = None
    """Dropout of every layer of the encoder. Default: as in its configuration."""
    epochs: int = 3
    """Maximum number of epochs, over which the learning rate falls to 0."""

    PATIENCE: ClassVar[int] = 3
    WEIGHT_DECAY: ClassVar[float] = 0.1
    WARMUP: ClassVar[float | None] = 0.1

    @property
    def expected(self) -> Ranges:
        return super().expected | {"dropout": (self.dropout is None or 0 <= self.dropout < 1, SHARE)}


@dataclass(frozen=True, kw_only=True)
class RatedRecipe(TuneRecipe):
    """A `TuneRecipe` with a loss over ratings."""

    loss: Loss = Loss.SQUARED
    """squared is the papers' mean squared error; pearson one minus the correlation over the batch."""


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(FitRecipe):
    """Everything that determines condition pooling's head, which takes several fits with teachers, besides the data and
    the seed."""

    layers: tuple[float, ...] = (2 / 3, 1.0)
    """Layers that the head reads, as fractions of the encoder's depth: 0 input of the first, 1 output of the last."""
    heads: int = 8
    """Number of attention distributions that are mixed."""
    head_dim: int = 64
    """Dimension of the queries and keys of each."""
    dim: int | None = None
    """Dimension of the vectors. Default: 512, or that of the encoder's states if larger."""
    activation: Activation | None = None
    """Non-linearity of the words' values. Default: none; they then start as the states of the last layer."""
    dropout: float = 0.3
    """Dropout on the states of words and conditions."""
    gate: bool = True
    """Whether the condition gates the dimensions of the vector."""
    nested: tuple[int, ...] = ()
    """Also train the first N dimensions, for each N given, so that vectors can be cut to them."""
    loss: Loss = Loss.SQUARED
    """squared is the mean squared error; pearson one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    batch_size: int = 256
    """Rated pairs per step, over all workers."""
    epochs: int = 5
    """Number of epochs, over which the learning rate falls to 0."""
    teachers: int = 0
    """Number of heads to fit first, with the next seeds. The final head also learns their mean scores for the same
    sentences under other conditions."""
    plain_share: float = 0.5
    """Share of the unconditional vector in the vectors of sentences unlike the training data; 0: none."""
    plain_rise: tuple[float, float, float, float] = (1.4, 2.0, 3.2, 4.0)
    """Four distances of a sentence from the training data, in units of a typical sentence's. The share starts at the
    first, is full at the second, rises again from the third, and is all from the fourth."""

    PATIENCE: ClassVar[int] = 5
    WEIGHT_DECAY: ClassVar[float] = 0.01
    WARMUP: ClassVar[float | None] = 0.1

    @property
    def expected(self) -> Ranges:
        a, b, c, d = self.plain_rise
        return super().expected | {
            **at_least(1, self, "heads", "dim", most=MOST_WIDTH),
            **at_least(1, self, "head_dim", most=MOST_WIDTH // max(1, self.heads)),
            "dropout": (0 <= self.dropout < 1, SHARE),
            "nested": nested_range(self.nested, self.dim or LEAST_DIM),
            **at_least(0, self, "teachers"),
            "plain_share": (0 <= self.plain_share < 1, SHARE),
            "plain_rise": (0 <= a < b <= MOST_NUMBER and 0 <= c < d <= MOST_NUMBER, "two pairs that rise"),
        }

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
            nested=tuple(sorted(set(self.nested))),
        )
