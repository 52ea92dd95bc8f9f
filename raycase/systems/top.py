"""What is trained above an encoder, a projector or the head of condition pooling: its shape, and its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

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

    def __post_init__(self) -> None:
        for name in self.WIDTHS:
            if not 1 <= getattr(self, name) <= MOST_WIDTH:
                raise ValueError(f"{name}: expected 1 to {MOST_WIDTH:,}, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a share in [0, 1), got {self.dropout}")
        if not all(0 < dim < self.output_dim for dim in self.nested):
            raise ValueError(f"nested: expected dimensions below {self.output_dim}, got {self.nested}")


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads * self.head_dim > MOST_WIDTH:
            raise ValueError(
                f"head_dim: expected at most {MOST_WIDTH:,} of all heads, got {self.heads * self.head_dim}"
            )
        if not 0 < self.temperature <= MOST_NUMBER:
            raise ValueError(f"temperature: expected a number above 0, at most 2^40, got {self.temperature}")
        if not 0 <= self.plain_share < 1:
            raise ValueError(f"plain_share: expected a share in [0, 1), got {self.plain_share}")
        for low, high in (("plain_from", "plain_to"), ("plain_alone_from", "plain_alone_to")):
            first, last = getattr(self, low), getattr(self, high)
            if not 0 <= first < last <= MOST_NUMBER:
                raise ValueError(f"{low}: expected a number below {high}, at most 2^40, got {first} and {last}")
        if self.plain_dim is not None and (self.plain_dim < 1 or self.states_dim % self.plain_dim):
            raise ValueError(f"plain_dim: expected a part of {self.states_dim}, got {self.plain_dim}")
        if self.plain_vector_dim is not None and (
            self.plain_dim is None or not 1 <= self.plain_vector_dim <= MOST_WIDTH
        ):
            raise ValueError(
                f"plain_vector_dim: expected 1 to {MOST_WIDTH:,} beside plain_dim, got {self.plain_vector_dim}"
            )

    def as_described(self) -> dict[str, Any]:
        """The fields that determine vectors; those of later versions only where they do."""
        values = asdict(self)
        if self.plain_dim is None:
            return {name: value for name, value in values.items() if not name.startswith("plain_")}
        if self.plain_vector_dim is None:
            return {name: value for name, value in values.items() if not name.startswith(("plain_v", "plain_a"))}
        return values


def load_weights(module: nn.Module, file: Path, expected: str, *, finite: bool = True) -> None:
    """Load all weights of a module. Raises RequestError, which says what was expected, for a file without them, and for
    numbers that are not real and, where that is asked for, finite."""
    try:
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.is_complex():  # torch would leave out half of it
                raise ValueError(f"{name} of complex numbers")
        module.load_state_dict(tensors)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise RequestError(f"{file}: expected {expected}, got: {reason}") from error
    if finite and not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
        raise RequestError(f"{file}: expected finite weights, got NaN or infinity")
