"""The procedure that every task shares: check the request, read, find the models, measure, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from raycase.data.json_values import finite
from raycase.data.provenance import provenance
from raycase.data.storage import locate
from raycase.errors import WorkError, note
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import Model, find_models
from raycase.evaluation.plots import has_matplotlib
from raycase.evaluation.report import NO_PLOTS, UNDEFINED_FIGURES, WHY_UNDEFINED, write_report
from raycase.evaluation.seeds import FiguresOf, compare_seeds
from raycase.systems.contracts import VectorsOf


class TaskData(Protocol):
    """What a task reads: its own record, with the URI by which messages name it."""

    @property
    def uri(self) -> str:
        """Where it was read from."""


class Embed(Protocol):
    """Gives a model's vectors of texts."""

    def __call__(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, config: Any = None
    ) -> np.ndarray:
        """f(s) of distinct sentences; of distinct (sentence, condition) the vectors before g: P -> (P, D) float32.

        `config` is a variant of the model's own configuration. Raises RequestError where a text has no vector.
        """


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a task measured."""

    metrics: dict[str, Any]  # the part of metrics.json between the task's name and the provenance
    draw: Callable[[], dict[str, bytes]] | None = None  # plots as PNG by file name; needs matplotlib
    lists_plots: bool = False  # whether metrics.json names the plots: they depend on the data


Judged = TypeVar("Judged", bound=TaskData)


@dataclass(frozen=True, kw_only=True)
class Task(Generic[Judged]):
    """What is particular to one task."""

    read: Callable[[EvaluateJob], Judged]  # raises RequestError
    measure: Callable[[EvaluateJob, Judged, Sequence[Model], Embed], Measured]
    figures: Callable[[dict[str, Any]], FiguresOf]  # of each system in what was measured, to compare seeds
    render: Callable[[dict[str, Any]], str]  # metrics.json to the report in Markdown


def run_task(job: EvaluateJob, task: Task[Any], *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured. Without
    matplotlib the plots are left out, and the report says so.
    """
    start = time.time()
    folder = check_request(job)
    data = task.read(job)
    models = find_models(job)

    def embed(texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, config: Any = None) -> np.ndarray:
        config = model.config if config is None else config
        return vectors_of(texts, config, name=data.uri, cache=model.cache, compute=job.compute)

    measured = task.measure(job, data, models, embed)
    seeds = compare_seeds(models, task.figures(measured.metrics))
    metrics = {
        "task": job.task,
        **measured.metrics,
        **({"seeds": seeds} if seeds else {}),
        "provenance": provenance(),
        "seconds": round(time.time() - start, 1),
    }
    pictures: dict[str, bytes] = {}
    if measured.draw is not None and has_matplotlib():
        pictures = measured.draw()
        if measured.lists_plots:
            metrics["pictures"] = list(pictures)
    elif measured.draw is not None:
        metrics[NO_PLOTS] = "matplotlib is not installed"
    undefined = undefined_figures(task.figures(metrics))
    if undefined:
        metrics[UNDEFINED_FIGURES] = undefined
    write_report(locate(str(folder)), metrics, task.render, pictures)
    for system, names in undefined.items():
        note(f"undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}")
    if sum(map(len, undefined.values())) == sum(map(len, task.figures(metrics).values())):
        raise NothingDefinedError(metrics)
    return metrics


def undefined_figures(figures: FiguresOf) -> dict[str, list[str]]:
    """The names of the figures of each system that are no numbers; nothing of systems without such."""
    found = {system: [n for n, value in of.items() if finite(value) is None] for system, of in figures.items()}
    return {system: names for system, names in found.items() if names}


class NothingDefinedError(WorkError):
    """An evaluation in which no figure of any system is a number; its report is written."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        super().__init__(f"expected a system with a figure that is a number, got none: {WHY_UNDEFINED}")
        self.result = metrics
