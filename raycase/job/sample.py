"""A sample of a job's input: rows at the start of units from across it, and the basis of stored tokens chosen by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.io.reader import TEXT
from raycase.io.source import InputFile
from raycase.job.documents import as_texts
from raycase.job.plan import Plan
from raycase.job.read_step import read_intervals
from raycase.job.records import ReadTask
from raycase.job.request import Request

SAMPLES, SAMPLED_ROWS = 5, 400  # how many places, and rows of each
SAMPLED_TEXTS = 2000  # by which a basis is chosen


def sample_rows(request: Request, plan: Plan, files: Sequence[InputFile]) -> tuple[pa.Table, int]:
    """The accepted rows of the sample among those that are left to do, and the number of rows read."""
    left = np.flatnonzero(plan.left).tolist()
    span_index = np.unique(np.linspace(0, len(left) - 1, SAMPLES).astype(int))
    tables: list[pa.Table] = []
    sampled = 0
    for span in (plan.spans[left[i]] for i in span_index):
        units = plan.units_left(span)
        places = np.unique(np.linspace(0, len(units) - 1, -(-SAMPLES // len(span_index))).astype(int))
        rows = [(start, min(end, start + SAMPLED_ROWS)) for start, end in (units[i] for i in places)]
        sampled += sum(end - start for start, end in rows)
        part = ReadTask.of(files, [(span, rows)]).spans[0]
        tables += [table for table, _ in read_intervals(part, request.model, request.kind)]
    return pa.concat_tables(tables, promote_options="default"), sampled


def choose_basis(request: Request, plan: Plan, files: Sequence[InputFile]) -> bytes | None:
    """The basis to put into the output; None if it is there. Raises RequestError where units were coded by one
    that is gone, and where the sample holds no text that can be embedded."""
    output = request.output
    if not request.job.overwrite:
        if output.basis.exists():
            return None
        if len(plan.done):
            raise RequestError(
                f"--output: expected {output.basis.uri}, the basis of the units there, got none; pass --overwrite"
            )
    import torch  # which a job that resumes need not load

    from raycase.heads.token_codes import fit_codes, typical_conditions

    dtype = request.job.compute and getattr(torch, request.job.compute)
    texts = as_texts(sample_rows(request, plan, files)[0], request.kind)[0][TEXT].to_pylist()
    model: Any = replace(request.model, basis=None).load(dtype=dtype)
    tokens = model.words(texts[:: max(1, len(texts) // SAMPLED_TEXTS)][:SAMPLED_TEXTS])
    if not tokens:
        raise RequestError("--input: expected texts to fit the basis of stored tokens, got none in the sample")
    typical = model.questions(typical_conditions())
    codes = fit_codes(model.head, tokens, typical, dim=model.dim, token_bytes=request.kind.token_bytes)
    return codes.to_bytes()
