"""The table of tasks."""

from __future__ import annotations

from typing import Any

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.procedure import Task, run_task
from raycase.evaluation.report import ranked_values, render_ranked
from raycase.evaluation.tasks import csts, entailment, kgc, labelled, rerank, sts
from raycase.systems.contracts import VectorsOf

RANKED: dict[str, Any] = {"values": ranked_values, "render": render_ranked}
STS = Task(read=sts.read, measure=sts.measure, **RANKED)
ENTAILMENT = Task(read=entailment.read, measure=entailment.measure, **RANKED)
TASKS: dict[str, Task] = {
    "csts": Task(read=csts.read, measure=csts.measure, values=csts.csts_values, render=csts.render_csts),
    "kgc": Task(read=kgc.read, measure=kgc.measure, **RANKED),
    "rte": ENTAILMENT,
    "eis": ENTAILMENT,
    "sts": STS,
    "pairs": STS,
    "rerank": Task(read=rerank.read, measure=rerank.measure, **RANKED),
    "labelled": Task(read=labelled.read, measure=labelled.measure, **RANKED),
}


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Run the job's task: measure, and write the report; returns what `metrics.json` holds.

    Raises RequestError and WorkError.
    """
    return run_task(job, TASKS[job.task], vectors_of=vectors_of)
