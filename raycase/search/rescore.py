"""Answers of a search in a new order, by a model that reads query and answer together (MixSP, cross-encoders)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.search.metadata import ASKED, QUERY, RANK, SCORE
from raycase.systems.fine_tuned_module import Scorer
from raycase.systems.registry import embeds, known_conditions, resolve

COSINE = "cosine"
CANDIDATES = 100  # answers of a query that are scored again, unless told


def find_scorer(model: str, *, conditional: bool, flag: str = "--rerank") -> Any:
    """A model that scores pairs, without its weights. Raises RequestError for one that gives vectors, and for one that
    needs conditions where there are none."""
    config: Any = resolve(model)
    if embeds(config):
        raise RequestError(f"{flag}: expected a model that scores pairs (mixsp, cross-encoder), got {model}")
    if known_conditions(config) is None and not conditional:
        raise RequestError(f"{flag}: expected queries under conditions for {model}, got none; see --condition")
    return config


def check_answers(names: Sequence[str], text: str, where: str = "the index") -> None:
    """Raise RequestError for answers that have no such text, or were re-ranked before."""
    if text not in names:
        raise RequestError(f"--text-column: expected a column that {where} keeps ({', '.join(names)}), got {text!r}")
    if COSINE in names:
        raise RequestError(f"{where}: expected answers without a column {COSINE!r}, which re-ranking adds, got one")


def rerank(answers: pa.Table, sentences: Sequence[str], scorer: Scorer, *, text: str, k: int) -> pa.Table:
    """The first k answers of each query and condition by the scorer's similarity; equals keep their order.

    answers: what `Index.search` gives, with the kept column `text`. `score` becomes the scorer's, and the search's
    stands in a new last column, `cosine`. Each distinct pair is scored once; an answer that cannot be scored, for it
    has no words, has no score and comes last. Raises RequestError.
    """
    check_answers(answers.column_names, text)
    queries_N, asked = answers[QUERY].to_numpy(), answers[ASKED].to_pylist()
    reads = known_conditions(scorer.config) is None  # else equal under all conditions
    pairs = [
        (sentences[query], found or "", condition if reads else None)
        for query, found, condition in zip(queries_N.tolist(), answers[text].to_pylist(), asked, strict=True)
    ]
    place_of = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    firsts, seconds, conditions = zip(*place_of, strict=True) if pairs else ((), (), ())
    distinct = scorer.scores_of(firsts, seconds, conditions if reads else None)
    scores_N = distinct[[place_of[pair] for pair in pairs]] if pairs else distinct
    number = {key: i for i, key in enumerate(dict.fromkeys(zip(queries_N.tolist(), asked, strict=True)))}
    keys_N = np.array([number[key] for key in zip(queries_N.tolist(), asked, strict=True)], dtype=np.int64)
    falling_N = np.where(np.isnan(scores_N), np.inf, -scores_N)
    order_N = np.lexsort((answers[RANK].to_numpy(), falling_N, keys_N))
    _, starts, counts = np.unique(keys_N[order_N], return_index=True, return_counts=True)
    ranks_N = np.arange(len(order_N)) - np.repeat(starts, counts)
    names = answers.column_names
    scored = pa.array(scores_N, answers[SCORE].type, from_pandas=True)  # NaN is null
    again = answers.set_column(names.index(SCORE), SCORE, scored).append_column(COSINE, answers[SCORE])
    ranks = pa.array(ranks_N + 1, type=answers[RANK].type)
    again = again.take(order_N).set_column(names.index(RANK), RANK, ranks)
    return again.filter(pa.array(ranks_N < k))
