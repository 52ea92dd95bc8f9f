"""An index built by many: the parts of its rows and indices as tasks of Ray Data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from ray.data import TaskPoolStrategy

from raycase.data.storage import locate
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import capacity, check_nodes
from raycase.search.build import IndexJob, build
from raycase.search.build_parts import PartSizes

TASKS_A_WAVE = 2048  # a wave bounds what Ray holds


def index(job: IndexJob, sizes: PartSizes = PartSizes()) -> dict[str, Any]:  # noqa: B008
    """Build the index or add to it on the cluster; Ray starts with the first task where the job says how many run at a
    time, else at once. Raises RequestError, WorkError."""
    if not job.workers:
        start_ray()
        job = replace(job, workers=int(sum(node.get("CPU", 0) for node in nodes())))
        if not job.workers:  # none is up yet, and how many will be is not known: as before, the driver does it
            return build(job)
    return build(job, partial(run_on_ray, job), sizes)


def run_on_ray(job: IndexJob, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str) -> None:
    """Call `work` with each task, `job.workers` at a time."""
    if not tasks:
        return
    start_ray()
    cluster = capacity()
    check_nodes(locate(job.output), cluster)
    for uri in job.embeddings:
        check_nodes(locate(uri), cluster, "--embeddings")
    for start in range(0, len(tasks), TASKS_A_WAVE):
        run_tasks(
            tasks[start : start + TASKS_A_WAVE],
            partial(_call, work=work),
            progress=progress,
            patience=job.patience,
            num_cpus=1,
            compute=TaskPoolStrategy(size=job.workers),
        )


def _call(task: pa.Table, *, work: Callable[..., None]) -> pa.Table:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    for threads in ("LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
        os.environ[threads] = "1"  # Lance reads them once, when it is first used
    work(**json.loads(task["task"][0].as_py()))
    return pa.table({"done": [True]})
