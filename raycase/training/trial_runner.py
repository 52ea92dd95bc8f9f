"""Protocols of what sweeps run on: a runner of fits that runs trials, too, by rounds.

Implemented on Ray by `raycase.distributed.tune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycase.data.storage import Location
from raycase.training.runner import Runner
from raycase.training.sweep_cells import Cell, Space

Data = Mapping[str, Any]  # by `Cell.data_key`: what `TrainingJob.shared` gave


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
