"""The independent tasks of a command on the cluster, of one CPU each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from ray.data import TaskPoolStrategy

from raycase.data.storage import Location
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import capacity, check_nodes

TASKS_A_WAVE = 2048  # a wave bounds what Ray holds


@dataclass(frozen=True, kw_only=True)
class TasksOnRay:
    """`raycase.corpus.tasks.Tasks` on the cluster that this process has joined."""

    cpus: int
    patience: float  # minutes

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """`Tasks.run`, in waves."""
        for start in range(0, len(tasks), TASKS_A_WAVE):
            run_tasks(
                tasks[start : start + TASKS_A_WAVE],
                partial(_call, work=work),
                progress=progress,
                patience=self.patience,
                num_cpus=1,
                compute=TaskPoolStrategy(),
            )


def open_tasks(places: Mapping[str, Location], *, patience: float) -> TasksOnRay:
    """Join or start Ray. Raises RequestError for a place that only one machine of several has."""
    start_ray()
    cluster = capacity()
    for flag, place in places.items():
        check_nodes(place, cluster, flag)
    return TasksOnRay(cpus=int(sum(node.get("CPU", 0) for node in nodes())), patience=patience)


def _call(task: pa.Table, *, work: Callable[..., None]) -> pa.Table:
    torch.set_num_threads(1)
    work(**json.loads(task["task"][0].as_py()))
    return pa.table({"done": [True]})
