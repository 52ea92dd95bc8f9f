"""The basis of a job's stored words: chosen once, from a sample of the corpus, before its first unit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.plan import Plan
from raycase.corpus.request import Request
from raycase.corpus.sample import sample_rows
from raycase.corpus.unit_files import DamagedError, parsed
from raycase.data.inputs import InputFile
from raycase.data.reader import TEXT
from raycase.data.stored_words import WORDS, WordFormat
from raycase.errors import RequestError

SAMPLED_TEXTS = 2000


def choose_basis(request: Request, plan: Plan, files: Sequence[InputFile]) -> bytes | None:
    """The basis to put into the output; None if it is there. Raises RequestError where units were coded by another, or
    by one that is gone, and where the sample holds no text that can be embedded."""
    output = request.output
    if not request.job.overwrite:
        there = output.basis.exists()
        if len(plan.done) and not (there and _has_coded(output, plan.done)):
            raise RequestError(
                f"--output: expected {output.basis.uri}, by which the units there are coded, got "
                f"{'another' if there else 'none'}; pass --overwrite"
            )
        if there:
            return None
    import torch  # which a job that resumes need not load

    from raycase.systems.word_codes import fit_codes, typical_conditions

    dtype = request.job.compute and getattr(torch, request.job.compute)
    rows, _ = sample_rows(request.kind.columns, plan, files)
    model: Any = replace(request.model, basis=None).load(dtype=dtype)
    words = model.words(rows[TEXT].to_pylist()[:SAMPLED_TEXTS])
    if not words:
        raise RequestError("--input: expected texts to choose the basis of stored words by, got none in the sample")
    typical = model.questions(typical_conditions())
    codes = fit_codes(model.head, words, typical, dim=model.dim, token_bytes=request.kind.word_bytes)
    return codes.to_bytes()


def _has_coded(output: Output, done: Units) -> bool:
    """Whether the basis in an output is that of the first finished unit, where this one can be read."""
    form = None
    name = next((unit.name(done.print8) for unit in done if unit.rows_out), None)
    if name is not None:
        with suppress(DamagedError, FileNotFoundError):  # it is made again
            form = WordFormat.of(parsed((output.units / name).read(), name, [WORDS]).schema)
    return form is None or form.basis == hashlib.sha256(output.basis.read()).hexdigest()
