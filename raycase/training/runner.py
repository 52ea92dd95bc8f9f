"""Protocols of what training and sweeps run on: a runner embeds texts and runs fits or trials.

Implemented on Ray by `raycase.distributed.train` and `tune`, in one process by `raycase.training.local_runner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raycase.data.storage import Location
from raycase.systems.contracts import StatesOf, VectorsOf
from raycase.training.checkpoint import Fitting
from raycase.training.loop import FitState

if TYPE_CHECKING:
    from raycase.training.sweep_cells import Cell, Space

Data = Mapping[str, Any]  # by `Cell.data_key`: what `TrainingJob.shared` gave


class TextEmbedder(Protocol):
    """Embeds texts."""

    @property
    def vectors_of(self) -> VectorsOf:
        """A function that embeds the texts of a data set."""

    @property
    def states_of(self) -> StatesOf:
        """A function that gives the states of texts' tokens."""


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


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search: the number of cells to choose from the space, and the trials so far."""

    count: int
    base: Cell
    space: Space
    seed: int  # of the fits
    sampler_seed: int
    points: Sequence[tuple[dict[str, Any], float]]  # of the space, of earlier trials, with their scores


@dataclass(frozen=True, kw_only=True)
class Round:
    """Trials that run together: cells with their seeds, or a search that chooses cells."""

    trials: Sequence[tuple[Cell, int]] = ()
    search: Search | None = None
    epochs: int  # of the longest trial
    asha: bool


class Record(Protocol):
    """Receives a trial that has ended: the metrics of its epochs, or its error."""

    def __call__(self, cell: Cell, seed: int, *, history: Sequence[dict[str, float]], error: str | None) -> None: ...


class TrialRunner(Runner, Protocol):
    """Embeds texts and runs fits and trials."""

    def run(self, trials: Round, data: Data, record: Record) -> list[float]:
        """Run a round and record each trial at its end. Returns the seconds that trials took beyond their fits."""


class OpenTrialRunner(Protocol):
    """Opens a runner of trials. Sweeps call it after all other checks, since it may start a cluster."""

    def __call__(self, *, cpus_per_trial: float | None, gpus_per_trial: float | None, cache: Location) -> TrialRunner:
        """None: as `train` takes, but each GPU has a trial of its own.

        Raises RequestError where a trial does not fit, or where the trials cannot share the cache.
        """
