"""The table of tasks, and the report that all share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raycase.errors import WorkError, note
from raycase.evaluation.models import Model, any_condition, no_condition, vectors
from raycase.evaluation.report import UNDEFINED_VALUES, WHY_UNDEFINED, Settings, ranked_values, render_ranked
from raycase.evaluation.tasks import csts, labelled, rerank
from raycase.io.json_values import finite
from raycase.io.provenance import provenance
from raycase.io.rated_pairs import read_candidates, read_rated
from raycase.io.storage import locate
from raycase.models.configs import SystemConfig
from raycase.models.model_folder import METRICS
from raycase.models.registry import of_paper

REPORT = "report.md"
Metrics = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is particular to one task."""

    read: Callable[..., Any]  # the data at a URI, by the task's own flags if it has any; raises RequestError
    measure: Callable[[Settings, Any, Sequence[Model]], Metrics]  # the task's part of metrics.json
    expected: Callable[[SystemConfig], str | None] = lambda config: vectors(config) or any_condition(config)
    render: Callable[[Metrics], str] = render_ranked  # metrics.json to the report in Markdown


TASKS = {
    "csts": Task(read=lambda data: read_rated(data, "--data"), measure=csts.measure, expected=any_condition),
    "labelled": Task(read=labelled.read, measure=labelled.measure),
    "rerank": Task(read=lambda data: read_candidates(data, "--data"), measure=rerank.measure, expected=no_condition),
}


def find_task(name: str) -> Task:
    """The task of this name, which a paper may add."""
    return TASKS.get(name) or of_paper("tasks", name)


def write_report(output: Path, metrics: Metrics, task: Task, began: float) -> Metrics:
    """Write metrics.json, which also gets its origin and the seconds since the work began, and report.md; returns what
    metrics.json holds. Raises WorkError where no figure is a number, when both are written."""
    folder = locate(str(output))
    metrics = metrics | {"provenance": provenance(), "seconds": round(time.time() - began, 1)}
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
