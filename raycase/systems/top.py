"""Shape of what is trained above an encoder: a projector, or the head of condition pooling."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from torch import nn

MOST_WIDTH = 2**16  # of a layer


class Activation(StrEnum):
    """The non-linearities of Table 7."""

    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    LEAKY_RELU = "leaky_relu"


ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    Activation.RELU: nn.ReLU,
    Activation.GELU: nn.GELU,
    Activation.SILU: nn.SiLU,
    Activation.LEAKY_RELU: nn.LeakyReLU,
}


@dataclass(frozen=True, kw_only=True)
class TopConfig:
    """What both have. nested: smaller dimensions that were trained too. Raises ValueError for a shape that none has."""

    WIDTHS: ClassVar[tuple[str, ...]]  # fields

    output_dim: int = 512
    activation: Activation
    dropout: float
    nested: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in self.WIDTHS:
            if not 1 <= getattr(self, name) <= MOST_WIDTH:
                raise ValueError(f"{name}: expected 1 to {MOST_WIDTH:,}, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a share in [0, 1), got {self.dropout}")
        if not all(0 < dim < self.output_dim for dim in self.nested):
            raise ValueError(f"nested: expected dimensions below {self.output_dim}, got {self.nested}")
