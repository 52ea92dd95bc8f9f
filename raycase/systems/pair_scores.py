"""Scores of pairs of sentences by any system: what `raycase score` writes of each pair.

A system that embeds gives the cosine of both vectors under the condition, DualCSE the entailment of the second sentence
by the first and how implicit each is, a scorer what it says itself.

Shapes: N pairs of sentences, M distinct (sentence, condition) or pairs of sentences, P of these for each pair of
sentences, K figures, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.data.schema import Reason
from raycase.data.vectors import cosines
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work
from raycase.systems.contracts import EmbedderConfig
from raycase.systems.dualcse import EXPLICIT, IMPLICIT, DualCseConfig, entailment, implicitness
from raycase.systems.fine_tuned_config import ScorerConfig
from raycase.systems.registry import embeds

SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The scores of N pairs of sentences.

    figures: (N, K) float64 in the order of `figure_names`, NaN where refused; refused: (N,) the reason or None;
    truncated: (N,) bool; work: tokens and FLOPs; distinct: the number of distinct pairs of sentences.
    """

    figures: np.ndarray
    refused: list[Reason | None]
    truncated: np.ndarray
    work: Work
    distinct: int

    @property
    def finite(self) -> np.ndarray:
        """Whether all figures of each pair are finite: (N,) bool."""
        return np.isfinite(self.figures).all(axis=1)


def figure_names(config: EmbedderConfig | ScorerConfig) -> tuple[str, ...]:
    """What a system says of a pair of sentences: the score, and figures beside it."""
    if isinstance(config, ScorerConfig):
        return config.figure_names
    return (SCORE, "implicitness1", "implicitness2") if isinstance(config, DualCseConfig) else (SCORE,)


def figure_columns(config: EmbedderConfig | ScorerConfig, score: str) -> list[str]:
    """The names of the columns of these figures: `score` of the score, `score_range` of the range."""
    return [score, *(f"{score}_{name}" for name in figure_names(config)[1:])]


def reads_conditions(config: EmbedderConfig | ScorerConfig) -> bool:
    """Whether the score of a pair depends on a condition. DualCSE's two are no such conditions: a score takes both."""
    return config.known_conditions is None


def prepare_pairs(
    config: EmbedderConfig | ScorerConfig,
    firsts: Sequence[str],
    seconds: Sequence[str],
    conditions: Sequence[str] | None,
) -> Prepared:
    """Tokenise pairs of sentences, each distinct one once: N -> `Prepared` of P N rows. Loads no weights.

    Raises ValueError for lists of different length.
    """
    if isinstance(config, ScorerConfig):
        return _prepare_scored(config, firsts, seconds, conditions)
    if isinstance(config, DualCseConfig):
        meanings = [EXPLICIT] * len(firsts) + [IMPLICIT] * len(firsts)
        return config.prepare([*firsts, *firsts, *seconds, *seconds], [*meanings, *meanings])
    return config.prepare([*firsts, *seconds], None if conditions is None else [*conditions, *conditions])


def _prepare_scored(
    config: ScorerConfig, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
) -> Prepared:
    """Tokenise each distinct pair of sentences under its condition, for a scorer."""
    pairs = list(zip(firsts, seconds, conditions or [""] * len(firsts), strict=True))
    index_of = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    firsts, seconds, under = ([pair[side] for pair in index_of] for side in range(3))
    none_M = np.zeros(len(index_of), dtype=np.int64)
    return Prepared(
        rows=np.array([index_of[pair] for pair in pairs], dtype=np.int64),
        conditions=None,
        sentence=none_M,
        condition=none_M,
        pairs=[config.tokens(firsts, seconds, None if conditions is None else under)],
        alone=[],
        bases=[],
    )


def score_pairs(system: Any, prepared: Prepared) -> Scored:
    """Score what `prepare_pairs` returned, by the loaded system of its configuration."""
    config = system.config
    parts = 1 if not embeds(config) else 4 if isinstance(config, DualCseConfig) else 2
    rows_PN = np.stack(np.split(prepared.rows, parts))
    if embeds(config):
        encoded = system.encode_prepared(prepared)
        figures_NK, work = _cosines(*np.split(encoded.vectors, parts)), encoded.work
    else:
        batch = prepared.pairs[0]
        accepted = np.flatnonzero(batch.refused < 0)
        figures_MK = np.full((len(batch), len(config.figure_names)), np.nan)
        figures_MK[accepted], work = system.figures(batch.take(accepted))
        figures_NK = figures_MK[rows_PN[0]]
    reasons = prepared.reasons
    refused = ([reasons[row] for row in rows if reasons[row] is not None] for rows in rows_PN.T.tolist())
    return Scored(
        figures=figures_NK,
        refused=[first[0] if first else None for first in refused],
        truncated=prepared.truncated[rows_PN].any(axis=0),
        work=work,
        distinct=len(set(map(tuple, rows_PN.T.tolist()))),
    )


def _cosines(*vectors: np.ndarray) -> np.ndarray:
    """The figures of a system that embeds, of both sentences' vectors, or of DualCSE's four: (N, K)."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is rejected
        if len(vectors) == 2:
            return cosines(*vectors)[:, None]
        explicit1_ND, implicit1_ND, explicit2_ND, implicit2_ND = vectors
        figures = (
            entailment(explicit1_ND, implicit1_ND, explicit2_ND),
            implicitness(explicit1_ND, implicit1_ND),
            implicitness(explicit2_ND, implicit2_ND),
        )
        return np.stack(figures, axis=1)
