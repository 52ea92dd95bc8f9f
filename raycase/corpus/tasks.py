"""Where a command runs, and its independent tasks in this process; on Ray: `raycase.distributed.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raycase.data.storage import Location
from raycase.errors import RequestError, WorkError, named, note


@dataclass(frozen=True, kw_only=True)
class RayFlag:
    """Where a command runs."""

    ray: bool | None = None
    """Run on Ray; --no-ray: in this process. Default: in this process, unless RAY_ADDRESS or a Ray job names a cluster,
    or more than one encoder or worker is asked for or worth its start."""


class Tasks(Protocol):
    """What runs tasks."""

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """Call `work` with the values of each task, which JSON can hold, and print the progress. Raises what it
        raises."""


Places = Sequence[tuple[str, Location]]  # what all tasks must reach, each with the flag that names it
OpenTasks = Callable[[Places], Tasks]


class TasksHere:
    """One task after the other, in this process."""

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """`Tasks.run`. Another error than ours or of a disk becomes a WorkError, as on Ray."""
        for count, task in enumerate(tasks, 1):
            try:
                work(**task)
            except (RequestError, WorkError, OSError):
                raise
            except Exception as error:
                raise WorkError(named(error)) from error
            note(f"{progress} {count} of {len(tasks)}")


def open_here(places: Places) -> Tasks:
    """An `OpenTasks` of this process."""
    return TasksHere()
