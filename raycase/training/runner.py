"""Protocols of what training runs on: a runner embeds texts and runs fits.

Implemented on Ray by `raycase.distributed.train`, in one process by `raycase.training.local_runner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from raycase.data.storage import Location
from raycase.data.stored_states import StoredStates
from raycase.systems.condition_pooling import ConditionPoolingConfig
from raycase.systems.contracts import Compute, VectorsOf
from raycase.training.checkpoint import Fitting
from raycase.training.loop import FitState


class TextEmbedder(Protocol):
    """Embeds texts."""

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
        self,
        rows: Sequence[tuple[str, str, str]],
        model: str,
        *,
        name: str,
        cache: Location,
        compute: Compute | None,
    ) -> np.ndarray:
        """What a trained model says of N pairs of sentences, each under its condition: (N,) float64.

        Raises RequestError for a pair that cannot be scored.
        """


class Runner(TextEmbedder, Protocol):
    """Embeds texts and runs fits."""

    @property
    def on_gpu(self) -> bool:
        """Whether fits run on GPUs."""

    def fit(
        self, fitting: Fitting, train: Any, validation: Any, recipe: Any, *, seed: int, checkpoints: Location
    ) -> FitState:
        """Run a fit, from the state in `checkpoints` if any, and return its last state. Raises WorkError."""


class OpenRunner(Protocol):
    """Opens a runner. Jobs call it after all other checks, since it may start a cluster."""

    def __call__(self, *, workers: int, gpus_per_worker: float | None, cache: Location) -> Runner:
        """Raises RequestError where the workers do not fit, or where the workers cannot share the cache."""
