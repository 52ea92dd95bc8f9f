"""The procedure that every task shares: check the request, read, find the models, measure, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.errors import WorkError, note
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import Model, any_condition, find_models, vectors
from raycase.evaluation.report import (
    UNDEFINED_VALUES,
    WHY_UNDEFINED,
    ValuesBySystem,
    ranked_values,
    render_ranked,
    write_report,
)
from raycase.io.json_values import finite
from raycase.io.provenance import provenance
from raycase.io.storage import locate


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is particular to one task."""

    read: Callable[[EvaluateJob], Any]  # the data; raises RequestError
    measure: Callable[[EvaluateJob, Any, Sequence[Model]], dict[str, Any]]  # the task's part of metrics.json
    expected: Callable[[Any], str | None] = lambda config: vectors(config) or any_condition(config)  # of a model
    values: Callable[[dict[str, Any]], ValuesBySystem] = ranked_values  # of metrics.json
    render: Callable[[dict[str, Any]], str] = render_ranked  # metrics.json to the report in Markdown


def run_task(job: EvaluateJob, task: Task, *, vectors_of: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured.
    """
    start = time.time()
    folder = check_request(job)
    data = task.read(job)
    models = find_models(job, task.expected, vectors_of)
    metrics = {
        "task": job.task,
        **task.measure(job, data, models),
        "provenance": provenance(),
        "seconds": round(time.time() - start, 1),
    }
    values = task.values(metrics)
    undefined = undefined_values(values)
    if undefined:
        metrics[UNDEFINED_VALUES] = undefined
    write_report(locate(str(folder)), metrics, task.render)
    for system, names in undefined.items():
        note(f"undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}")
    if sum(map(len, undefined.values())) == sum(map(len, values.values())):
        raise NothingDefinedError(metrics)
    return metrics


def undefined_values(values: ValuesBySystem) -> dict[str, list[str]]:
    """The metrics of each system that are not numbers; nothing of systems without any."""
    found = {system: [name for name, value in of.items() if finite(value) is None] for system, of in values.items()}
    return {system: names for system, names in found.items() if names}


class NothingDefinedError(WorkError):
    """An evaluation in which no figure of any system is a number; its report is written."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        super().__init__(f"expected a system with a figure that is a number, got none: {WHY_UNDEFINED}")
        self.result = metrics
