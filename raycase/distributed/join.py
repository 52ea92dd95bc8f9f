"""Exact nearest neighbours of every query among all vectors, as a Ray Data job: block-wise top k, then a merge.

The queries are cut into groups and the vectors into ranges. A task looks for the neighbours of one group in one range
and puts them into `parts/`; another merges the parts of a group into `neighbours/`. What is there is not done again.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
import tyro
from ray.data import TaskPoolStrategy
from torch import Tensor

from raycase.corpus.written import Written, open_written
from raycase.data.parquet import parquet_bytes
from raycase.data.schema import CONDITION, EMBEDDING, ID
from raycase.data.storage import Location, check_paths, fingerprint, locate
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.ray_data import run_tasks
from raycase.errors import RequestError, WorkError
from raycase.search.topk import l2_normalize, merge_top_k, top_k

NEIGHBOUR, RANK, SCORE = "neighbour", "rank", "score"
PLACE = "place"  # of a query in its group
GROUP_ROWS, RANGE_ROWS = 16384, 2**20  # queries of a group, vectors of a range, at most about so many
TASKS_A_CPU = 4  # at least, where there is enough to share out
TASKS_AT_ONCE = 2048  # that Ray is given


@dataclass(frozen=True, kw_only=True)
class JoinJob:
    """The k nearest neighbours, by cosine, of each query among all vectors under the same condition; exact.

    A job that was stopped goes on when the same command is given again.
    """

    queries: str
    """Output of jobs/embed.py with the queries' vectors."""
    vectors: str
    """Output of jobs/embed.py, of the same model, to find neighbours in; may be the same."""
    output: str
    """Folder of the result: neighbours/*.parquet with id, condition, rank, neighbour, score."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """How many neighbours."""
    exclude_same: str | None = None
    """A column (id, or a kept one): neighbours that have the query's own value in it are left out."""
    overwrite: bool = False
    """Remove an earlier result in the folder first."""


