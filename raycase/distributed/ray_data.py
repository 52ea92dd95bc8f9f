"""Shared use of Ray Data: its settings, and lists of independent tasks."""

from __future__ import annotations

import copy
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import pyarrow as pa
import ray
from ray.data import DataContext
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayError

from raycase.distributed.cluster import cause
from raycase.distributed.ray_internals import forget_block_statistics
from raycase.distributed.resources import capacity
from raycase.errors import STALL_TIMEOUT, WorkError, note


def data_context(stall_timeout: float | None) -> AbstractContextManager[Any]:
    """Context with the settings of Ray Data under which a job creates its datasets.

    stall_timeout: minutes without progress after which Ray ends an execution, where its own default is 30; None: never.
    """
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True  # else a step's own error is lost with its cause
    context.target_max_block_size = 1  # one block per unit, which any actor can take as soon as it is read
    context.max_consecutive_actor_init_deaths = 3  # tolerates nodes lost while their actor starts
    context.execution_no_progress_timeout_s = -1 if stall_timeout is None else 60 * stall_timeout
    forget_block_statistics(context)
    return DataContext.current(context)


class Opaque:
    """An argument of a stage that reaches the workers as its value and that Ray Data's own actors do not look into.

    They keep a description of each execution, with its arguments. An enumeration in there would make them import its
    module, and torch with it: seconds, and 320 MB on the head node.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.value,)


def run_tasks(
    tasks: Sequence[dict[str, Any]],
    work: Callable[..., pa.Table] | type,
    *,
    progress: str,
    stall_timeout: float = STALL_TIMEOUT,
    **stage: Any,
) -> None:
    """Call `work` with each task, as a table of one row with the column `task` (JSON), and print the progress.

    `stage`: further arguments of `Dataset.map_batches`. Raises the RequestError or WorkError of `work`, and WorkError
    after so many minutes without progress.
    """
    if not tasks:
        return
    items = [{"task": json.dumps(task)} for task in tasks]
    with data_context(stall_timeout):
        done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            work, batch_size=1, batch_format="pyarrow", **stage
        )
    try:
        for count, _ in enumerate(done.iter_batches(batch_size=None, prefetch_batches=0), 1):
            note(f"{progress} {count} of {len(items)}")
    except ExecutionTimeoutError as error:
        raise WorkError(
            f"no task was finished for {stall_timeout:g} minutes: {capacity()}; run the same command again to resume "
            "(--stall-timeout: wait longer)"
        ) from error
    except RayError as error:
        del done  # the error's traceback has this frame, and Ray may keep the error
        drop_execution(error)
        raise cause(error) from error


def drop_execution(error: BaseException, seconds: float = 10.0) -> None:
    """Clear the frames of an error and of all behind it, which refer to the execution: Ray keeps encoders, and their
    GPUs, as long as anything refers to them, and a circle does until Python looks for such: it is told to, too.

    A frame that another thread still runs (Ray's executor ends after its error) is waited for, at most `seconds`.
    """
    own = {frame for frame, _ in walk_stack(sys._getframe())}  # without one, it leaves out the first of them
    end = time.monotonic() + seconds
    ahead: list[BaseException | None] = [error]
    seen: set[int] = set()  # of two errors each may be the other's cause
    while ahead:
        found = ahead.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            for frame, _ in walk_tb(found.__traceback__):
                while frame not in own and not _cleared(frame) and time.monotonic() < end:
                    time.sleep(0.01)
            ahead += [found.__cause__, found.__context__]
    gc.collect()


def _cleared(frame: FrameType) -> bool:
    """Clear it; whether that could be done: not while it runs."""
    try:
        frame.clear()
    except RuntimeError:
        return False
    return True
