"""What is trained above an encoder, a projector or the head of condition pooling: its shape, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from raycase.errors import RequestError

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

    @property
    def limits(self) -> dict[str, tuple[bool, str]]:
        """Of a field: whether there is such a shape, and what is expected."""
        widths = {name: (1 <= getattr(self, name) <= MOST_WIDTH, f"1 to {MOST_WIDTH:,}") for name in self.WIDTHS}
        below = all(0 < dim < self.output_dim for dim in self.nested)
        return widths | {
            "dropout": (0 <= self.dropout < 1, "a share in [0, 1)"),
            "nested": (below, f"dimensions below {self.output_dim}"),
        }

    def __post_init__(self) -> None:
        for name, (fits, expected) in self.limits.items():
            if not fits:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}")


MOST_NUMBER = 2**40  # of a temperature or a bound: its products fit into float32


@dataclass(frozen=True, kw_only=True)
class HeadConfig(TopConfig):
    """Shape of a trained head."""

    WIDTHS: ClassVar[tuple[str, ...]] = ("states_dim", "heads", "head_dim", "output_dim")

    states_dim: int
    heads: int = 8
    head_dim: int = 64
    activation: Activation = Activation.GELU
    dropout: float = 0.3
    gate: bool = True
    temperature: float = 20.0  # tau_k at the start
    plain_dim: int | None = None  # of a layer's states, where the vectors have a share of the plain one
    plain_share: float = 0.5
    plain_from: float = 1.4  # how unlike a sentence is where the share begins, 1 for a usual one
    plain_to: float = 2.0  # and where it is whole
    plain_vector_dim: int | None = None  # of f(s), if it is what is shared
    plain_alone_from: float = 3.2  # how unlike a sentence is where the share rises again
    plain_alone_to: float = 4.0  # and where the vector is the plain one alone

    @property
    def limits(self) -> dict[str, tuple[bool, str]]:
        plain_dim, beside = self.plain_dim, self.plain_vector_dim
        fits = plain_dim is None or (plain_dim > 0 and self.states_dim % plain_dim == 0)
        rises = {
            low: (0 <= getattr(self, low) < getattr(self, high) <= MOST_NUMBER, f"a number below {high}, at most 2^40")
            for low, high in (("plain_from", "plain_to"), ("plain_alone_from", "plain_alone_to"))
        }
        return super().limits | {
            "head_dim": (0 < self.heads * self.head_dim <= MOST_WIDTH, f"1 to {MOST_WIDTH:,} of all heads"),
            "temperature": (0 < self.temperature <= MOST_NUMBER, "a number above 0, at most 2^40"),
            "plain_share": (0 <= self.plain_share < 1, "a share in [0, 1)"),
            **rises,
            "plain_dim": (fits, f"a part of {self.states_dim}"),
            "plain_vector_dim": ((plain_dim is None) == (beside is None), "one beside plain_dim; train it again"),
        }


def load_weights(module: nn.Module, file: Path, expected: str, *, finite: bool = True) -> None:
    """Load all weights of a module. Raises RequestError, which says what was expected, for a file without them, and for
    numbers that are not real and, where that is asked for, finite."""
    try:
        module.load_state_dict(load_file(file))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise RequestError(f"{file}: expected {expected}, got: {reason}") from error
    if finite and not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
        raise RequestError(f"{file}: expected finite weights, got NaN or infinity")
