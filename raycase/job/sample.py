"""A sample of a job's input from across it: by it a job's work is estimated, and the basis of stored tokens chosen."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.io.reader import read_files
from raycase.io.schema import OF_PAIRS, TEXT, parquet_bytes
from raycase.io.storage import PACKAGE
from raycase.job.plan import Plan, find_job_file, make_plan
from raycase.job.request import Request
from raycase.job.results import Encoding, TokenResult, VectorResult, accepted
from raycase.job.runner import Runner
from raycase.job.steps import EncodeUnits, encode_rows, prepare_rows, read_rows_of, text_rows

if TYPE_CHECKING:
    from raycase.models.condition_pooling import ConditionPooling

SENTENCES = PACKAGE + "sample/sentences.csv"  # that ship
SAMPLES, SAMPLED_ROWS = 5, 400  # how many places, and rows of each
LEAST_TEXTS, SAMPLED_TEXTS = 300, 2000  # by which a basis is chosen; the sample of the package has the fewest
AT_ONCE, SECONDS = 50, 5.0  # rows of a batch of a dry run; after which no more are encoded


def sample_rows(request: Request, plan: Plan) -> tuple[pa.Table, int]:
    """The accepted rows of the sample among those that are left to do, and the number of rows read."""
    last = sum(1 for _ in plan.spans_left()) - 1  # which may be too many for a list
    chosen = np.unique(np.linspace(0, last, SAMPLES).astype(int)).tolist()
    tables: list[pa.Table] = []
    sampled = 0
    for span in (span for i, span in enumerate(plan.spans_left()) if i in chosen):
        places = np.unique(np.linspace(0, len(span.units) - 1, -(-SAMPLES // len(chosen))).astype(int))
        rows = tuple((start, min(end, start + SAMPLED_ROWS)) for start, end in (span.units[i] for i in places))
        sampled += sum(end - start for start, end in rows)
        tables += [table for table, _ in read_rows_of(replace(span, units=rows), request.encoding)]
    return pa.concat_tables(tables, promote_options="default"), sampled


def choose_basis(request: Request, plan: Plan, token_bytes: int) -> bytes | None:
    """The basis to put into the output; None if it is there."""
    output, of = request.output, request.encoding
    if not request.overwrite:
        if output.basis.exists():
            return None
        if len(plan.done):
            raise RequestError(
                f"--output: expected {output.basis.uri}, the basis of the units there, got none; pass --overwrite"
            )
    import torch  # which a job that resumes need not load

    from raycase.tokens.basis import fit_codes, typical_conditions

    texts = text_rows(sample_rows(request, plan)[0], of.pairs)[0][TEXT].to_pylist()
    loaded = of.model.load(dtype=of.compute and getattr(torch, of.compute), batch_tokens=of.batch_tokens)
    model = cast("ConditionPooling", loaded)
    texts = texts[:: max(1, len(texts) // SAMPLED_TEXTS)][:SAMPLED_TEXTS]
    if 0 < len(texts) < LEAST_TEXTS:  # rows that come later are coded by the basis, too
        [(_, sample)] = read_files(SENTENCES, [TEXT], "--input")
        texts += sample[TEXT][: LEAST_TEXTS - len(texts)]
    tokens = model.keys_values(texts)
    if not tokens:
        raise RequestError("--input: expected texts to fit the basis of stored tokens, got none in the sample")
    typical = model.questions(typical_conditions())
    return fit_codes(model.head, tokens, typical, dim=model.dim, token_bytes=token_bytes).to_bytes()


def dry_run(request: Request, runner: Runner) -> dict[str, Any]:
    """Units and rows left, exact; pairs, tokens, bytes and seconds by encoding a sample where the job would run."""
    plan = make_plan(request, *find_job_file(request))
    exact = {"dry_run": True, "units": plan.units, "rows": len(plan)}
    if not plan:
        return exact
    rows, sampled = sample_rows(request, plan)
    if not len(rows):
        return exact | {"sampled_rows": sampled, "pairs": 0, "tokens": 0, "output_bytes": 0}
    rows = rows.take(np.random.default_rng(0).permutation(len(rows)))
    encoding, result, token_bytes = request.encoding, request.encoding.result, 0
    if isinstance(result, TokenResult):  # no basis is chosen yet, and the time is the encoder's
        encoding, token_bytes = replace(encoding, result=VectorResult(dtype=result.dtype)), result.token_bytes
    encode = partial(encode_sample, encoding=encoding, weights=request.config["model"]["weights"])
    how: dict[str, Any] = {"stall_timeout": request.actors.stall_timeout, "encoder_of": (request.actors, plan.units)}
    [found] = runner.map(encode, [rows], unit="samples", **how)
    scale = len(plan) * len(rows) / sampled / found["rows"]
    return exact | {
        "sampled_rows": sampled,
        "pairs": round(found["pairs"] * scale),
        "tokens": round(found["tokens"] * scale),
        "output_bytes": round((found["bytes"] + found["tokens"] * token_bytes) * scale),
        "actors": found["encoders"],
        "measured_on": found["where"],
        "tokens_per_second": round(found["tokens"] / found["seconds"] * found["encoders"]),
        "seconds": round(found["seconds"] * scale / found["encoders"]),
    }


def encode_sample(
    rows: pa.Table, *, encoding: Encoding, weights: str, threads: int | None, **of: Any
) -> dict[str, Any]:
    """Rows, pairs and tokens as a job counts them, bytes and seconds of some rows; and `of`: `encoders` and `where`."""
    system = EncodeUnits(encoding, weights=weights, threads=threads).system
    at_once = max(1, AT_ONCE * len(rows) // max(1, len(text_rows(rows, encoding.pairs)[0])))
    batches = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
    prepared = [prepare_rows(batch, encoding) for batch in batches]
    encode_rows(system, encoding, batches[0], prepared[0])  # the first batch is slower
    began, written, tokens, count = time.perf_counter(), [], 0, 0
    for batch, of_batch in zip(batches, prepared, strict=True):
        pairs, encoded = encode_rows(system, encoding, batch, of_batch)
        written.append(accepted(pairs)[0].drop_columns(OF_PAIRS))
        tokens, count = tokens + encoded.work.tokens, count + len(batch)
        if time.perf_counter() - began > SECONDS:
            break
    seconds = time.perf_counter() - began
    table = pa.concat_tables(written)
    size = len(parquet_bytes(table)) if len(table) else 0
    return {"rows": count, "pairs": len(table), "tokens": tokens, "bytes": size, "seconds": seconds, **of}
