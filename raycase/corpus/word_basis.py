"""The basis of a job's stored words: chosen once, from a sample of the corpus, before its first unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raycase.corpus.plan import Plan
from raycase.corpus.request import Request
from raycase.corpus.sample import sample_rows
from raycase.data.inputs import InputFile
from raycase.data.reader import TEXT
from raycase.errors import RequestError

SAMPLED_TEXTS = 2000


def choose_basis(request: Request, plan: Plan, files: Sequence[InputFile]) -> bytes | None:
    """The basis to put into the output; None if it is there. Raises RequestError where units were coded by one that is
    gone, and where the sample holds no text that can be embedded."""
    output = request.output
    if output.basis.exists() and not request.job.overwrite:
        return None
    if len(plan.done):
        raise RequestError(
            f"--output: expected {output.basis.uri}, by which the units there are coded, got none; pass --overwrite"
        )
    from raycase.systems.word_codes import (  # torch, which a job that resumes need not load
        fit_codes,
        typical_conditions,
    )

    rows, _ = sample_rows(request.columns, plan, files)
    model: Any = replace(request.model, basis=None).load(dtype=_compute(request))
    words = model.words(rows[TEXT].to_pylist()[:SAMPLED_TEXTS])
    if not words:
        raise RequestError("--input: expected texts to choose the basis of stored words by, got none in the sample")
    typical = model.questions(typical_conditions())
    codes = fit_codes(model.head, words, typical, dim=model.dim, token_bytes=request.job.word_bytes or 1)
    return codes.to_bytes()


def _compute(request: Request) -> Any:
    import torch

    return None if request.job.compute is None else getattr(torch, request.job.compute)
