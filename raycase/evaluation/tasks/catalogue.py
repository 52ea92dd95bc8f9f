"""The table of tasks."""

from __future__ import annotations

from typing import Any

from raycase.evaluation import csts_report, ranked
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.procedure import Task, run_task
from raycase.evaluation.tasks import captions, csfcube, csts, entailment, kgc, rerank, sts
from raycase.systems.contracts import VectorsOf

TASKS: dict[str, Task[Any]] = {
    "csts": Task(read=csts.read, measure=csts.measure, figures=csts_report.figures, render=csts_report.render),
    "csfcube": Task(read=csfcube.read, measure=csfcube.measure, figures=ranked.figures, render=ranked.render),
    "caption-attributes": Task(
        read=captions.read, measure=captions.measure, figures=ranked.figures, render=ranked.render
    ),
    "kgc": Task(read=kgc.read, measure=kgc.measure, figures=ranked.figures, render=ranked.render),
    "rte": Task(read=entailment.read, measure=entailment.measure, figures=ranked.figures, render=ranked.render),
    "eis": Task(read=entailment.read, measure=entailment.measure, figures=ranked.figures, render=ranked.render),
    "sts": Task(read=sts.read, measure=sts.measure, figures=sts.figures, render=sts.render),
    "pairs": Task(read=sts.read, measure=sts.measure, figures=sts.figures, render=sts.render),
    "rerank": Task(read=rerank.read, measure=rerank.measure, figures=ranked.figures, render=ranked.render),
}


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Run the job's task: measure, and write the report; returns what `metrics.json` holds.

    Raises RequestError and WorkError.
    """
    return run_task(job, TASKS[job.task], vectors_of=vectors_of)
