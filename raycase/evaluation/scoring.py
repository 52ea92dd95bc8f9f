"""Scores of pairs of texts: cosines of plain vectors, or those of a model that scores pairs.

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
from raycase.evaluation.procedure import EmbedPairs
from raycase.systems.registry import embeds

AT_ONCE = 2**16  # pairs that a scorer tokenises together


def plain_scores(
    job: EvaluateJob, model: Model, firsts: Sequence[str], seconds: Sequence[str], embed: EmbedPairs
) -> np.ndarray:
    """Scores without a condition, the cosines of plain vectors where the model embeds: N, N -> (N,) float64.

    Raises RequestError for a text that the model cannot read.
    """
    if not embeds(model.config):
        return scores_by_scorer(job, model, firsts, seconds)
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*firsts, *seconds]))}
    vectors_TD = embed(list(row_of), model)
    return pair_cosines(vectors_TD, np.array([[row_of[a], row_of[b]] for a, b in zip(firsts, seconds, strict=True)]))


def scores_by_scorer(
    job: EvaluateJob,
    model: Model,
    firsts: Sequence[str],
    seconds: Sequence[str],
    conditions: Sequence[str] | None = None,
) -> np.ndarray:
    """The scores of a model that scores pairs: N, N, N -> (N,) float64. Raises RequestError as `plain_scores`."""
    scorer = load_scorer(job, model)
    parts = []
    for start in range(0, len(firsts), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        try:
            parts.append(scorer.score(firsts[rows], seconds[rows], None if conditions is None else conditions[rows]))
        except ValueError as error:
            raise RequestError(f"--data: expected texts that {model.name} can score, got {error}") from error
    return np.concatenate(parts).astype(np.float64)


def load_scorer(job: EvaluateJob, model: Model) -> Any:
    """A model that scores pairs, with its weights, in the job's number format."""
    return model.config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
