"""The checkpoint of a running fit, from which a stopped run resumes at its last epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from safetensors import SafetensorError

from raycase.data.json_values import figure, from_json
from raycase.data.storage import Location
from raycase.errors import WorkError, named
from raycase.training.loop import FitState, rank

KEEP_S = 1.0  # seconds between two writes of the state; a killed run loses at most this and the epoch it was in
TITLES = {"spearman": "Spearman", "pearson": "Pearson", "mrr": "MRR", "hits@1": "hits@1", "hits@10": "hits@10"}
TITLES |= {"rte": "RTE", "eis": "EIS"}

Fitting = Callable[..., Iterator[FitState]]  # (train, validation, recipe, *, seed, state, wrap), as `fit_projector`


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a running fit: its state, its history as JSON, and an error that no retry can fix."""

    root: Location

    @property
    def name(self) -> str:
        """The fit's name in its state: the end of the path, which stays where a cache is moved."""
        return "/".join(self.root.path.split("/")[-2:])

    @property
    def state(self) -> Location:
        return self.root / "state.safetensors"

    @property
    def history(self) -> Location:
        return self.root / "history.json"

    @property
    def failure(self) -> Location:
        return self.root / "failure.json"

    def put(self, state: FitState) -> None:
        """Write the state, then its history, each atomically."""
        self.state.put(state.to_bytes(self.name))
        self.history.put_json(state.history)

    def read(self) -> FitState | None:
        """The last state; None before the first. Raises WorkError for a file that is no state."""
        if not self.state.exists():
            return None
        try:
            return FitState.from_bytes(self.state.read(), self.name, self.state.uri)
        except (AttributeError, KeyError, TypeError, ValueError, SafetensorError) as error:
            reason = named(error)
            raise WorkError(f"{self.state.uri}: expected the state of a fit, got {reason}; remove it") from error

    def read_history(self) -> list[dict[str, float]]:
        """The metrics of each epoch so far."""
        if not self.history.exists():
            return []
        try:
            return from_json(list[dict[str, Any]], self.history.read_json())
        except ValueError as error:
            raise WorkError(f"{self.history.uri}: expected the epochs of a fit, got {error}; remove it") from error


def resumed(
    fitting: Fitting,
    train: Any,
    validation: Any,
    recipe: Any,
    *,
    seed: int,
    checkpoint: Checkpoint,
    wrap: Callable[[Any], Any],
) -> Iterator[FitState]:
    """Run a fit from the state in `checkpoint`, if any; yields each new state.

    Rank 0 writes the state there, at most once per `KEEP_S` and after the last epoch.
    """
    begin = partial(fitting, train, validation, recipe, seed=seed, wrap=wrap)
    written = time.monotonic()
    last: FitState | None = None
    for last in begin(state=checkpoint.read()):
        if rank() == 0 and time.monotonic() - written >= KEEP_S:
            checkpoint.put(last)
            written = time.monotonic()
        yield last
    if rank() == 0 and last is not None:
        checkpoint.put(last)


def show(line: dict[str, float]) -> None:
    """Print the metrics of an epoch."""
    scores = "".join(f"{title} {figure(line[name]):>6}  " for name, title in TITLES.items() if name in line)
    print(
        f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}  {scores}{line['seconds']:.2f} s  {line['mib']:,} MiB",
        flush=True,
    )
