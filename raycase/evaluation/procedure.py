"""The table of tasks, and what all share: check the request, read, find the models, measure, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.errors import WorkError, note
from raycase.evaluation.job import REPORT, EvaluateFlags, check_request
from raycase.evaluation.models import Model, any_condition, find_models, no_condition, vectors
from raycase.evaluation.report import UNDEFINED_VALUES, WHY_UNDEFINED, ranked_values, render_ranked
from raycase.evaluation.tasks import csts, labelled, rerank
from raycase.io.json_values import finite
from raycase.io.provenance import provenance
from raycase.io.rated_pairs import read_candidates, read_rated
from raycase.io.storage import locate
from raycase.models.model_folder import METRICS
from raycase.models.registry import of_paper


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is particular to one task."""

    read: Callable[[EvaluateFlags], Any]  # the data; raises RequestError
    measure: Callable[[EvaluateFlags, Any, Sequence[Model]], dict[str, Any]]  # the task's part of metrics.json
    expected: Callable[[Any], str | None] = lambda config: vectors(config) or any_condition(config)  # of a model
    render: Callable[[dict[str, Any]], str] = render_ranked  # metrics.json to the report in Markdown


TASKS = {
    "csts": Task(read=lambda job: read_rated(job.data, "--data"), measure=csts.measure, expected=any_condition),
    "labelled": Task(read=labelled.read, measure=labelled.measure),
    "rerank": Task(read=lambda job: read_candidates(job.data, "--data"), measure=rerank.measure, expected=no_condition),
}


def evaluate(
    flags: EvaluateFlags, *, vectors_of: Callable[..., np.ndarray], task: Task | None = None
) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured. vectors_of:
    `VectorCache.vectors_of`; task: instead of the one that the job names.
    """
    start = time.time()
    task = task or TASKS.get(flags.task) or of_paper("tasks", flags.task)
    folder = locate(str(check_request(flags)))
    data = task.read(flags)
    models = find_models(flags, task.expected, vectors_of)
    metrics = {
        "task": flags.task,
        **task.measure(flags, data, models),
        "provenance": provenance(),
        "seconds": round(time.time() - start, 1),
    }
    values = ranked_values(metrics)
    found = {system: [name for name, value in of.items() if finite(value) is None] for system, of in values.items()}
    if undefined := {system: names for system, names in found.items() if names}:
        metrics[UNDEFINED_VALUES] = undefined
    (folder / METRICS).put_json(metrics)
    (folder / REPORT).put(task.render((folder / METRICS).read_json()).encode())  # by the metrics as they were written
    for system, names in undefined.items():
        note(f"undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}")
    if sum(map(len, undefined.values())) == sum(map(len, values.values())):
        error = WorkError(f"expected a system with a figure that is a number, got none: {WHY_UNDEFINED}")
        error.result = metrics  # type: ignore[attr-defined]
        raise error
    return metrics
