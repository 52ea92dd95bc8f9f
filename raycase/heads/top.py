"""What is trained above an encoder, a projector or the head of condition pooling: its shape, and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from annotated_types import Interval
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import nn

from raycase.errors import RequestError, first_line

Tensors = TypeVar("Tensors")
MOST_WIDTH = 2**16  # of a layer
MOST_NUMBER = 2**40  # of a bound: its products fit into float32


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


Width = Annotated[int, Interval(ge=1, le=MOST_WIDTH)]
Share = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class TopConfig:
    """What both have. nested: smaller dimensions that were trained too."""

    output_dim: Width = 512
    activation: Activation | None
    dropout: Share
    nested: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadConfig(TopConfig):
    """Shape of a trained head."""

    states_dim: Width
    heads: Width = 8
    head_dim: Width = 64
    activation: Activation | None = None
    dropout: Share = 0.3
    gate: bool = True
    temperature: float = 20.0  # tau_k at the start
    says: bool = False  # whether the head knows if a text says anything of a condition
    plain_dim: int | None = None  # of a layer's states, where the vectors have a share of the plain one
    plain_share: Share = 0.5
    plain_from: float = 1.4  # how unlike a sentence is where the share begins, 1 for a usual one
    plain_to: float = 2.0  # and where it is whole
    plain_vector_dim: int | None = None  # of f(s), if it is what is shared
    plain_alone_from: float = 3.2  # how unlike a sentence is where the share rises again
    plain_alone_to: float = 4.0  # and where the vector is the plain one alone


def read_tensors(kind: type[Tensors], data: bytes, source: str, expected: str) -> Tensors:
    """A dataclass of tensors from safetensors of its fields. Raises RequestError, which names the source."""
    try:
        return kind(**load(data))
    except (SafetensorError, TypeError) as error:
        raise RequestError(f"{source}: expected {expected} of stored tokens, got: {first_line(error)}") from error


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
