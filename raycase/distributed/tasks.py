"""Shared use of Ray Data: its settings and errors, and the independent tasks of a command, of one CPU each."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import DataContext
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import GetTimeoutError, RayError

from raycase.corpus.tasks import Places
from raycase.distributed.cluster import cause
from raycase.distributed.resources import capacity, join_cluster
from raycase.errors import WorkError, note

TASKS_A_WAVE = 2048  # a wave bounds what Ray holds


def data_context(stall_timeout: float) -> AbstractContextManager[Any]:
    """Context with the settings of Ray Data under which a job creates its datasets.

    stall_timeout: minutes without progress after which Ray ends an execution, where its own default is 30.
    """
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True  # else a step's own error is lost with its cause
    context.target_max_block_size = 1  # one block per unit, which any actor can take as soon as it is read
    context.max_consecutive_actor_init_deaths = 3  # tolerates nodes lost while their actor starts
    context.execution_no_progress_timeout_s = 60 * stall_timeout
    return DataContext.current(context)


@contextmanager
def ray_errors(what: str, stall_timeout: float) -> Iterator[None]:
    """Turn errors of Ray into ours: "no {what} for ... minutes" where nothing went on."""
    try:
        yield
    except (ExecutionTimeoutError, GetTimeoutError) as error:
        raise WorkError(
            f"no {what} for {stall_timeout:g} minutes: {capacity()}; run the same command again to resume "
            "(--stall-timeout: wait longer)"
        ) from error
    except RayError as error:
        raise cause(error) from error


class Opaque:
    """An argument of a stage that reaches the workers as its value and that Ray Data's own actors do not look into.

    They keep a description of each execution, with its arguments. An enumeration in there would make them import its
    module, and torch with it: seconds, and 320 MB on the head node.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.value,)


@dataclass(frozen=True, kw_only=True)
class TasksOnRay:
    """`raycase.corpus.tasks.Tasks` on the cluster that this process has joined."""

    stall_timeout: float  # minutes

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """`Tasks.run`, in waves."""
        for start in range(0, len(tasks), TASKS_A_WAVE):
            items = [{"task": json.dumps(task)} for task in tasks[start : start + TASKS_A_WAVE]]
            with ray_errors("task was finished", self.stall_timeout):
                with data_context(self.stall_timeout):
                    done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                        partial(_call, work=work), batch_size=1, batch_format="pyarrow", num_cpus=1
                    )
                for count, _ in enumerate(done.iter_batches(batch_size=None, prefetch_batches=0), 1):
                    note(f"{progress} {count} of {len(items)}")


def open_tasks(places: Places, *, stall_timeout: float) -> TasksOnRay:
    """Join or start Ray. Raises RequestError for a place that only one machine of several has."""
    join_cluster(places)
    return TasksOnRay(stall_timeout=stall_timeout)


def _call(task: pa.Table, *, work: Callable[..., None]) -> pa.Table:
    """Call `work` with a task, a table of one row with the column `task` (JSON)."""
    import torch

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    for threads in ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
        os.environ[threads] = "1"  # Lance reads them once, when it is first used
    work(**json.loads(task["task"][0].as_py()))
    return pa.table({"done": [True]})
