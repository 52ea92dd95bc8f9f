"""The dry run: estimates the work of a job from a sample of its input and a few encoded batches."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from raycase.corpus.encode_step import EncodeUnits, encode_rows
from raycase.corpus.job_record import Sharing, find_job
from raycase.corpus.plan import Plan, make_plan
from raycase.corpus.request import EmbedJob, Request, check
from raycase.corpus.sample import sample_rows
from raycase.corpus.unit_pairs import pairs_of, prepare_rows
from raycase.data.inputs import InputFile
from raycase.data.parquet import parquet_bytes
from raycase.data.reader import TEXT
from raycase.data.schema import ROW_OF_PAIR
from raycase.distributed.cluster import cause, start_ray
from raycase.distributed.ray_data import Sealed
from raycase.distributed.resources import Capacity, Pool, capacity, fits_a_node, make_pool
from raycase.errors import note, visible

MEASURED_ROWS, MEASURED_SECONDS = 50, 5.0


def dry_run(job: EmbedJob) -> dict[str, Any]:
    """Remaining units, rows, pairs, distinct pairs and tokens; the size of the output (bytes) and the time (seconds).

    Units and rows are exact; the others are extrapolated from the sampled rows. The rate is that of an encoder with the
    resources of the job's, where a live node has them; else that of this machine, and `measured_on` says so. Writes
    nothing. Raises RequestError and WorkError.
    """
    request = check(job)
    if job.any_condition:  # the basis is not chosen yet: the words' size is known, and their time is the encoder's
        request = replace(request, model=replace(request.model, basis=None))
    sharing = Sharing(rows=request.unit_rows)
    known, done = find_job(request.output, request.config, request.files, overwrite=job.overwrite, sharing=sharing)
    plan = make_plan(request, known.files, done, known.sharing)
    result: dict[str, Any] = {"dry_run": True, "units": plan.units, "rows": plan.missing}
    if plan.missing:
        result |= _scaled(request, plan, known.files, request.job.word_bytes or 0)
    for name, value in list(result.items())[1:]:
        print(f"{name.replace('_', ' '):>18}  {visible(value) if isinstance(value, str) else format(value, ',')}")
    return result


def _scaled(request: Request, plan: Plan, files: list[InputFile], word_bytes: int) -> dict[str, Any]:
    rows, sampled = sample_rows(request.columns, plan, files)
    if not len(rows):
        return {"sampled_rows": sampled, "pairs": 0, "distinct_pairs": 0, "tokens": 0, "output_bytes": 0}
    row_of_pair, conditions = pairs_of(rows, request.encode_settings)
    texts = [rows[TEXT][int(row)].as_py() for row in row_of_pair]
    distinct = list(dict.fromkeys(zip(texts, conditions or [""] * len(texts), strict=True)))
    sentences, under = (list(column) for column in zip(*distinct, strict=True))
    tokens = int(request.model.count_tokens(sentences, None if conditions is None else under).sum())
    start_ray()
    cluster = capacity()
    pool = make_pool(request.job, plan.units, cluster)
    tokens_per_second, bytes_per_pair, measured_on = _measured(request, rows, pool, cluster)
    scale = plan.missing / sampled
    return {
        "sampled_rows": sampled,
        "pairs": round(len(texts) * scale),
        "distinct_pairs": round(len(distinct) * scale),
        "tokens": round(tokens * scale),
        "output_bytes": round(len(texts) * scale * bytes_per_pair + tokens * scale * word_bytes),
        "actors": pool.most,
        "measured_on": measured_on,
        "tokens_per_second": round(tokens_per_second * pool.most),
        "seconds": round(tokens * scale / max(1.0, tokens_per_second * pool.most)),
    }


def _measured(request: Request, rows: pa.Table, pool: Pool, cluster: Capacity) -> tuple[float, float, str]:
    """Tokens per second of one encoder, bytes of output per pair, and where that was measured."""
    step = {
        "config": Sealed(request.model),
        "settings": request.encode_settings,
        "weights": request.config["model"]["weights"],
        "threads": pool.threads,
        "batch_tokens": request.job.batch_tokens,
        "compute": request.job.compute,
        "compile": request.job.compile,
    }
    here = not pool.gpus and len(cluster.alive) == 1
    if here or not fits_a_node(pool, cluster):
        found = measure(rows, MEASURED_ROWS, **step | {"config": request.model})
        return *found, "this machine" if here else f"this machine alone: no live node has {pool.each}"
    task = ray.remote(measure).options(num_cpus=pool.cpus, num_gpus=pool.gpus)
    note(f"measuring on a worker with {pool.each}, once one is free")
    try:
        found = ray.get(task.remote(rows, len(rows) if pool.gpus else MEASURED_ROWS, **step))
    except RayError as error:
        raise cause(error) from error
    return *found, f"a worker with {pool.each}"


def measure(rows: pa.Table, at_once: int, **step: Any) -> tuple[float, float]:
    """Tokens per second of one encoder, `at_once` rows in a batch, and bytes of output per pair."""
    actor = EncodeUnits(**step)
    config, settings, encoder = step["config"], step["settings"], actor.encoder
    batches = [rows.slice(start, at_once) for start in range(0, len(rows), at_once)]
    prepared = [prepare_rows(config, part, settings) for part in batches]
    encode_rows(encoder, batches[0], prepared[0], settings)  # the first batch is slower
    tokens, began = 0, time.perf_counter()
    written: list[pa.Table] = []
    for part, ready in zip(batches, prepared, strict=True):
        encoded = encode_rows(encoder, part, ready, settings)
        tokens += encoded.work.tokens
        written.append(encoded.table.drop_columns([ROW_OF_PAIR]))
        if time.perf_counter() - began > MEASURED_SECONDS:
            break
    rate = tokens / (time.perf_counter() - began)
    table = pa.concat_tables(written)
    return rate, len(parquet_bytes(table)) / max(1, len(table))
