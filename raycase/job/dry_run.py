"""The dry run: estimates the work of a job from a sample of its input, of which some rows are encoded."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import visible
from raycase.io.schema import ROW_OF_PAIR, parquet_bytes
from raycase.io.source import InputFile
from raycase.job.documents import as_texts
from raycase.job.encode_step import EncodeUnits, encode_rows
from raycase.job.plan import Plan, make_plan
from raycase.job.read_step import prepare_rows
from raycase.job.request import EmbedJob, Request, check_embed
from raycase.job.runner import Runner
from raycase.job.sample import sample_rows

AT_ONCE, SECONDS = 50, 5.0  # rows of a batch; after which no more are encoded


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """What one of `encoders` did with some rows: tokens as a job counts them, and bytes of a file with the pairs."""

    rows: int
    pairs: int
    tokens: int
    bytes: int
    seconds: float
    encoders: int
    where: str


def dry_run(job: EmbedJob, runner: Runner) -> dict[str, Any]:
    """Remaining units, rows, pairs and tokens; the size of the output (bytes) and the time (seconds).

    Units and rows are exact; the others are extrapolated from the sampled rows, which are encoded where the job would
    run. Writes nothing. Raises RequestError and WorkError.
    """
    request = check_embed(job)
    if request.kind.token_bytes:  # no basis is chosen yet: the words' size is known, and their time is the encoder's
        request = replace(request, model=replace(request.model, basis=None))
    known, done = request.find_job()
    plan = make_plan(request, known.files, done, known.sharing)
    result: dict[str, Any] = {"dry_run": True, "units": plan.units, "rows": len(plan)}
    if plan:
        result |= _scaled(request, plan, known.files, runner)
    for name, value in list(result.items())[1:]:
        print(f"{name.replace('_', ' '):>18}  {visible(value) if isinstance(value, str) else format(value, ',')}")
    return result


def _scaled(request: Request, plan: Plan, files: list[InputFile], runner: Runner) -> dict[str, Any]:
    rows, sampled = sample_rows(request, plan, files)
    if not len(rows):
        return {"sampled_rows": sampled, "pairs": 0, "tokens": 0, "output_bytes": 0}
    rows = rows.take(np.random.default_rng(0).permutation(len(rows)))
    job = request.job
    encode = partial(encode_sample, step=request.step)
    [found] = runner.map(encode, [rows], unit="samples", stall_timeout=job.stall_timeout, encoder_of=(job, plan.units))
    scale = len(plan) * len(rows) / sampled / found.rows
    return {
        "sampled_rows": sampled,
        "pairs": round(found.pairs * scale),
        "tokens": round(found.tokens * scale),
        "output_bytes": round((found.bytes + found.tokens * request.kind.token_bytes) * scale),
        "actors": found.encoders,
        "measured_on": found.where,
        "tokens_per_second": round(found.tokens / found.seconds * found.encoders),
        "seconds": round(found.seconds * scale / found.encoders),
    }


def encode_sample(rows: pa.Table, *, step: dict[str, Any], threads: int | None, **of: Any) -> MeasuredRate:
    """Encode some of the rows by a step with these arguments; `of`: `encoders` and `where`."""
    encoder, config, kind = EncodeUnits(**step, threads=threads).encoder, step["config"], step["kind"]
    at_once = max(1, AT_ONCE * len(rows) // max(1, len(as_texts(rows, kind)[0])))
    batches = [
        (part := rows[start : start + at_once], prepare_rows(config, part, kind))
        for start in range(0, len(rows), at_once)
    ]
    encode_rows(encoder, *batches[0], kind)  # the first batch is slower
    began, written, tokens, count = time.perf_counter(), [], 0, 0
    for part, prepared in batches:
        encoded = encode_rows(encoder, part, prepared, kind)
        written.append(encoded.table.drop_columns([ROW_OF_PAIR]))
        tokens, count = tokens + encoded.work.tokens, count + len(part)
        if time.perf_counter() - began > SECONDS:
            break
    seconds = time.perf_counter() - began
    table = pa.concat_tables(written)
    size = len(parquet_bytes(table)) if len(table) else 0
    return MeasuredRate(rows=count, pairs=len(table), tokens=tokens, bytes=size, seconds=seconds, **of)
