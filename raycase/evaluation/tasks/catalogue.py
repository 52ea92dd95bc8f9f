"""The table of tasks: our own, and those of the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import no_condition
from raycase.evaluation.procedure import Task, run_task
from raycase.evaluation.tasks import csts, labelled, rerank
from raycase.models.registry import of_paper

TASKS: dict[str, Task] = {
    "csts": csts.TASK,
    "labelled": Task(read=labelled.read, measure=labelled.measure),
    "rerank": Task(read=rerank.read, measure=rerank.measure, expected=no_condition),
}


def find_task(name: str) -> Task:
    """The task of this name."""
    return TASKS.get(name) or of_paper("tasks", name)


def evaluate(job: EvaluateJob, *, vectors_of: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Run the job's task: measure, and write the report; returns what `metrics.json` holds.

    vectors_of: `VectorCache.vectors_of`. Raises RequestError and WorkError.
    """
    return run_task(job, find_task(job.task), vectors_of=vectors_of)
