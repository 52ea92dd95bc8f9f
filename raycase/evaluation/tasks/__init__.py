"""The table of tasks; one module a task: its judgements, its figures, its part of the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raycase.evaluation.models import Model, any_condition, no_condition, vectors
from raycase.evaluation.report import Metrics, Settings, render_ranked
from raycase.evaluation.tasks import csts, labelled, rerank
from raycase.io.rated_pairs import read_candidates, read_rated
from raycase.models.configs import SystemConfig
from raycase.models.registry import of_paper


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
