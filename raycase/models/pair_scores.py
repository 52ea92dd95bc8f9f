"""Scores of pairs of sentences by any system, its `figure_names`: what `raycase score` writes of each pair.

Shapes: N pairs of sentences, M distinct (sentence, condition) or pairs of sentences, P of these for each pair of
sentences, K figures.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycase.encoder.prepared import Prepared
from raycase.models.contracts import SystemConfig
from raycase.models.pairs import Encoded
from raycase.models.registry import embeds

SCORE = "score"


def figure_columns(config: SystemConfig, score: str) -> list[str]:
    """The names of the columns of these figures: `score` of the score, `score_range` of the range."""
    return [score, *(f"{score}_{name}" for name in config.figure_names[1:])]


def score_pairs(system: Any, prepared: Prepared) -> Encoded:
    """Score what `prepare_pairs` of its configuration returned, by a loaded system: N pairs, whose `vectors`
    are their figures, (N, K) float64 in the order of `figure_names`, NaN where refused."""
    config = system.config
    rows_PN = prepared.rows.reshape(config.TEXTS_OF_PAIR, -1)
    if embeds(config):
        encoded = system.encode_prepared(prepared)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is rejected
            figures_NK = config.pair_figures(*np.split(encoded.vectors, config.TEXTS_OF_PAIR))
        work = encoded.work
    else:
        batch = prepared.pairs[0]
        accepted = np.flatnonzero(batch.refused < 0)
        figures_MK = np.full((len(batch), len(config.figure_names)), np.nan)
        figures_MK[accepted], work = system.figures(batch.take(accepted))
        figures_NK = figures_MK[rows_PN[0]]
    reasons = prepared.reasons
    refused = ([reasons[row] for row in rows if reasons[row] is not None] for rows in rows_PN.T.tolist())
    return Encoded(
        vectors=figures_NK,
        refused=[first[0] if first else None for first in refused],
        truncated=prepared.truncated[rows_PN].any(axis=0),
        work=work,
        distinct=len(set(map(tuple, rows_PN.T.tolist()))),
    )
