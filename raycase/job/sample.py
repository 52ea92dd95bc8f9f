"""A sample of a job's input, rows at the start of units from across it: by it the work of the job is estimated, and the
basis of stored tokens chosen."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError, visible
from raycase.io.reader import read_files
from raycase.io.schema import ROW_OF_PAIR, TEXT, parquet_bytes
from raycase.job.embed_job import SAMPLE
from raycase.job.encode_step import EncodeUnits, encode_rows
from raycase.job.pair_result import TokenResult
from raycase.job.plan import Plan, find_job_file, make_plan
from raycase.job.read_step import prepare_rows, read_intervals, text_rows
from raycase.job.request import Request
from raycase.job.runner import Runner

SAMPLES, SAMPLED_ROWS = 5, 400  # how many places, and rows of each
LEAST_TEXTS, SAMPLED_TEXTS = 300, 2000  # by which a basis is chosen; the sample of the package has the fewest
AT_ONCE, SECONDS = 50, 5.0  # rows of a batch of a dry run; after which no more are encoded


def sample_rows(request: Request, plan: Plan) -> tuple[pa.Table, int]:
    """The accepted rows of the sample among those that are left to do, and the number of rows read."""
    last = sum(1 for _ in plan.pieces()) - 1  # which may be too many for a list
    chosen = np.unique(np.linspace(0, last, SAMPLES).astype(int)).tolist()
    tables: list[pa.Table] = []
    sampled = 0
    for piece in (piece for i, piece in enumerate(plan.pieces()) if i in chosen):
        places = np.unique(np.linspace(0, len(piece.units) - 1, -(-SAMPLES // len(chosen))).astype(int))
        rows = tuple((start, min(end, start + SAMPLED_ROWS)) for start, end in (piece.units[i] for i in places))
        sampled += sum(end - start for start, end in rows)
        tables += [table for table, _ in read_intervals(replace(piece, units=rows), request.model, request.kind)]
    return pa.concat_tables(tables, promote_options="default"), sampled


def choose_basis(request: Request, plan: Plan) -> bytes | None:
    """The basis to put into the output; None if it is there. Raises RequestError where units were coded by one
    that is gone, and where the sample holds no text that can be embedded."""
    output = request.output
    if not request.flags.overwrite:
        if output.basis.exists():
            return None
        if len(plan.done):
            raise RequestError(
                f"--output: expected {output.basis.uri}, the basis of the units there, got none; pass --overwrite"
            )
    import torch  # which a job that resumes need not load

    from raycase.tokens.basis import fit_codes, typical_conditions

    dtype = request.flags.compute and getattr(torch, request.flags.compute)
    texts = text_rows(sample_rows(request, plan)[0], request.kind)[0][TEXT].to_pylist()
    model = request.model.load(dtype=dtype, batch_tokens=request.flags.batch_tokens)
    texts = texts[:: max(1, len(texts) // SAMPLED_TEXTS)][:SAMPLED_TEXTS]
    if 0 < len(texts) < LEAST_TEXTS:  # rows that come later are coded by the basis, too
        [(_, sample)] = read_files(SAMPLE, [TEXT], "--input")
        texts += sample[TEXT][: LEAST_TEXTS - len(texts)]
    tokens = model.keys_values(texts)
    if not tokens:
        raise RequestError("--input: expected texts to fit the basis of stored tokens, got none in the sample")
    typical = model.questions(typical_conditions())
    codes = fit_codes(model.head, tokens, typical, dim=model.dim, token_bytes=request.kind.token_bytes)
    return codes.to_bytes()


def dry_run(request: Request, runner: Runner) -> dict[str, Any]:
    """Remaining units, rows, pairs and tokens; the size of the output (bytes) and the time (seconds).

    Units and rows are exact; the others are extrapolated from the sampled rows, which are encoded where the job would
    run. Writes nothing. Raises RequestError and WorkError.
    """
    if isinstance(request.kind, TokenResult):  # no basis is chosen yet, and the time is the encoder's
        request = replace(request, kind=replace(request.kind, basis=None))
    plan = make_plan(request, *find_job_file(request))
    result: dict[str, Any] = {"dry_run": True, "units": plan.units, "rows": len(plan)}
    if plan:
        result |= _estimate(request, plan, runner)
    for name, value in list(result.items())[1:]:
        print(f"{name.replace('_', ' '):>18}  {visible(value) if isinstance(value, str) else format(value, ',')}")
    return result


def _estimate(request: Request, plan: Plan, runner: Runner) -> dict[str, Any]:
    rows, sampled = sample_rows(request, plan)
    if not len(rows):
        return {"sampled_rows": sampled, "pairs": 0, "tokens": 0, "output_bytes": 0}
    rows = rows.take(np.random.default_rng(0).permutation(len(rows)))
    job = request.flags
    encode = partial(encode_sample, step=request.step)
    [found] = runner.map(encode, [rows], unit="samples", stall_timeout=job.stall_timeout, encoder_of=(job, plan.units))
    scale = len(plan) * len(rows) / sampled / found["rows"]
    return {
        "sampled_rows": sampled,
        "pairs": round(found["pairs"] * scale),
        "tokens": round(found["tokens"] * scale),
        "output_bytes": round((found["bytes"] + found["tokens"] * request.kind.token_bytes) * scale),
        "actors": found["encoders"],
        "measured_on": found["where"],
        "tokens_per_second": round(found["tokens"] / found["seconds"] * found["encoders"]),
        "seconds": round(found["seconds"] * scale / found["encoders"]),
    }


def encode_sample(rows: pa.Table, *, step: dict[str, Any], threads: int | None, **of: Any) -> dict[str, Any]:
    """Encode some of the rows by a step with these arguments: rows, pairs and tokens as a job counts them, bytes of a
    file with the pairs, seconds; and `of`: `encoders` and `where`."""
    encode, config, kind = EncodeUnits(**step, threads=threads).encode, step["config"], step["kind"]
    at_once = max(1, AT_ONCE * len(rows) // max(1, len(text_rows(rows, kind)[0])))
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
    batches = [(part, prepare_rows(config, part, kind)) for part in parts]
    encode_rows(encode, *batches[0], kind)  # the first batch is slower
    began, written, tokens, count = time.perf_counter(), [], 0, 0
    for part, prepared in batches:
        encoded, _ = encode_rows(encode, part, prepared, kind)
        written.append(encoded["table"].drop_columns([ROW_OF_PAIR]))
        tokens, count = tokens + encoded["work"].tokens, count + len(part)
        if time.perf_counter() - began > SECONDS:
            break
    seconds = time.perf_counter() - began
    table = pa.concat_tables(written)
    size = len(parquet_bytes(table)) if len(table) else 0
    return {"rows": count, "pairs": len(table), "tokens": tokens, "bytes": size, "seconds": seconds, **of}
