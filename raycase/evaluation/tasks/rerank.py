"""Re-ranking without a condition (MixSP, section 5.2.1): each query's own candidates, those that fit it first.

Measures are those of MTEB (Muennighoff et al., 2023). Shapes: Q queries, N candidates of one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raycase.evaluation.models import Model
from raycase.evaluation.report import RankedSystem, Settings, rank_systems
from raycase.io.rated_pairs import CandidateSets, texts_sha256
from raycase.models.configs import EmbedderConfig

FIRST = 10  # candidates among which MTEB looks for the first that fits
MEASURES = ("map", f"mrr@{FIRST}")


def measure(settings: Settings, data: CandidateSets, models: Sequence[Model]) -> dict[str, Any]:
    """`MEASURES` of each query by each model."""
    distinct = list(dict.fromkeys(pair for row in data.rows for pair in row.pairs))
    firsts, seconds = map(list, zip(*distinct, strict=True))
    systems = []
    for model in models:
        score_of = dict(zip(distinct, model.scores(firsts, seconds).tolist(), strict=True))
        what = "cosine of f(query), f(text)" if isinstance(model.config, EmbedderConfig) else "its score"
        what = f"{model.config.label}: {what}"
        systems.append(RankedSystem(name=model.name, what=what, values={"all": rank_candidates(data, score_of)}))
    candidates = sum(len(row.positive) + len(row.negative) for row in data.rows)
    left_out = f" {data.left_out:,} without positive and negative texts are left out." if data.left_out else ""
    return rank_systems(
        settings,
        title="Re-ranking: each query's own candidates, x 100",
        about=(
            f"{len(data.rows):,} queries, {candidates:,} candidates.{left_out} Mean average precision, and the mean of "
            f"1 / rank of the first candidate that fits, 0 beyond {FIRST}; as MTEB has them. Of a query with several "
            "texts the best score counts. Means over queries, with 95 % intervals of the bootstrap over queries."
        ),
        data={
            "queries": len(data.rows),
            "candidates": candidates,
            "left_out": data.left_out,
            "sha256": texts_sha256((*row.query, "", *row.positive, "", *row.negative) for row in data.rows),
        },
        measures=MEASURES,
        systems=systems,
    )


def rank_candidates(data: CandidateSets, score_of: dict[tuple[str, str], float]) -> np.ndarray:
    """`MEASURES` of each query, by the best score of any of its texts: (Q, 2)."""
    found = []
    for row in data.rows:
        scores_N = np.array([score_of[pair] for pair in row.pairs]).reshape(len(row.query), -1).max(0)
        fits_N = np.arange(len(scores_N)) < len(row.positive)
        found.append([tied_average_precision(scores_N, fits_N), reciprocal_rank_at(scores_N, fits_N, FIRST)])
    return np.array(found)


def tied_average_precision(scores_N: np.ndarray, relevant_N: np.ndarray) -> float:
    """`average_precision` of a ranking by scores in which equal scores share a place, the last of theirs, as
    scikit-learn and MTEB have it. relevant_N: bool, not all False."""
    at_least_RN = scores_N >= scores_N[relevant_N][:, None]
    return float(np.mean((at_least_RN & relevant_N).sum(1) / at_least_RN.sum(1)))


def reciprocal_rank_at(scores_N: np.ndarray, relevant_N: np.ndarray, k: int) -> float:
    """1 / rank of the first relevant item in a ranking by scores, 0 if it is not among the first k. Among equal scores
    it comes last: constant scores are no ranking. relevant_N: bool, not all False."""
    rank = 1 + int((scores_N[~relevant_N] >= scores_N[relevant_N].max()).sum())
    return 1 / rank if rank <= k else 0.0
