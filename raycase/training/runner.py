"""A runner embeds texts and runs fits: in this process, or on Ray (`raycase.distributed.train`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from raycase.corpus.one_process import execute_here
from raycase.corpus.vector_cache import VectorCache
from raycase.data.storage import Location
from raycase.training.loop import FitState, show

CACHE = VectorCache(lambda *_: execute_here)
STATE = "state.safetensors"  # of a fit that may resume

Fitting = Callable[..., Iterator[FitState]]  # (train, validation, recipe, *, seed, state, wrap), as `fit_projector`


@dataclass(frozen=True)
class LocalRunner:
    """Embeds texts and runs fits in this process; `VectorCache` says what it embeds. The fits equal those on Ray."""

    device: str
    vectors_of = staticmethod(CACHE.vectors_of)
    states_of = staticmethod(CACHE.states_of)
    scores_of = staticmethod(CACHE.scores_of)

    @property
    def on_gpu(self) -> bool:
        """Whether fits run on GPUs."""
        return self.device == "cuda"

    def fit(
        self,
        fitting: Fitting,
        train: Any,
        validation: Any,
        recipe: Any,
        *,
        seed: int,
        checkpoints: Location,
        resume: bool = False,
    ) -> FitState:
        """Run a fit, print a line for each epoch, and return the last state. Raises WorkError.

        resume: write a checkpoint into `checkpoints` after each epoch, and go on from the one that is there.
        """
        file = checkpoints / STATE
        state = FitState.from_bytes(file.read()) if resume and file.exists() else None
        wrap = partial(nn.Module.to, device=self.device)
        for state in fitting(train, validation, recipe, seed=seed, state=state, wrap=wrap):  # noqa: B020
            show(state.line)
            if resume:
                file.put(state.to_bytes())
        assert state is not None
        return state


Runner = LocalRunner  # or that on Ray, which is derived from it
OpenRunner = Callable[..., Runner]  # called after all checks, since it may start a cluster


def open_local_runner(*, workers: int, gpus_per_worker: float | None, cache: Location) -> LocalRunner:
    """A runner of one process."""
    assert workers == 1, "several are Ray's"
    gpus = float(torch.cuda.is_available()) if gpus_per_worker is None else gpus_per_worker
    return LocalRunner("cuda" if gpus else "cpu")
