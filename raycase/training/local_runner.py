"""Training in one process, without Ray. The fits equal those on Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raycase.corpus.one_process import execute_here
from raycase.corpus.vector_cache import VectorCache
from raycase.data.storage import Location
from raycase.errors import RequestError
from raycase.training.checkpoint import Checkpoint, Fitting, resumed, show
from raycase.training.loop import FitState

CACHE = VectorCache(lambda *_: execute_here)


@dataclass(frozen=True)
class LocalRunner:
    """`raycase.training.runner.Runner` in this process."""

    device: str
    vectors_of = staticmethod(CACHE.vectors_of)
    states_of = staticmethod(CACHE.states_of)
    scores_of = staticmethod(CACHE.scores_of)

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device."""
        return module.to(self.device)

    def fit(
        self, fitting: Fitting, train: Any, validation: Any, recipe: Any, *, seed: int, checkpoints: Location
    ) -> FitState:
        """`Runner.fit`; prints a line for each epoch."""
        checkpoint = Checkpoint(checkpoints)
        for state in resumed(fitting, train, validation, recipe, seed=seed, checkpoint=checkpoint, wrap=self.wrap):
            show(state.line)
        last = checkpoint.read()
        assert last is not None
        return last


def open_local_runner(*, workers: int, gpus_per_worker: float | None, cache: Location) -> LocalRunner:
    """A runner of one process. Raises RequestError for several workers."""
    if workers != 1:
        raise RequestError(f"--workers: expected 1 in a single process, got {workers}; train on Ray instead")
    gpus = float(torch.cuda.is_available()) if gpus_per_worker is None else gpus_per_worker
    return LocalRunner("cuda" if gpus else "cpu")