def join(job: JoinJob) -> dict[str, Any]:
    """Find all neighbours; returns counts. Raises RequestError and WorkError."""
    began = time.time()
    if job.k < 1:
        raise RequestError(f"-k: expected at least 1, got {job.k}")
    check_paths({"--queries": job.queries, "--vectors": job.vectors, "--output": job.output})
    queries, vectors = open_written(job.queries, "--queries"), open_written(job.vectors, "--vectors")
    _check(queries, vectors, job)
    root = locate(job.output)
    start_ray()
    alive = nodes()
    if root.is_local and len(alive) > 1:
        raise RequestError(f"--output: expected object storage on a cluster of {len(alive)} nodes, got {root.uri}")
    cpus = int(sum(node.get("CPU", 0) for node in alive))
    groups, ranges = _cut(queries, GROUP_ROWS), _cut(vectors, RANGE_ROWS)
    ranges = _enough(ranges, math.ceil(TASKS_A_CPU * cpus / max(1, len(groups))))
    _open(root, job, queries, vectors, groups, ranges)
    find = partial(
        find_part,
        queries=queries.output.embeddings.uri,
        vectors=vectors.output.embeddings.uri,
        parts=(root / "parts").uri,
        k=job.k,
        exclude=job.exclude_same,
    )
    merge = partial(
        merge_parts, parts=(root / "parts").uri, output=(root / "neighbours").uri, ranges=len(ranges), k=job.k
    )
    done, there = (root / "neighbours").list(), (root / "parts").list()
    todo = [g for g in range(len(groups)) if _group_name(g) not in done]
    wave = max(1, TASKS_AT_ONCE // len(ranges))
    for some in (todo[start : start + wave] for start in range(0, len(todo), wave)):
        cut = [(g, r) for g in some for r in range(len(ranges)) if _part_name(g, r) not in there]
        tasks = [{"group": g, "range": r, "queries": groups[g], "vectors": ranges[r]} for g, r in cut]
        run_tasks(tasks, find, progress="searched", num_cpus=1, compute=TaskPoolStrategy())
        run_tasks([{"group": g} for g in some], merge, progress="merged", num_cpus=1, compute=TaskPoolStrategy())
    (root / "parts").remove()
    return _account(root, queries, len(groups), began)


def _cut(written: Written, rows: int) -> list[list[str]]:
    """File names in groups of about so many rows (pairs), in order."""
    groups: list[list[str]] = []
    held = rows
    pairs = len(written.job.config["conditions"] or "a")
    for file in written.units:
        if file.rows_out:
            if held + file.rows_out * pairs > rows:
                groups.append([])
                held = 0
            groups[-1].append(file.name(written.job.print8))
            held += file.rows_out * pairs
    return groups


def _check(queries: Written, vectors: Written, job: JoinJob) -> None:
    ours, theirs = queries.job.config, vectors.job.config
    if fingerprint(ours["model"]) != fingerprint(theirs["model"]):
        raise RequestError(
            "--vectors: expected vectors of the queries' model, got another's; embed them with one model"
        )
    if queries.unconditional != vectors.unconditional:
        raise RequestError("--vectors: expected both under conditions or both without, got one of each")
    missing = set(ours["conditions"] or ()) - set(theirs["conditions"] or ours["conditions"] or ())
    if missing:
        raise RequestError(f"--vectors: expected every condition of the queries, got no {sorted(missing)[0]!r}")
    for flag, written in (("--queries", queries), ("--vectors", vectors)):
        if not written.names:
            raise RequestError(f"{flag}: expected vectors in {written.output.root.uri}, got none")
        columns = [ID, *written.job.config["keep_columns"]]
        if job.exclude_same and job.exclude_same not in columns:
            raise RequestError(f"--exclude-same: expected one of {', '.join(columns)}, got {job.exclude_same!r}")
    types = [str(w.schema().field(job.exclude_same).type) for w in (queries, vectors) if job.exclude_same]
    if len(set(types)) > 1:
        raise RequestError(
            f"--exclude-same: expected {job.exclude_same!r} of one type in both, got {' and '.join(types)}"
        )


def _enough(ranges: list[list[str]], wanted: int) -> list[list[str]]:
    """More ranges where there are too few tasks for the cluster, down to one a file."""
    files = [name for some in ranges for name in some]
    count = min(len(files), max(len(ranges), wanted))
    return [list(some) for some in np.array_split(np.array(files), count)] if count > len(ranges) else ranges


def _open(
    root: Location, job: JoinJob, queries: Written, vectors: Written, groups: list[list[str]], ranges: list[list[str]]
) -> None:
    """Claim the folder. Raises RequestError where it holds something else."""
    manifests = [w.output.manifest.read_json()["manifest_files_sha256"] for w in (queries, vectors)]
    name = fingerprint([manifests, groups, job.k, job.exclude_same])
    mark = root / "join.json"
    if job.overwrite and mark.exists():
        for part in (root / "neighbours", root / "parts", mark):
            part.remove()
    if mark.exists():
        found = mark.read_json()
        if found["fingerprint"] != name:
            raise RequestError(f"--output: expected this very join in {root.uri}, got another; pass --overwrite")
        ranges[:] = found["ranges"]  # the cluster may have had another size
        return
    if root.exists() and (root.list() or (root / "neighbours").list()):
        raise RequestError(f"--output: expected an empty folder, got other files in {root.uri}")
    mark.put_json({"fingerprint": name, "ranges": ranges})


def find_part(task: pa.Table, *, queries: str, vectors: str, parts: str, k: int, exclude: str | None) -> pa.Table:
    """The neighbours of one group of queries in one range of vectors, put into a file of `parts`."""
    asked = json.loads(task["task"][0].as_py())
    torch.set_num_threads(1)
    columns = list(dict.fromkeys(filter(None, (ID, CONDITION, EMBEDDING, exclude))))
    rows = pa.concat_tables(_files(queries, asked["queries"], columns))
    unit_ND = _unit(rows)
    under = _by_condition(rows)
    values = rows[exclude].combine_chunks().unique() if exclude else None
    own_N = _groups(rows, exclude, values, -1)
    best: dict[str | None, tuple[np.ndarray, np.ndarray]] = {}
    ids: list[pa.Array] = []
    start = 0
    for file in _files(vectors, asked["vectors"], columns):
        file_ND, groups_N = _unit(file), _groups(file, exclude, values, -2)
        for condition, found in _by_condition(file).items():
            if condition in under:
                asking = under[condition]
                scores, places = top_k(
                    unit_ND[asking], [file_ND[found]], k, query_groups=own_N[asking], groups=groups_N[found]
                )
                places = np.append(start + found.numpy(), -1)[places]
                best[condition] = merge_top_k([*filter(None, [best.get(condition)]), (scores, places)])
        ids += file[ID].chunks
        start += len(file)
    every = pa.chunked_array(ids)
    tables = [_part(rows, every, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    for condition, (scores, places) in best.items():
        query_H, rank_H = (places >= 0).nonzero()
        own = under[condition].numpy()[query_H]
        tables.append(_part(rows, every, own, places[query_H, rank_H], scores[query_H, rank_H]))
    (locate(parts) / _part_name(asked["group"], asked["range"])).put(parquet_bytes(pa.concat_tables(tables)))
    return pa.table({"done": [True]})


def _part(
    rows: pa.Table, ids: pa.ChunkedArray, query_H: np.ndarray, place_H: np.ndarray, score_H: np.ndarray
) -> pa.Table:
    """A line for each of H neighbours: the query's place in its group, its id and condition, the neighbour."""
    return pa.table(
        {
            PLACE: query_H,
            ID: rows[ID].take(query_H),
            CONDITION: rows[CONDITION].take(query_H),
            NEIGHBOUR: ids.take(place_H),
            SCORE: score_H,
        }
    )


def merge_parts(task: pa.Table, *, parts: str, output: str, ranges: int, k: int) -> pa.Table:
    """The best k of each query of a group, over all ranges; of equal scores the earlier vector."""
    group = json.loads(task["task"][0].as_py())["group"]
    best: pa.Table | None = None
    for part in _files(parts, [_part_name(group, r) for r in range(ranges)]):
        rows = part if best is None else pa.concat_tables([best, part])
        place_N = rows[PLACE].to_numpy()
        order = np.lexsort((-rows[SCORE].to_numpy(), place_N))  # stable: parts are in the order of the vectors
        rank_N = np.arange(len(order)) - np.searchsorted(place_N[order], place_N[order])
        best, ranks = rows.take(order[rank_N < k]), rank_N[rank_N < k] + 1
    assert best is not None, "there is a range"
    best = best.drop_columns([PLACE]).add_column(2, RANK, pa.array(ranks, pa.int32()))
    (locate(output) / _group_name(group)).put(parquet_bytes(best))
    return pa.table({"done": [True]})


def _files(folder: str, names: Sequence[str], columns: list[str] | None = None) -> Iterator[pa.Table]:
    for name in names:
        yield pq.read_table(io.BytesIO((locate(folder) / name).read()), columns=columns)


def _unit(rows: pa.Table) -> Tensor:
    """(N, D) float32."""
    vectors = rows[EMBEDDING].combine_chunks()
    return torch.from_numpy(l2_normalize(vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)))


def _by_condition(rows: pa.Table) -> dict[str | None, Tensor]:
    """The rows under each condition, int64."""
    codes = rows[CONDITION].combine_chunks().dictionary_encode(null_encoding="encode")
    code_N = torch.from_numpy(codes.indices.to_numpy().copy())
    return {name: (code_N == i).nonzero()[:, 0] for i, name in enumerate(codes.dictionary.to_pylist())}


def _groups(rows: pa.Table, column: str | None, values: pa.Array, none: int) -> Tensor:
    """The place of each row's value among the queries' values, or `none`, int64."""
    if column is None:
        return torch.full((len(rows),), none)
    codes = pc.index_in(rows[column], values, skip_nulls=True)
    return torch.from_numpy(pc.fill_null(codes, none).combine_chunks().to_numpy().astype(np.int64))


def _part_name(group: int, range_: int) -> str:
    return f"{group:06d}-{range_:06d}.parquet"


def _group_name(group: int) -> str:
    return f"{group:06d}.parquet"


def _account(root: Location, queries: Written, groups: int, began: float) -> dict[str, Any]:
    """Counts over the whole result. Raises WorkError where a group is missing."""
    found = root / "neighbours"
    missing = groups - len(found.list())
    if missing:
        raise WorkError(f"{root.uri}: {missing} of {groups} groups of queries are missing; the same command goes on")
    rows = ds.dataset(found.path, filesystem=found.fs, format="parquet")
    pairs = queries.output.manifest.read_json()["pairs"]
    answered = rows.count_rows(filter=ds.field(RANK) == 1)
    return {
        "queries": pairs,
        "queries_without_neighbours": pairs - answered,
        "neighbours": rows.count_rows(),
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }
