"""Layers that are trained above an encoder: how wide they may be, their non-linearities, and their weights in files."""

from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Interval
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from raycase.errors import RequestError, expecting
from raycase.io.storage import locate

MOST_WIDTH = 2**16  # of a layer
Width = Annotated[int, Interval(ge=1, le=MOST_WIDTH)]
Share = Annotated[float, Interval(ge=0, lt=1)]
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "leaky_relu": nn.LeakyReLU}


def save_weights(module: nn.Module, file: Path) -> None:
    """Write all weights of a module."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    locate(str(file)).put(save(weights))


def load_weights(module: nn.Module, file: Path, expected: str, *, finite: bool = True) -> None:
    """Load all weights of a module. Raises RequestError, with what was expected, for a file without them, and for
    numbers that are not real and, where that is asked for, finite."""
    errors = (OSError, RuntimeError, ValueError, SafetensorError)
    with expecting(f"{file}: expected {expected}", *errors, why=lambda e: str(e).strip().splitlines()[-1].strip()):
        module.load_state_dict(load_file(file))
    if finite and not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
        raise RequestError(f"{file}: expected finite weights, got NaN or infinity")
