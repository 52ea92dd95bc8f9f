"""The answers of a search as a table, or each value of a column once.

Shapes: Q queries, k neighbours, H rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.lance_files import returned_columns
from raycase.index.schema import ASKED, POOLED, QUERY, RANK, SCORE
from raycase.io.schema import CONDITION

if TYPE_CHECKING:
    from lance import LanceDataset

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
