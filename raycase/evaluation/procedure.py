"""The procedure that every task shares: check the request, read, find the models, measure, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

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
from raycase.io.vectors import pair_cosines
from raycase.models.registry import embeds


class EmbedPairs(Protocol):
    """Gives a model's vectors of texts."""

    def __call__(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, config: Any = None
    ) -> np.ndarray:
        """f(s) of distinct sentences; of distinct (sentence, condition) the vectors before g: P -> (P, D) float32.

        `config` is a variant of the model's own configuration. Raises RequestError where a text has no vector.
        """


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is particular to one task."""

    read: Callable[[EvaluateJob], Any]  # the data; raises RequestError
    measure: Callable[
        [EvaluateJob, Any, Sequence[Model], EmbedPairs], dict[str, Any]
    ]  # the task's part of metrics.json
    expected: Callable[[Any], str | None] = lambda config: vectors(config) or any_condition(config)  # of a model
    folder: bool = False  # --data is a folder of certain files
    values: Callable[[dict[str, Any]], ValuesBySystem] = ranked_values  # of metrics.json
    render: Callable[[dict[str, Any]], str] = render_ranked  # metrics.json to the report in Markdown


def run_task(job: EvaluateJob, task: Task, *, vectors_of: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded; nothing is written before everything is measured.
    """
    start = time.time()
    folder = check_request(job, folder=task.folder)
    data = task.read(job)
    models = find_models(job, task.expected)
    metrics = {
        "task": job.task,
        **task.measure(job, data, models, embedder(job, job.data, vectors_of)),
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


def embedder(job: EvaluateJob, uri: str, vectors_of: Callable[..., np.ndarray]) -> EmbedPairs:
    """What embeds texts of this URI in the job's number format, with the cache of each model."""

    def embed(texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, config: Any = None) -> np.ndarray:
        config = model.config if config is None else config
        return vectors_of(texts, config, name=uri, cache=model.cache, compute=job.compute)

    return embed


def undefined_values(values: ValuesBySystem) -> dict[str, list[str]]:
    """The metrics of each system that are not numbers; nothing of systems without any."""
    found = {system: [name for name, value in of.items() if finite(value) is None] for system, of in values.items()}
    return {system: names for system, names in found.items() if names}


class NothingDefinedError(WorkError):
    """An evaluation in which no figure of any system is a number; its report is written."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        super().__init__(f"expected a system with a figure that is a number, got none: {WHY_UNDEFINED}")
        self.result = metrics


AT_ONCE = 2**16  # pairs that a scorer tokenises together


def plain_scores(
    job: EvaluateJob, model: Model, firsts: Sequence[str], seconds: Sequence[str], embed: EmbedPairs
) -> np.ndarray:
    """Scores without a condition, the cosines of plain vectors where the model embeds: N, N -> (N,) float64.

    Raises RequestError for a text that the model cannot read.
    """
    if not embeds(model.config):
        return scores_by_scorer(job, model, firsts, seconds)
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*firsts, *seconds]))}
    vectors_TD = embed(list(row_of), model)
    return pair_cosines(vectors_TD, np.array([[row_of[a], row_of[b]] for a, b in zip(firsts, seconds, strict=True)]))


def scores_by_scorer(
    job: EvaluateJob,
    model: Model,
    firsts: Sequence[str],
    seconds: Sequence[str],
    conditions: Sequence[str] | None = None,
) -> np.ndarray:
    """The scores of a model that scores pairs: N, N, N -> (N,) float64. Raises RequestError as `plain_scores`."""
    scorer = load_scorer(job, model)
    parts = []
    for start in range(0, len(firsts), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        parts.append(scorer.score(firsts[rows], seconds[rows], None if conditions is None else conditions[rows]))
    return np.concatenate(parts).astype(np.float64)


def load_scorer(job: EvaluateJob, model: Model) -> Any:
    """A model that scores pairs, with its weights, in the job's number format."""
    return model.config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
