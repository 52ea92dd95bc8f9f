"""The projector g of eq. 1 (CASE, section 3.2), a small feed-forward network over the encoder's vectors; and what all
that is trained above an encoder shares: bounds of widths, non-linearities, weights in files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from raycase.errors import RequestError, expecting
from raycase.io.storage import locate
from raycase.names import Activation, DropoutAt

WEIGHTS = "projector.safetensors"  # in a model folder
MOST_WIDTH = 2**16  # of a layer
Width = Annotated[int, Interval(ge=1, le=MOST_WIDTH)]
Share = Annotated[float, Interval(ge=0, lt=1)]
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "leaky_relu": nn.LeakyReLU}


def save_weights(module: nn.Module, file: Path) -> None:
    """Write all weights of a module."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    locate(str(file)).put(save(weights))


def load_weights(module: nn.Module, file: Path, expected: str, *, finite: bool = True) -> None:
    """Load all weights of a module, in messages called by what was `expected`; finite: each is a finite number."""
    errors = (OSError, RuntimeError, ValueError, SafetensorError)
    with expecting(f"{file}: expected {expected}", *errors, why=lambda e: str(e).strip().splitlines()[-1].strip()):
        module.load_state_dict(load_file(file))
    if finite and not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
        raise RequestError(f"{file}: expected finite weights, got NaN or infinity")


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """Shape of g. layers: 0 linear (eq. 3); 1 linear and activation (eq. 4); 2 a hidden layer of width `hidden` first
    (appendix B), with dropout behind it. nested: smaller dimensions that were trained too."""

    input_dim: Width
    output_dim: Width = 512
    layers: Literal[0, 1, 2] = 1
    hidden: Width = 1024
    activation: Activation = "leaky_relu"
    dropout: Share = 0.15
    dropout_at: DropoutAt = "input"
    bias: bool = True
    nested: tuple[int, ...] = ()


class Projector(nn.Sequential):
    """g: (N, input_dim) -> (N, output_dim), fp32."""

    def __init__(self, config: ProjectorConfig) -> None:
        activation, width = ACTIVATIONS[config.activation], config.input_dim
        modules: list[nn.Module] = [nn.Dropout(config.dropout * (config.dropout_at != "output"))]
        if config.layers == 2:
            modules += [nn.Linear(width, config.hidden, config.bias), activation(), nn.Dropout(config.dropout)]
            width = config.hidden
        modules.append(nn.Linear(width, config.output_dim, config.bias))
        if config.layers > 0:
            modules.append(activation())
        modules.append(nn.Dropout(config.dropout * (config.dropout_at != "input")))
        super().__init__(*modules)
        self.config = config


@torch.inference_mode()
def project(module: nn.Module, vectors_PD: np.ndarray) -> np.ndarray:
    """g of every vector, some at a time: (P, D) -> (P, K) float32."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    parts = torch.from_numpy(np.array(vectors_PD)).split(8192)  # of a copy, which is writable
    return np.concatenate([module(part.to(device)).cpu().numpy() for part in parts])
