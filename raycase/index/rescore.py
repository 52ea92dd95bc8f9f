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
from raycase.models.fine_tuned import Scorer
from raycase.models.pair_scores import score_pairs
from raycase.models.registry import embeds, resolve

COSINE = "cosine"
RERANKED = 100  # answers of a query that are re-ranked by default


def find_scorer(model: str, *, conditional: bool, flag: str = "--rerank") -> Any:
    """The configuration of a model that scores pairs, without its weights. Raises RequestError for a model that
    produces embeddings, and for one that needs conditions where there are none."""
    config: Any = resolve(model)
    if embeds(config):
        raise RequestError(f"{flag}: expected a model that scores pairs (mixsp, cross-encoder), got {model}")
    if config.known_conditions is None and not conditional:
        raise RequestError(
            f"{flag}: expected queries under conditions for {model}, got none, or weights of some; see --condition"
        )
    return config


def check_answers(names: Sequence[str], text: str, source: str = "the index") -> None:
    """Raise RequestError for answers without the column of texts, and with one that re-ranking adds."""
    if text not in names or COSINE in names:
        raise RequestError(
            f"--text-column: expected the column {text!r} among those that {source} keeps, and none named {COSINE!r}, "
            f"which re-ranking adds, got {', '.join(names)}"
        )


def rerank(answers: pa.Table, sentences: Sequence[str], scorer: Scorer, *, text: str, k: int) -> pa.Table:
    """The first k answers of each query and condition by the scorer's similarity; ties keep their order.

    `answers` is a table of `Index.search` with the kept column `text`, `sentences` are its queries. The column `score`
    becomes the scorer's, and the search's score becomes a new last column, `cosine`. Each distinct pair is scored once.
    An answer without words has no score and comes last. Raises RequestError.
    """
    check_answers(answers.column_names, text)
    queries_N, asked = answers[QUERY].to_numpy(), answers[ASKED].to_pylist()
    reads_conditions = scorer.config.known_conditions is None  # else a score is the same under all of them
    firsts, seconds = [sentences[query] for query in queries_N], [text or "" for text in answers[text].to_pylist()]
    prepared = scorer.config.prepare_pairs(firsts, seconds, asked if reads_conditions else None)
    scores_N = score_pairs(scorer, prepared).vectors[:, 0].astype(np.float32)
    index_of: dict[tuple[Any, ...], int] = {}
    searches = zip(queries_N.tolist(), asked, strict=True)
    search_index_N = np.array([index_of.setdefault(search, len(index_of)) for search in searches], dtype=np.int64)
    descending_N = np.where(np.isnan(scores_N), np.inf, -scores_N)
    order_N = np.lexsort((answers[RANK].to_numpy(), descending_N, search_index_N))
    _, starts, counts = np.unique(search_index_N[order_N], return_index=True, return_counts=True)
    ranks_N = np.arange(len(order_N)) - np.repeat(starts, counts)
    names = answers.column_names
    scores = pa.array(scores_N, answers[SCORE].type, from_pandas=True)  # NaN becomes null
    reranked = answers.set_column(names.index(SCORE), SCORE, scores).append_column(COSINE, answers[SCORE])
    ranks = pa.array(ranks_N + 1, type=answers[RANK].type)
    reranked = reranked.take(order_N).set_column(names.index(RANK), RANK, ranks)
    return reranked.filter(pa.array(ranks_N < k))
