"""The state of a fit after an epoch: its bytes, and whether it is one of a fit that would go on from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import load, save
from torch import Tensor

from raycase.data.json_values import finite, loads

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of the loop. `select` names the metric of early stopping and of the best epoch (larger is better)."""

    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup: float | None = None  # share of the steps up to the peak learning rate, then down to 0; None: constant
    seed: int = 0
    select: str = "spearman"
    rates: Mapping[str, float] = field(default_factory=dict)  # peak rates other than `learning_rate`: prefix -> rate


@dataclass(kw_only=True)
class FitState:
    """The state of a fit after an epoch, from which `fit` resumes as if it had never stopped.

    Holds only trained weights, no frozen ones; of `fit` it is good until the next epoch begins.
    """

    weights: Weights
    best: Weights  # of the best epoch so far
    optimizer: dict[str, Any]
    history: list[dict[str, float]] = field(default_factory=list)  # a line per epoch
    best_epoch: int = 0  # 0: no figure that chooses the best is a number so far
    uri: str = "the state"  # where it was read

    @property
    def line(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return self.history[-1]

    def to_bytes(self, of: str = "") -> bytes:
        """One safetensors file, with history, options of the optimizer, the fit's name and a checksum in its header."""
        moments = {f"{i}.{name}": v for i, values in self.optimizer["state"].items() for name, v in values.items()}
        parts = {"weights": self.weights, "best": self.best, "optimizer": moments}
        tensors = {f"{part}/{name}": t.contiguous() for part, named in parts.items() for name, t in named.items()}
        values = {"history": self.history, "best_epoch": self.best_epoch, "groups": self.optimizer["param_groups"]}
        values["of"] = of
        return save(tensors, metadata={"fit": json.dumps(values | {"crc32": _checksum(tensors, values)})})

    @classmethod
    def from_bytes(cls, data: bytes, of: str = "", uri: str = "the state") -> FitState:
        """Read what `to_bytes` wrote. Raises ValueError for the state of another fit and for altered bytes."""
        header = loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        values = loads(header["__metadata__"]["fit"])
        parts: dict[str, Weights] = {"weights": {}, "best": {}, "optimizer": {}}
        tensors = load(data)
        if (checksum := values.pop("crc32", None)) is not None:  # versions up to 0.2.0 wrote none
            if checksum != _checksum(tensors, values):
                raise ValueError("bytes that were altered")
            if values["of"] != of:
                raise ValueError(f"that of another fit, {values['of']}")
        for key, tensor in tensors.items():
            part, name = key.split("/", 1)
            if part in parts:
                parts[part][name] = tensor
            else:  # earlier versions could average weights: not the state of a fit any more, as `misfit` says
                parts["weights"][key] = tensor
        moments: dict[int, Weights] = {}
        for key, tensor in parts.pop("optimizer").items():
            index, name = key.split(".", 1)
            moments.setdefault(int(index), {})[name] = tensor
        optimizer = {"state": moments, "param_groups": values["groups"]}
        return cls(**parts, optimizer=optimizer, history=values["history"], best_epoch=values["best_epoch"], uri=uri)

    def misfit(self, weights: Weights, trained: Sequence[Tensor], config: FitConfig) -> str | None:
        """What cannot be of a fit with these weights, and the trained among them in the optimizer's order; None:
        nothing. Checked before any use: the optimizer writes beyond numbers that lack.
        """
        moments = {
            i: {"step": torch.zeros(()), "exp_avg": trained[i], "exp_avg_sq": trained[i]} if i < len(trained) else {}
            for i in self.optimizer["state"]
        }
        parts = {"weights": (self.weights, weights), "best": (self.best, weights if self.best_epoch else {})}
        parts |= {f"optimizer/{i}": (self.optimizer["state"][i], wanted) for i, wanted in moments.items()}
        for part, (found, wanted) in parts.items():
            shapes, expected = ({n: (*t.shape, t.dtype) for n, t in of.items()} for of in (found, wanted))
            if differ := sorted(n for n in shapes | expected if shapes.get(n) != expected.get(n)):
                return f"another shape of {part}/{differ[0]}"
        if not moments:
            return "none of the optimizer"
        if max(not_finite(self.weights.values()), not_finite(self.best.values())) > not_finite(weights.values()):
            return "weights that are not finite"
        lines = self.history if isinstance(self.history, list) else []
        read = ("loss", "seconds", "mib", config.select)
        numbers = [isinstance(line, dict) and isinstance(line.get(n), (int, float)) for line in lines for n in read]
        if not (all(numbers) and [line.get("epoch") for line in lines] == [*range(1, len(lines) + 1)]):
            return "other lines of epochs"
        if not 0 < len(lines) <= config.epochs or self.best_epoch != best_epoch_of(lines, config.select):
            return f"epoch {self.best_epoch} as the best of {len(lines)}"
        return None


def _checksum(tensors: Weights, values: dict[str, Any]) -> int:
    """CRC-32 of a state's numbers: a safetensors file has none, and a fit would go on from any."""
    sum_of = crc32(json.dumps(values, sort_keys=True).encode())
    for name in sorted(tensors):
        flat = tensors[name].detach().cpu().reshape(-1).view(torch.uint8)
        sum_of = crc32(flat.numpy().data, crc32(name.encode(), sum_of))
    return sum_of


def best_epoch_of(history: Sequence[dict[str, float]], select: str = "spearman") -> int:
    """The first epoch with the highest value of `select`, counted from 1; 0 where no epoch has a finite one."""
    epochs = [i for i, line in enumerate(history) if finite(line[select]) is not None]
    return 1 + max(epochs, key=lambda i: history[i][select]) if epochs else 0


def not_finite(weights: Iterable[Tensor]) -> int:
    """How many numbers are NaN or infinite."""
    return sum(int(weight.detach().isfinite().logical_not().sum()) for weight in weights)
