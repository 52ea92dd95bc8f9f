"""An index built by many: the parts of its rows and indices as tasks of Ray Data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from raycase.distributed.cluster import start_ray
from raycase.distributed.tasks import cpus_up, open_tasks
from raycase.search.build import IndexJob, build
from raycase.search.build_parts import PartSizes


def index(job: IndexJob, sizes: PartSizes = PartSizes()) -> dict[str, Any]:  # noqa: B008
    """Build the index or add to it on the cluster; Ray starts with the first task where the job says how many run at a
    time, else at once. Raises RequestError, WorkError."""
    if not job.workers:
        start_ray()
        job = replace(job, workers=cpus_up())
        if not job.workers:  # none is up yet, and how many will be is not known: as before, the driver does it
            return build(job)
    return build(job, partial(open_tasks, stall_timeout=job.stall_timeout, most=job.workers), sizes)
