"""A runner embeds texts and runs fits: in this process, or on Ray (`raycase.distributed.train`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from raycase.corpus.one_process import execute_here
from raycase.corpus.vector_cache import VectorCache
from raycase.data.storage import Location
from raycase.data.stored_words import StoredStates
from raycase.systems.condition_pooling import ConditionPoolingConfig
from raycase.systems.contracts import Compute, VectorsOf
from raycase.training.loop import FitState, show

CACHE = VectorCache(lambda *_: execute_here)
STATE = "state.safetensors"  # of a fit that may resume

Fitting = Callable[..., Iterator[FitState]]  # (train, validation, recipe, *, seed, state, wrap), as `fit_projector`


class Runner(Protocol):
    """Embeds texts and runs fits."""

    @property
    def on_gpu(self) -> bool:
        """Whether fits run on GPUs."""

    @property
    def vectors_of(self) -> VectorsOf:
        """A function that embeds the texts of a data set."""

    def states_of(
        self,
        texts: Sequence[str],
        config: ConditionPoolingConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None,
    ) -> tuple[StoredStates, np.ndarray]:
        """States of the tokens of N distinct texts, by a system that keeps them, and f of each text, (N, D) float32.

        The other arguments are those of `VectorsOf`. Raises RequestError for a text without states.
        """

    def scores_of(
        self, rows: Sequence[tuple[str, str, str]], model: str, *, name: str, cache: Location, compute: Compute | None
    ) -> np.ndarray:
        """What a trained model says of N pairs of sentences, each under its condition: (N,) float64.

        Raises RequestError for a pair that cannot be scored.
        """

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


class OpenRunner(Protocol):
    """Opens a runner. Jobs call it after all other checks, since it may start a cluster."""

    def __call__(self, *, workers: int, gpus_per_worker: float | None, cache: Location) -> Runner:
        """Raises RequestError where the workers do not fit, or where the workers cannot share the cache."""


@dataclass(frozen=True)
class LocalRunner:
    """`Runner` in this process. The fits equal those on Ray."""

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
        """`Runner.fit`."""
        file = checkpoints / STATE
        state = FitState.from_bytes(file.read()) if resume and file.exists() else None
        for state in fitting(train, validation, recipe, seed=seed, state=state, wrap=self.wrap):  # noqa: B020
            show(state.line)
            if resume:
                file.put(state.to_bytes())
        assert state is not None
        return state


def open_local_runner(*, workers: int, gpus_per_worker: float | None, cache: Location) -> LocalRunner:
    """A runner of one process."""
    assert workers == 1, "several are Ray's"
    gpus = float(torch.cuda.is_available()) if gpus_per_worker is None else gpus_per_worker
    return LocalRunner("cuda" if gpus else "cpu")
