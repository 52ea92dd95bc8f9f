"""The embedding job on Ray: runs `raycase.corpus.run` with a cluster and its actors."""

from __future__ import annotations

from functools import partial
from typing import Any

from raycase.corpus.plan import Plan
from raycase.corpus.request import EmbedJob, Request
from raycase.corpus.run import Execute, run
from raycase.corpus.run import TooManyRejectedError as TooManyRejectedError  # of `embed`
from raycase.distributed.pipeline import execute_on_ray
from raycase.distributed.resources import join_cluster, make_pool
from raycase.errors import note
from raycase.systems.contracts import EmbedderConfig


def embed(job: EmbedJob, *, model: EmbedderConfig | None = None) -> dict[str, Any]:
    """`raycase.corpus.run.run` on Ray. Returns counts and rates; raises RequestError and WorkError."""
    return run(job, model=model, prepare=prepare_ray)


def prepare_ray(request: Request, plan: Plan, *, ahead: int | None = None, size: int | None = None) -> Execute:
    """Join or start Ray and fit the actors into the cluster. Raises RequestError for actors that do not fit.

    `ahead`: maximum number of units that Ray has received and not yet written. Default: by the number of actors.
    `size`: units of an item of Ray Data. Default: one, more for many actors.
    """
    cluster = join_cluster([("--output", request.output.root)])
    pool = make_pool(request.job, plan.units, cluster)
    note(f"needs {pool}; {cluster}")
    return partial(execute_on_ray, pool=pool, ahead=ahead, size=size)
