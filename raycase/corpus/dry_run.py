"""The dry run: estimates the work of a job from a sample of its input and a few encoded batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from raycase.corpus.encode_step import EncodeUnits, encode_rows
from raycase.corpus.job_record import Sharing, find_job
from raycase.corpus.plan import Plan, make_plan
from raycase.corpus.request import EmbedJob, Request, check_embed
from raycase.corpus.sample import sample_rows
from raycase.corpus.unit_pairs import pairs_of, prepare_rows
from raycase.data.inputs import InputFile
from raycase.data.reader import TEXT
from raycase.data.schema import ROW_OF_PAIR, parquet_bytes
from raycase.errors import visible

MEASURED_ROWS, MEASURED_SECONDS = 50, 5.0


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """Some rows of a job, encoded: of one encoder of `encoders`, where that was, and its output's bytes per pair."""

    encoders: int
    tokens_per_second: float
    bytes_per_pair: float
    where: str


Measure = Callable[[Request, pa.Table, int], MeasuredRate]  # the job, rows of its input, its units


def dry_run(job: EmbedJob, measure: Measure) -> dict[str, Any]:
    """Remaining units, rows, pairs, distinct pairs and tokens; the size of the output (bytes) and the time (seconds).

    Units and rows are exact; the others are extrapolated from the sampled rows, which `measure` encodes where the job
    would run. Writes nothing. Raises RequestError and WorkError.
    """
    request = check_embed(job)
    if request.kind.word_bytes:  # no basis is chosen yet: the words' size is known, and their time is the encoder's
        request = replace(request, model=replace(request.model, basis=None))
    sharing = Sharing(rows=request.unit_rows)
    known, done = find_job(request.output, request.config, request.files, overwrite=job.overwrite, sharing=sharing)
    plan = make_plan(request, known.files, done, known.sharing)
    result: dict[str, Any] = {"dry_run": True, "units": plan.units, "rows": plan.missing}
    if plan.missing:
        result |= _scaled(request, plan, known.files, measure)
    for name, value in list(result.items())[1:]:
        print(f"{name.replace('_', ' '):>18}  {visible(value) if isinstance(value, str) else format(value, ',')}")
    return result


def _scaled(request: Request, plan: Plan, files: list[InputFile], measure: Measure) -> dict[str, Any]:
    rows, sampled = sample_rows(request.kind.columns, plan, files)
    if not len(rows):
        return {"sampled_rows": sampled, "pairs": 0, "distinct_pairs": 0, "tokens": 0, "output_bytes": 0}
    row_of_pair, conditions = pairs_of(rows, request.kind)
    texts = [rows[TEXT][int(row)].as_py() for row in row_of_pair]
    distinct = list(dict.fromkeys(zip(texts, conditions or [""] * len(texts), strict=True)))
    sentences, under = (list(column) for column in zip(*distinct, strict=True))
    tokens = int(request.model.count_tokens(sentences, None if conditions is None else under).sum())
    found = measure(request, rows, plan.units)
    scale = plan.missing / sampled
    rate = found.tokens_per_second * found.encoders
    return {
        "sampled_rows": sampled,
        "pairs": round(len(texts) * scale),
        "distinct_pairs": round(len(distinct) * scale),
        "tokens": round(tokens * scale),
        "output_bytes": round(len(texts) * scale * found.bytes_per_pair + tokens * scale * request.kind.word_bytes),
        "actors": found.encoders,
        "measured_on": found.where,
        "tokens_per_second": round(rate),
        "seconds": round(tokens * scale / max(1.0, rate)),
    }


def measure_here(request: Request, rows: pa.Table) -> MeasuredRate:
    """What an encoder in this process does."""
    rate, size = encode_sample(rows, MEASURED_ROWS, **step_of(request))
    return MeasuredRate(encoders=1, tokens_per_second=rate, bytes_per_pair=size, where="this machine")


def step_of(request: Request) -> dict[str, Any]:
    """The arguments of an encode step that only measures."""
    return {
        "config": request.model,
        "kind": request.kind,
        "weights": request.config["model"]["weights"],
        "batch_tokens": request.job.batch_tokens,
        "compute": request.job.compute,
        "compile": request.job.compile,
    }


def encode_sample(rows: pa.Table, at_once: int, **step: Any) -> tuple[float, float]:
    """Tokens per second of one encoder, `at_once` rows in a batch, and bytes of output per pair."""
    actor = EncodeUnits(**step)
    config, kind, encoder = step["config"], step["kind"], actor.encoder
    batches = [rows.slice(start, at_once) for start in range(0, len(rows), at_once)]
    prepared = [prepare_rows(config, part, kind) for part in batches]
    encode_rows(encoder, batches[0], prepared[0], kind)  # the first batch is slower
    tokens, began = 0, time.perf_counter()
    written: list[pa.Table] = []
    for part, ready in zip(batches, prepared, strict=True):
        encoded = encode_rows(encoder, part, ready, kind)
        tokens += encoded.work.tokens
        written.append(encoded.table.drop_columns([ROW_OF_PAIR]))
        if time.perf_counter() - began > MEASURED_SECONDS:
            break
    rate = tokens / (time.perf_counter() - began)
    table = pa.concat_tables(written)
    return rate, len(parquet_bytes(table)) / max(1, len(table))
