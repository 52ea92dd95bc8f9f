"""Evaluation with vectors from the embedding job."""

from __future__ import annotations

from typing import Any

from raycase.distributed.vector_cache import vectors_of
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks import catalogue


def evaluate(job: EvaluateJob) -> dict[str, Any]:
    """Evaluate and write the report; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    return catalogue.evaluate(job, vectors_of=vectors_of)
