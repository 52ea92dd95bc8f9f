"""Answers of a search, re-ranked by a model that scores pairs of query and answer (MixSP, cross-encoders).

Shapes: N answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.io.schema import ASKED, QUERY, RANK, SCORE
from raycase.models.contracts import EmbedderConfig, score_pairs
from raycase.models.fine_tuned import Scorer
from raycase.models.registry import resolve

COSINE = "cosine"
RERANKED = 100  # answers of a query that are re-ranked by default


def find_scorer(model: str, *, conditional: bool) -> Any:
    """The configuration of a model that scores pairs. Raises RequestError for another, and for missing conditions."""
    config: Any = resolve(model)
    if isinstance(config, EmbedderConfig):
        raise RequestError(f"--rerank: expected a model that scores pairs (mixsp, cross-encoder), got {model}")
    if config.known_conditions is None and not conditional:
        raise RequestError(
            f"--rerank: expected queries under conditions for {model}, got none, or weights of some; see --condition"
        )
    return config


def check_answers(names: Sequence[str], text: str) -> None:
    """Raise RequestError for answers without the column of texts, and with one that re-ranking adds."""
    if text not in names or COSINE in names:
        raise RequestError(
            f"--text-column: expected the column {text!r} among those that the index keeps, and none named "
            f"{COSINE!r}, which re-ranking adds, got {', '.join(names)}"
        )


def rerank(answers: pa.Table, sentences: Sequence[str], scorer: Scorer, *, text: str, k: int) -> pa.Table:
    """The first k answers of each query by the scorer's similarity; ties keep their order.

    `answers` is a table of `Index.search` with the kept column `text`, `sentences` are its queries. The column `score`
    becomes the scorer's, and the search's score becomes a new last column, `cosine`. Each distinct pair is scored once.
    An answer without words has no score and comes last. Raises RequestError.
    """
    check_answers(answers.column_names, text)
    query_N = answers[QUERY].to_numpy()
    asked = answers[ASKED].to_pylist() if scorer.config.known_conditions is None else None
    firsts, seconds = [sentences[query] for query in query_N], [text or "" for text in answers[text].to_pylist()]
    prepared = scorer.config.prepare_pairs(firsts, seconds, asked)
    scores_N = score_pairs(scorer, prepared).vectors[:, 0].astype(np.float32)
    descending_N = np.where(np.isnan(scores_N), np.inf, -scores_N)
    order_N = np.lexsort((answers[RANK].to_numpy(), descending_N, query_N))
    rank_N = np.arange(len(order_N)) - np.searchsorted(query_N[order_N], query_N[order_N])
    names = answers.column_names
    scores = pa.array(scores_N, answers[SCORE].type, from_pandas=True)  # NaN becomes null
    reranked = answers.set_column(names.index(SCORE), SCORE, scores).append_column(COSINE, answers[SCORE])
    ranks = pa.array(rank_N + 1, type=answers[RANK].type)
    reranked = reranked.take(order_N).set_column(names.index(RANK), RANK, ranks)
    return reranked.filter(pa.array(rank_N < k))
