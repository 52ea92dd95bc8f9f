"""What models are worth, by each task's judgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks import captions, csfcube, csts, entailment, kgc, sts
from raycase.systems.contracts import VectorsOf

TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "csts": csts.evaluate,
    "csfcube": csfcube.evaluate,
    "caption-attributes": captions.evaluate,
    "kgc": kgc.evaluate,
    "rte": entailment.evaluate,
    "eis": entailment.evaluate,
    "sts": sts.evaluate,
    "pairs": sts.evaluate,
}


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError."""
    return TASKS[job.task](job, vectors_of=vectors_of)
