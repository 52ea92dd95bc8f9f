"""The independent tasks of a command on the cluster: of one CPU each, or in actors that keep a model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import ray
import torch
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from raycase.corpus.tasks import Places
from raycase.distributed.cluster import nodes
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import ActorFlags, capacity, join_cluster, make_pool

TASKS_A_WAVE = 2048  # a wave bounds what Ray holds


@dataclass(frozen=True, kw_only=True)
class TasksOnRay:
    """`raycase.corpus.tasks.Tasks` on the cluster that this process has joined.

    stall_timeout: minutes. most: tasks at a time; None: as many as there are CPUs. actors: flags of those that run
    them, where the work has a model to keep.
    """

    stall_timeout: float
    most: int | None = None
    actors: ActorFlags | None = None

    @property
    def cpus(self) -> int:
        """`Tasks.cpus`: of the nodes that are up."""
        return cpus_up()

    def run(self, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
        """`Tasks.run`, in waves; in actors as a whole. Raises RequestError for actors that do not fit, too."""
        if self.actors is not None:
            pool = make_pool(self.actors, len(tasks), capacity())
            run_tasks(
                tasks,
                _Actor,
                progress=progress,
                stall_timeout=self.stall_timeout,
                fn_constructor_kwargs={"work": ray.put(work), "threads": pool.threads},
                compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.most),
                num_cpus=pool.cpus,
                num_gpus=pool.gpus,
            )
            return
        for start in range(0, len(tasks), TASKS_A_WAVE):
            run_tasks(
                tasks[start : start + TASKS_A_WAVE],
                partial(_call, work=work),
                progress=progress,
                stall_timeout=self.stall_timeout,
                num_cpus=1,
                compute=TaskPoolStrategy(size=self.most),
            )


def open_tasks(
    places: Places, *, stall_timeout: float, most: int | None = None, actors: ActorFlags | None = None
) -> TasksOnRay:
    """Join or start Ray. Raises RequestError for a place that only one machine of several has."""
    join_cluster(places)
    return TasksOnRay(stall_timeout=stall_timeout, most=most, actors=actors)


def cpus_up() -> int:
    """CPUs of the nodes that are up."""
    return int(sum(node.get("CPU", 0) for node in nodes()))


def _call(task: pa.Table, *, work: Callable[..., None]) -> pa.Table:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    for threads in ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
        os.environ[threads] = "1"  # Lance reads them once, when it is first used
    return _done(task, work)


class _Actor:
    """The work in an actor: what it loads at its first task stays."""

    def __init__(self, *, work: Any, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.work: Callable[..., None] = ray.get(work)

    def __call__(self, task: pa.Table) -> pa.Table:
        return _done(task, self.work)


def _done(task: pa.Table, work: Callable[..., None]) -> pa.Table:
    work(**json.loads(task["task"][0].as_py()))
    return pa.table({"done": [True]})
