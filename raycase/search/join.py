"""Exact nearest neighbours of every query: one task per part, then one task per group."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import tyro

from raycase.corpus.materialize import MaterializeJob, check_materialize
from raycase.corpus.ray_flag import RayFlag
from raycase.corpus.resume import run_files
from raycase.corpus.tasks import OpenTasks
from raycase.corpus.written import open_written
from raycase.data.claim import check_held
from raycase.data.conditions import conditions_file
from raycase.data.fetch import model_folder
from raycase.data.places import Folder, check_paths
from raycase.data.storage import fingerprint, locate
from raycase.errors import STALL_TIMEOUT, RequestError, at_least, check_ranges, minutes_range
from raycase.search.join_parts import (
    NEIGHBOURS,
    PARTS,
    POOLED,
    POOLED_RECORD,
    RECORD,
    Join,
    check_join,
    claim_output,
    claim_pooled,
    count_neighbours,
    cut_files,
    cut_finer,
    find_part,
    group_name,
    join_part_name,
    merge_parts,
)
from raycase.search.materialize import materialize

GROUP_ROWS, RANGE_ROWS = 16384, 2**20  # approximate maximum of queries per group and of vectors per range
TASKS_A_CPU = 4  # minimum, if there are enough files
PARTS_AT_ONCE = 2048  # of groups that are merged before others are begun


@dataclass(frozen=True, kw_only=True)
class JoinJob(RayFlag):
    """The exact k nearest neighbours, by cosine, of each query among all vectors under the same condition.

    Outputs of `raycase embed --any-condition` are joined under any --conditions. A job that was stopped resumes
    automatically when the same command is run again.
    """

    query_vectors: str
    """Output of `raycase embed` with the queries' vectors."""
    vectors: str
    """Output of `raycase embed`, of the same model, with the vectors to search; may be the same output."""
    output: str
    """Folder of the result: neighbours/*.parquet with id, condition (the query's), rank, neighbour, score."""
    query_condition: str | None = None
    """With --condition: join the queries' vectors under this condition with the vectors under that one, as DualCSE's
    implicit with its explicit. Default: each condition with itself."""
    condition: str | None = None
    """With --query-condition: the condition of the vectors that are searched."""
    conditions: tuple[str, ...] = ()
    """Conditions to pool both outputs under, from their stored words; or one .txt, .parquet or .csv file with them. The
    vectors are in OUTPUT/pooled until the join is done."""
    model: str | None = None
    """Folder of the model of these words, if it has moved."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """Number of neighbours."""
    exclude_same: str | None = None
    """Column (id, or a kept column): excludes vectors whose value in it equals the query's."""
    stall_timeout: float = STALL_TIMEOUT
    """Minutes without progress after which the job gives up, as when no machine is available."""
    overwrite: bool = False
    """Remove an earlier result in the folder first."""


def join(
    job: JoinJob, open_tasks: OpenTasks, *, group_rows: int = GROUP_ROWS, range_rows: int = RANGE_ROWS
) -> dict[str, Any]:
    """Search all neighbours; returns counts. Raises RequestError and WorkError."""
    check_ranges(job, at_least(1, job, "k") | {"stall_timeout": minutes_range(job.stall_timeout)})
    check_paths(
        reads={"--conditions": conditions_file(job.conditions)},
        opens={"--query-vectors": job.query_vectors, "--vectors": job.vectors, "--model": model_folder(job.model)},
        writes={"--output": Folder(job.output, (RECORD, NEIGHBOURS, PARTS, POOLED, POOLED_RECORD))},
    )
    if (job.query_condition is None) != (job.condition is None):
        raise RequestError("--query-condition: expected --condition beside it, got one of the two")
    under = None if job.query_condition is None or job.condition is None else (job.query_condition, job.condition)
    if job.conditions:
        if under:
            raise RequestError("--query-condition: expected vectors under conditions, got --conditions to pool under")
        return _join_pooled(job, open_tasks, group_rows, range_rows)
    if job.model:
        raise RequestError("--model: expected it beside --conditions, got none of them")
    return _join_vectors(job, open_tasks, under, group_rows, range_rows)


