"""Re-ranking the answers to a file of queries, as a Ray Data job: actors with one scorer each, a file for some queries.

What is in `answers/` is not scored again, so a job that was stopped goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import ray
import tyro
from ray.data import ActorPoolStrategy

from raycase.data.inputs import InputFile, find_input, readable
from raycase.data.parquet import parquet_bytes
from raycase.data.storage import Location, check_paths, fingerprint, locate
from raycase.distributed.cluster import start_ray
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import Pool, capacity, check_nodes, make_pool
from raycase.errors import RequestError, WorkError
from raycase.search.metadata import ASKED, QUERY, RANK, SCORE
from raycase.search.queries import TEXT, read_queries
from raycase.search.rescore import check_answers, find_scorer, rerank

ROWS_OF_UNIT = 4096  # answers, at least; all those to a query stay together


@dataclass(frozen=True, kw_only=True)
class RerankJob:
    """Score the answers of a search again by a model that reads query and answer together, and keep the best.

    A job that was stopped goes on when the same command is given again.
    """

    answers: str
    """What jobs/search.py --queries wrote: a .parquet file, or a folder of them."""
    queries: str
    """The file of queries that they are answers to."""
    model: str
    """Folder of mixsp or cross-encoder, here or on object storage."""
    output: str
    """Folder of the result: answers/*.parquet with the columns of the answers, and `cosine`, the search's score."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """How many answers of each query are kept."""
    text_column: str = TEXT
    """The column of the answers that is read."""
    actors: str | None = None
    """Scorers at work, MIN:MAX. Default: one a GPU, else one for four CPUs."""
    gpus_per_actor: float | None = None
    """Default: 1 if the cluster has GPUs, else 0."""
    overwrite: bool = False
    """Remove an earlier result in the folder first."""


def rerank_all(job: RerankJob) -> dict[str, Any]:
    """Score and keep; returns counts. Raises RequestError and WorkError."""
    began = time.time()
    if job.k < 1:
        raise RequestError(f"-k: expected at least 1, got {job.k}")
    check_paths({"--answers": job.answers, "--queries": job.queries, "--output": job.output})
    sentences, _ = read_queries(job.queries)
    files = find_input(job.answers, "--answers")
    units = [unit for file in files for unit in _units(file, job.text_column, len(sentences))]
    conditional = not any(unit["unconditional"] for unit in units)
    config = find_scorer(job.model, conditional=conditional, flag="--model")
    root = locate(job.output)
    start_ray()
    cluster = capacity()
    for flag, at in (("--output", root), ("--answers", locate(job.answers))):
        check_nodes(at, cluster, flag)
    _open(root, job, files, config.describe())
    folder = root / "answers"
    done = folder.list()
    todo = [i for i in range(len(units)) if _name(i) not in done]
    if todo:
        pool = make_pool(job, len(todo), cluster)
        _run(job, config, [{**units[i], "name": _name(i)} for i in todo], sentences, folder, pool)
    missing = len(units) - len(folder.list())
    if missing:
        raise WorkError(f"{root.uri}: {missing} of {len(units)} units are missing; the same command goes on")
    kept, scored = 0, 0
    if units:
        answers = ds.dataset(folder.path, filesystem=folder.fs, format="parquet")
        kept, scored = answers.count_rows(), answers.count_rows(filter=ds.field(SCORE).is_valid())
    return {
        "queries": len(sentences),
        "answers_in": sum(unit["stop"] - unit["start"] for unit in units),
        "answers_out": kept,
        "answers_unscored": kept - scored,
        "units_done": len(todo),
        "units_resumed": len(units) - len(todo),
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _units(file: InputFile, text: str, queries: int) -> list[dict[str, Any]]:
    """Rows of a file, cut where a query ends. Raises RequestError for a file that is no answers to the queries."""
    if file.ending != ".parquet":
        raise RequestError(f"--answers: expected a .parquet file, got {file.uri}; see jobs/search.py --output")
    with readable(file) as source, source.fs.open(source.path, "rb") as handle:
        names = pq.read_schema(handle).names
        for name in (QUERY, ASKED, RANK, SCORE):
            if name not in names:
                raise RequestError(f"--answers: {file.uri}: expected the column {name!r}, got {', '.join(names)}")
        check_answers(names, text, file.uri)
        keys = pq.read_table(handle, columns=[QUERY, ASKED])
    query_N = keys[QUERY].to_numpy()
    if len(query_N) and not 0 <= query_N.min() <= query_N.max() < queries:
        raise RequestError(
            f"--queries: expected the queries that {file.uri} has answers to, up to {query_N.max() + 1}, got {queries}"
        )
    ends = np.append(np.flatnonzero(np.diff(query_N)) + 1, len(query_N))
    if len(np.unique(query_N)) < len(ends) - (not len(query_N)):
        raise RequestError(f"--answers: {file.uri}: expected the answers to each query together, got them apart")
    units, start = [], 0
    for end in ends.tolist():
        if end - start >= ROWS_OF_UNIT or (end == len(query_N) and end > start):
            unconditional = pc.any(pc.is_null(keys[ASKED][start:end])).as_py()
            units.append({"file": file.uri, "start": start, "stop": end, "unconditional": unconditional})
            start = end
    return units


def _open(root: Location, job: RerankJob, files: Sequence[InputFile], model: dict[str, Any]) -> None:
    """Claim the folder. Raises RequestError where it holds something else."""
    marks = [[file.uri, file.size, file.mark] for file in (*files, *find_input(job.queries, "--queries"))]
    name = fingerprint([model, marks, job.k, job.text_column])
    mark = root / "rerank.json"
    if job.overwrite and mark.exists():
        for part in (root / "answers", mark):
            part.remove()
    if mark.exists():
        if mark.read_json()["fingerprint"] != name:
            raise RequestError(f"--output: expected this very job in {root.uri}, got another; pass --overwrite")
        return
    if root.exists() and (root.list() or (root / "answers").list()):
        raise RequestError(f"--output: expected an empty folder, got other files in {root.uri}")
    mark.put_json({"fingerprint": name})


def _run(
    job: RerankJob,
    config: Any,
    units: Sequence[dict[str, Any]],
    sentences: Sequence[str],
    folder: Location,
    pool: Pool,
) -> None:
    """Every unit by one of the actors."""
    run_tasks(
        units,
        RerankUnits,
        progress="re-ranked units:",
        fn_constructor_kwargs={
            "config": config,
            "sentences": ray.put(list(sentences)),
            "text": job.text_column,
            "k": job.k,
            "folder": folder.uri,
            "threads": pool.threads,
        },
        compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.most),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )


class RerankUnits:
    """Some answers -> the best of them, put into a file. Holds one scorer."""

    def __init__(self, *, config: Any, sentences: Any, text: str, k: int, folder: str, threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self.scorer = config.load()
        self.sentences = ray.get(sentences)
        self.text, self.k, self.folder = text, k, locate(folder)

    def __call__(self, task: pa.Table) -> pa.Table:
        asked = json.loads(task["task"][0].as_py())
        answers = _read(locate(asked["file"]), asked["start"], asked["stop"])
        best = rerank(answers, self.sentences, self.scorer, text=self.text, k=self.k)
        (self.folder / asked["name"]).put(parquet_bytes(best))
        return pa.table({"answers": [len(best)]})


def _read(source: Location, start: int, stop: int) -> pa.Table:
    """Some rows, of the row groups that hold them."""
    with source.fs.open(source.path, "rb") as handle:
        file = pq.ParquetFile(handle)
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(rows)
        groups = [i for i, end in enumerate(ends) if end > start and end - rows[i] < stop]
        return file.read_row_groups(groups).slice(start - int(ends[groups[0]] - rows[groups[0]]), stop - start)


def _name(unit: int) -> str:
    return f"{unit:06d}.parquet"
