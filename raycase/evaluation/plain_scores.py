"""Scores of pairs of texts without a condition, by any model: cosines of plain vectors, or a scorer's own.

Shapes: N pairs, T distinct texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import Embed
from raycase.systems.registry import embeds

AT_ONCE = 2**16  # pairs that a scorer tokenises together


def plain_scores(
    model: Model, firsts: Sequence[str], seconds: Sequence[str], job: EvaluateJob, embed: Embed
) -> np.ndarray:
    """The scores of a model that scores pairs, the cosines of the plain vectors of any other: N, N -> (N,) float64.

    Raises RequestError for a text that the model cannot read.
    """
    if embeds(model.config):
        row_of = {text: row for row, text in enumerate(dict.fromkeys([*firsts, *seconds]))}
        vectors_TD = embed(list(row_of), model)
        return pair_cosines(
            vectors_TD, np.array([[row_of[a], row_of[b]] for a, b in zip(firsts, seconds, strict=True)])
        )
    scorer = load_scorer(model, job)
    parts = []
    for start in range(0, len(firsts), AT_ONCE):
        chosen = slice(start, start + AT_ONCE)
        try:
            parts.append(scorer.score(firsts[chosen], seconds[chosen]))
        except ValueError as error:
            raise RequestError(f"--data: expected texts that {model.name} can score, got {error}") from error
    return np.concatenate(parts).astype(np.float64)


def load_scorer(model: Model, job: EvaluateJob) -> Any:
    """A model that scores pairs, with its weights, in the job's number format."""
    return model.config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