def _join_vectors(
    job: JoinJob, open_tasks: OpenTasks, under: tuple[str, str] | None, group_rows: int, range_rows: int
) -> dict[str, Any]:
    """Join the vectors of two outputs as they are."""
    began = time.time()
    queries, vectors = open_written(job.query_vectors, "--query-vectors"), open_written(job.vectors, "--vectors")
    check_join(queries, vectors, job.exclude_same, under)
    root = locate(job.output)
    tasks = open_tasks(
        [("--output", root), ("--query-vectors", queries.output.root), ("--vectors", vectors.output.root)]
    )
    task = Join(
        queries=queries.output.embeddings.uri,
        vectors=vectors.output.embeddings.uri,
        output=root.uri,
        k=job.k,
        exclude_same=job.exclude_same,
        schemas=(queries.schema, vectors.schema),
        under=under,
    )
    groups = cut_files(queries, group_rows)
    finer = math.ceil(TASKS_A_CPU * tasks.cpus / max(1, len(groups))) if tasks.cpus > 1 else 1
    ranges = cut_finer(cut_files(vectors, range_rows), finer)
    name, ranges = claim_output(task, queries, vectors, groups, ranges, overwrite=job.overwrite)

    def run(missing: list[int]) -> None:
        """Some groups at a time: parts are as large as what is found."""
        found, step = (root / PARTS).list(), max(1, PARTS_AT_ONCE // len(ranges))
        for wave in (missing[start : start + step] for start in range(0, len(missing), step)):
            parts = [
                {
                    "group": group,
                    "range_": i,
                    "query_files": queries.summed(groups[group]),
                    "vector_files": vectors.summed(files),
                }
                for group in wave
                for i, files in enumerate(ranges)
                if join_part_name(group, i) not in found
            ]
            tasks.run(partial(find_part, task), parts, "searched")
            merges = [{"group": group, "ranges": len(ranges)} for group in wave]
            tasks.run(partial(merge_parts, task), merges, "merged")

    by_name, held = {group_name(group): group for group in range(len(groups))}, partial(check_held, root, RECORD, name)
    run_files(root / NEIGHBOURS, by_name, run, held, root, "groups of queries")
    (root / PARTS).remove()
    counts = count_neighbours(task, queries)
    return counts | {"seconds": round(time.time() - began, 3), "output": root.uri}


def _join_pooled(job: JoinJob, open_tasks: OpenTasks, group_rows: int, range_rows: int) -> dict[str, Any]:
    """Pool both outputs, join them, and remove what was pooled."""
    began = time.time()
    root = locate(job.output)
    tasks = {
        flag: MaterializeJob(
            words=uri,
            conditions=job.conditions,
            output=(root / POOLED / fingerprint(locate(uri).uri)[:8]).uri,
            model=job.model,
            stall_timeout=job.stall_timeout,
            ray=job.ray,
        )
        for flag, uri in (("--query-vectors", job.query_vectors), ("--vectors", job.vectors))
    }
    (queries, conditions), (vectors, _) = (check_materialize(task, flag) for flag, task in tasks.items())
    check_join(queries, vectors, job.exclude_same)
    values = {"conditions": conditions, "k": job.k, "exclude_same": job.exclude_same}
    record = claim_pooled(root, queries, vectors, values, overwrite=job.overwrite)
    if "counts" not in record:
        for flag, task in tasks.items():  # the same output twice is pooled once: the second has nothing to do
            materialize(task, open_tasks, flag)
        plain = replace(job, query_vectors=tasks["--query-vectors"].output, vectors=tasks["--vectors"].output)
        plain = replace(plain, conditions=(), model=None, overwrite=False)
        counts = _join_vectors(plain, open_tasks, None, group_rows, range_rows)
        record["counts"] = {name: counts[name] for name in counts if name not in ("seconds", "output")}
        (root / POOLED_RECORD).put_json(record)
    (root / POOLED).remove()
    return record["counts"] | {"seconds": round(time.time() - began, 3), "output": root.uri}
