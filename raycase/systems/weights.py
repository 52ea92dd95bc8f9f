"""Weights of a module from a safetensors file, checked where they are read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from raycase.errors import RequestError


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
