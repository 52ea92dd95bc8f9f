"""The answers of a search as a table: each value of a column once, or re-ranked by a model that scores pairs (MixSP,
cross-encoders).

Shapes: Q queries, k neighbours, H rows or N answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.lance_files import returned_columns
from raycase.io.schema import ASKED, CONDITION, POOLED, QUERY, RANK, SCORE
from raycase.models.configs import EmbedderConfig, score_pairs
from raycase.models.fine_tuned import Scorer
from raycase.models.registry import resolve

if TYPE_CHECKING:
    from lance import LanceDataset

COSINE = "cosine"
RERANKED = 100  # answers of a query that are re-ranked by default
LOOKED_AT = 4  # times k: answers among which k values are looked for, and as many times more after each look


def answer_table(
    dataset: LanceDataset,
    query_H: np.ndarray,
    asked: str | None,
    condition: str | None,
    pooled_H: np.ndarray,
    rank_H: np.ndarray,
    scores_H: np.ndarray,
    offsets_H: np.ndarray,
    **more: Any,
) -> pa.Table:
    """The rows at these offsets as answers, with id and kept columns.

    `asked`: the requested condition; `condition`: the one that was searched; `pooled_H`: from stored tokens; `more`:
    columns of these names.
    """
    names = returned_columns(dataset)
    rows = dataset.take(offsets_H, columns=names)
    columns: dict[str, Any] = {
        QUERY: pa.array(query_H, pa.int64()),
        ASKED: pa.array([asked] * len(query_H), pa.string()),
        CONDITION: pa.array([condition] * len(query_H), pa.string()),
        POOLED: pa.array(pooled_H),
        RANK: pa.array(rank_H + 1, pa.int32()),
        SCORE: pa.array(scores_H, pa.float32()),
    }
    return pa.table(columns | more | {name: rows[name] for name in names})


def distinct_answers(
    dataset: LanceDataset, search: Callable[[Sequence[int], int], pa.Table], queries: Sequence[int], k: int, per: str
) -> pa.Table:
    """The best answer of each of the first k values of a column, to each query, with new ranks. Answers with null
    count each by itself. Raises RequestError for another column than one of texts or whole numbers.

    search: gives so many answers to some of the queries, best first; it is asked for more and more until there are k
    values.
    """
    known = {name: dataset.schema.field(name).type for name in returned_columns(dataset)}
    if per not in known or not (pa.types.is_string(known[per]) or pa.types.is_integer(known[per])):
        raise RequestError(
            f"per: expected a column of texts or whole numbers among those kept ({', '.join(known)}), got "
            f"{visible(repr(per), MOST_LABEL)}; --chunk of `raycase embed` writes the column document"
        )
    import pandas as pd  # takes time to import

    most = LOOKED_AT * k
    found: list[pa.Table] = []
    while queries or not found:
        table = search(queries, most)
        value_H = table[per].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        query_H = table[QUERY].to_pandas()
        is_new_H = ~pd.DataFrame({QUERY: query_H, per: value_H}).duplicated() | (value_H < 0)
        rank_H = is_new_H.groupby(query_H).cumsum()
        of_query = rank_H.groupby(query_H).agg(["size", "max"])
        queries = of_query.index[(of_query["size"] == most) & (of_query["max"] < k)].tolist()
        done_H = (is_new_H & (rank_H <= k) & ~query_H.isin(queries)).to_numpy()
        ranked = table.set_column(table.schema.get_field_index(RANK), RANK, pa.array(rank_H, pa.int32()))
        found.append(ranked.filter(pa.array(done_H)))
        most *= LOOKED_AT
    return pa.concat_tables(found, promote_options="default").sort_by([(QUERY, "ascending"), (RANK, "ascending")])


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
