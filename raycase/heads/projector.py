"""The projector g of eq. 1 (CASE, section 3.2): a small feed-forward network over the encoder's vectors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from raycase.heads.top import ACTIVATIONS, Activation, Share, TopConfig, Width, load_weights
from raycase.io.storage import locate

WEIGHTS = "projector.safetensors"


class DropoutAt(StrEnum):
    """Which ends of g have dropout; between two layers there always is."""

    OUTPUT = "output"  # eq. 4: Dropout(LeakyReLU(W e))
    INPUT = "input"
    BOTH = "both"


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig(TopConfig):
    """Shape of g. layers: 0 linear (eq. 3); 1 linear and activation (eq. 4); 2 a hidden layer of width `hidden` first
    (appendix B)."""

    input_dim: Width
    layers: Literal[0, 1, 2] = 1
    hidden: Width = 1024
    activation: Activation = Activation.LEAKY_RELU
    dropout: Share = 0.15
    dropout_at: DropoutAt = DropoutAt.INPUT
    bias: bool = True


def recorded_settings(settings: Any) -> dict[str, Any]:
    """The fields of a projector's configuration or recipe by name, without those that earlier versions had not, where
    they are as they were then: fingerprints stay."""
    before = {"nested": (), "dropout_at": DropoutAt.INPUT, "bias": True}
    return {name: value for name, value in asdict(settings).items() if name not in before or value != before[name]}


class Projector(nn.Sequential):
    """g: (N, input_dim) -> (N, output_dim), fp32."""

    def __init__(self, config: ProjectorConfig) -> None:
        activation = ACTIVATIONS[Activation(config.activation)]
        width, at = config.input_dim, DropoutAt(config.dropout_at)
        modules: list[nn.Module] = [nn.Dropout(config.dropout * (at is not DropoutAt.OUTPUT))]
        if config.layers == 2:
            modules += [nn.Linear(width, config.hidden, config.bias), activation(), nn.Dropout(config.dropout)]
            width = config.hidden
        modules.append(nn.Linear(width, config.output_dim, config.bias))
        if config.layers > 0:
            modules.append(activation())
        modules.append(nn.Dropout(config.dropout * (at is not DropoutAt.INPUT)))
        super().__init__(*modules)
        self.config = config


def save_projector(projector: Projector, folder: Path) -> dict[str, Any]:
    """Write `projector.safetensors`; returns the entry of g in `raycase.json`."""
    locate(str(folder / WEIGHTS)).put(save(projector.state_dict()))
    return recorded_settings(projector.config)


def load_projector(config: ProjectorConfig, folder: Path) -> Projector:
    """Read the projector of a model folder, in evaluation mode. Raises RequestError for weights that do not fit."""
    projector = Projector(config)
    load_weights(projector, folder / WEIGHTS, f"weights of {config}")
    return projector.eval()


@torch.inference_mode()
def project(module: nn.Module, vectors_PD: np.ndarray, rows: int = 8192) -> np.ndarray:
    """g of every vector, `rows` at a time: (P, D) -> (P, K) float32."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    parts = [np.array(vectors_PD[i : i + rows]) for i in range(0, len(vectors_PD), rows)]  # copies, which are writable
    return np.concatenate([module(torch.from_numpy(part).to(device)).cpu().numpy() for part in parts])
