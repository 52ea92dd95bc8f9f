"""What a training job runs on, as the job sees it: something that gives vectors and runs fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from raycase.data.storage import Location
from raycase.systems.contracts import VectorsOf
from raycase.training.loop import FitState


class Runner(Protocol):
    """Ready to run; `raycase.distributed.train` has the one on Ray."""

    @property
    def vectors_of(self) -> VectorsOf:
        """What gives the vectors of many texts."""

    @property
    def on_gpu(self) -> bool:
        """Whether fits run on GPUs."""

    def fit(
        self,
        fitting: Callable[..., Iterator[FitState]],
        train: Any,
        validation: Any,
        recipe: Any,
        *,
        seed: int,
        checkpoints: Location,
    ) -> FitState:
        """Run `fitting(train, validation, recipe, seed=, state=, wrap=)` to its end; gives its last state.

        Resumes from the state in `checkpoints`. Raises WorkError.
        """


class OpenRunner(Protocol):
    """Makes a runner. Jobs call it after every check that needs none, since it may start a cluster."""

    def __call__(self, *, workers: int, gpus_per_worker: float | None, cache: Location) -> Runner:
        """Raises RequestError where the workers do not fit, or the cache cannot be shared by them."""
