"""The independent tasks of a command on the cluster, of one CPU each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from raycase.corpus.tasks import Places
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import join_cluster

TASKS_A_WAVE = 2048  # a wave bounds what Ray holds


@dataclass(frozen=True, kw_only=True)
class TasksOnRay:
    """`raycase.corpus.tasks.Tasks` on the cluster that this process has joined."""

    stall_timeout: float  # minutes

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """`Tasks.run`, in waves."""
        for start in range(0, len(tasks), TASKS_A_WAVE):
            run_tasks(
                tasks[start : start + TASKS_A_WAVE],
                partial(_call, work=work),
                progress=progress,
                stall_timeout=self.stall_timeout,
                num_cpus=1,
            )


def open_tasks(places: Places, *, stall_timeout: float) -> TasksOnRay:
    """Join or start Ray. Raises RequestError for a place that only one machine of several has."""
    join_cluster(places)
    return TasksOnRay(stall_timeout=stall_timeout)


def _call(task: pa.Table, *, work: Callable[..., None]) -> pa.Table:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    for threads in ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
        os.environ[threads] = "1"  # Lance reads them once, when it is first used
    work(**json.loads(task["task"][0].as_py()))
    return pa.table({"done": [True]})
