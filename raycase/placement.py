"""Where a command runs: in this process, unless there is a reason for a cluster. Ray is imported only then.

Reasons: `--ray`; RAY_ADDRESS, or a Ray job; several workers or encoders that were asked for; several GPUs here, or
processors for several encoders and work that repays their start. A cluster that merely runs here is not joined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from raycase.corpus.dry_run import MeasuredRate, encode_sample
from raycase.corpus.dry_run import dry_run as estimate
from raycase.corpus.one_process import execute_here
from raycase.corpus.plan import Plan
from raycase.corpus.request import EmbedJob, Request, RunFlags, actor_range, check_embed
from raycase.corpus.run import Execute, run
from raycase.corpus.score_request import ScoreJob, check_score
from raycase.corpus.tasks import OpenTasks, Places, Tasks, open_here
from raycase.corpus.vector_cache import VectorCache
from raycase.data.storage import Location
from raycase.errors import RequestError, note

if TYPE_CHECKING:
    from raycase.corpus.materialize import MaterializeJob
    from raycase.search.index import Index
    from raycase.search.join import JoinJob
    from raycase.search.search_job import SearchJob

CPUS_OF_ENCODER = 4  # as on a cluster
UNITS_OF_ENCODER = 4  # at least, of several encoders: fewer would not repay the start of Ray


def why_ray(ray: bool | None, several: str = "") -> str:
    """The reason to run on Ray; "" for this process. Says which, once.

    ray: the flag. several: what asks for more than one process. Raises RequestError where the two contradict.
    """
    if ray is False and several.startswith("--"):
        raise RequestError(f"--no-ray: expected one process, got {several}")
    cluster = "a Ray job" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
    cluster = cluster or ("RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") else "")
    why = "" if ray is False else "--ray" if ray else cluster or several
    _note_once(f"on Ray: {why}" if why else "in this process" + ("" if ray is False else "; --ray: on Ray"))
    return why


_note_once = cache(note)


def several_encoders(job: RunFlags, units: int) -> str:
    """What asks for more than one encoder, or for what only Ray gives one: flags, GPUs, or so many units on so many
    processors."""
    import torch

    wanted = actor_range(job.actors)
    if wanted and wanted[1] > 1:
        return f"--actors {job.actors}"
    if job.gpus_per_actor is not None:
        return f"--gpus-per-actor {job.gpus_per_actor:g}"
    gpus = torch.cuda.device_count()
    if job.actors or gpus == 1:
        return ""
    if gpus:
        return f"{gpus} GPUs"
    encoders = (os.cpu_count() or 1) // CPUS_OF_ENCODER
    return f"{encoders} encoders for {units} units" if 1 < encoders <= units / UNITS_OF_ENCODER else ""


def prepare(request: Request, plan: Plan, *, ray: bool | None = None) -> Execute:
    """A `raycase.corpus.run.Prepare` by the rule. `ray`: the flag of a command around the job's."""
    if why_ray(request.job.ray if ray is None else ray, several_encoders(request.job, plan.units)):
        from raycase.distributed.embed import prepare_ray

        return prepare_ray(request, plan)
    return execute_here


def embed(job: EmbedJob) -> dict[str, Any]:
    """Run or resume the job by the rule, then index its output, or estimate it; returns what its last line says.

    Raises RequestError and WorkError.
    """
    began = time.time()
    if job.dry_run:
        return dry_run(job)
    result = run(check_embed(job), began, prepare=prepare)
    return result | {"index": _indexed(job.index, result["output"])} if job.index else result


def _indexed(index: str, output: str) -> str:
    """Index an output that is complete; returns where. Raises RequestError and WorkError."""
    from raycase.search.build import IndexJob, build

    try:
        return str(build(IndexJob(embeddings=(output,), output=index))["output"])
    except RequestError as error:
        said = str(error).replace("--output:", "--index:").replace("--embeddings:", "--output:")
        raise RequestError(f"{said}; the output is complete, and not indexed: {output}") from error


def score(job: ScoreJob) -> dict[str, Any]:
    """Score the pairs by the rule; returns what its last line says. Raises RequestError and WorkError."""
    began = time.time()
    return run(check_score(job), began, prepare=prepare)


def materialize(job: MaterializeJob) -> dict[str, Any]:
    """Pool stored words by the rule; returns counts. Raises RequestError and WorkError."""
    from raycase.search.materialize import materialize

    return materialize(job, tasks(job))


def search(job: SearchJob) -> dict[str, Any]:
    """Search an index, one of several shards by the rule; returns counts. Raises RequestError and WorkError."""
    from raycase.search.search_job import search

    several = f"--replicas {job.replicas}" if job.replicas > 1 else ""
    of_shards = several or ("" if job.shard_timeout is None else f"--shard-timeout {job.shard_timeout:g}")

    @cache
    def in_shards() -> Callable[[Index], Index]:
        from raycase.distributed.shards import InShards

        wait = {} if job.shard_timeout is None else {"wait": job.shard_timeout}
        return InShards(also_one=True, replicas=job.replicas, **wait)

    def shard(index: Index) -> Index:
        shards = index.metadata.shards
        is_on_ray = (job.ray or several or shards > 1) and why_ray(job.ray, several)
        if of_shards and (shards == 1 or not is_on_ray):
            raise RequestError(
                f"{of_shards}: expected an index in shards (raycase index --overwrite --shards N) and a cluster "
                f"(RAY_ADDRESS, --ray), got {shards} of {job.index} {'on Ray' if is_on_ray else 'in this process'}"
            )
        return in_shards()(index) if is_on_ray else index

    return search(job, shard)


def join(job: JoinJob) -> dict[str, Any]:
    """Join by the rule; returns counts. Raises RequestError and WorkError."""
    from raycase.search.join import join

    return join(job, tasks(job))


def tasks(job: MaterializeJob | JoinJob) -> OpenTasks:
    """What runs independent tasks by the rule."""

    def open_tasks(places: Places) -> Tasks:
        if why_ray(job.ray):
            from raycase.distributed.tasks import open_tasks

            return open_tasks(places, stall_timeout=job.stall_timeout)
        return open_here(places)

    return open_tasks


def dry_run(job: EmbedJob) -> dict[str, Any]:
    """`raycase.corpus.dry_run.dry_run`, measured where the job would run."""

    def measure(request: Request, rows: Any, units: int) -> MeasuredRate:
        if why_ray(job.ray, several_encoders(job, units)):
            from raycase.distributed.embed import measure_on_ray

            return measure_on_ray(request, rows, units)
        return encode_sample(rows, request.step, encoders=1, where="this machine")

    return estimate(job, measure)


def vectors(ray: bool | None) -> VectorCache:
    """What embeds the texts of an evaluation."""
    return VectorCache(partial(prepare, ray=ray))


def open_runner(ray: bool | None) -> Callable[..., Any]:
    """A `raycase.training.runner.OpenRunner` by the rule."""

    def open_by_rule(*, workers: int, gpus_per_worker: float | None, cache: Location) -> Any:
        if why_ray(ray, f"--workers {workers}" if workers > 1 else ""):
            from raycase.distributed.train import open_runner as open_on_ray

            return open_on_ray(workers=workers, gpus_per_worker=gpus_per_worker, cache=cache)
        from raycase.training.runner import open_local_runner

        return open_local_runner(workers=workers, gpus_per_worker=gpus_per_worker, cache=cache)

    return open_by_rule
