"""Answers of a search in a new order, by a model that reads query and answer together (MixSP, cross-encoders)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.lancefiles import ASKED, QUERY, RANK, SCORE
from raycase.schema import RequestError
from raycase.systems import embeds, known_conditions, resolve
from raycase.systems.protocols import PairScorer

COSINE = "cosine"


def find_scorer(model: str, *, conditional: bool, flag: str = "--rerank") -> Any:
    """A model that scores pairs, without its weights. Raises RequestError for one that gives vectors, and for one that
    needs conditions where there are none."""
    config: Any = resolve(model)
    if embeds(config):
        raise RequestError(f"{flag}: wanted a model that scores pairs (mixsp, cross-encoder), found {model}")
    if known_conditions(config) is None and not conditional:
        raise RequestError(f"{flag}: wanted queries under conditions for {model}, found none; see --condition")
    return config


def rerank(answers: pa.Table, sentences: Sequence[str], scorer: PairScorer, *, text: str, k: int) -> pa.Table:
    """The first k answers of each query and condition by the scorer's similarity; equals keep their order.

    answers: what `Index.search` gives, with the kept column `text`. `score` becomes the scorer's, and the search's
    stands in a new last column, `cosine`. Each distinct pair is scored once. Raises RequestError.
    """
    if text not in answers.column_names:
        raise RequestError(f"--text-column: wanted a column that the index keeps, found {text!r}")
    found = answers[text].to_pylist()
    for row, value in enumerate(found):
        if not isinstance(value, str) or not value.strip():
            where = f"query {answers[QUERY][row]}, rank {answers[RANK][row]}"
            raise RequestError(f"--rerank: wanted words in {text!r} of every answer, found {value!r} ({where})")
    queries_N, asked = answers[QUERY].to_numpy(), answers[ASKED].to_pylist()
    pairs = list(zip((sentences[q] for q in queries_N.tolist()), found, asked, strict=True))
    place_of = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    try:
        distinct = scorer.score(*map(list, zip(*place_of, strict=True))) if pairs else np.empty(0)
    except ValueError as error:
        raise RequestError(f"--rerank: wanted texts that the model can score, found {error}") from error
    scores_N = np.asarray(distinct, dtype=np.float32)[[place_of[pair] for pair in pairs]]
    number = {key: i for i, key in enumerate(dict.fromkeys(zip(queries_N.tolist(), asked, strict=True)))}
    keys_N = np.array([number[key] for key in zip(queries_N.tolist(), asked, strict=True)], dtype=np.int64)
    order_N = np.lexsort((answers[RANK].to_numpy(), -scores_N, keys_N))
    _, starts, counts = np.unique(keys_N[order_N], return_index=True, return_counts=True)
    ranks_N = np.arange(len(order_N)) - np.repeat(starts, counts)
    cosines = answers[SCORE]
    names = answers.column_names
    again = answers.set_column(names.index(SCORE), SCORE, pa.array(scores_N)).append_column(COSINE, cosines)
    again = again.take(order_N)
    first = answers[RANK].type
    again = again.set_column(names.index(RANK), RANK, pa.array(ranks_N + 1, type=first))
    return again.filter(pa.array(ranks_N < k))
