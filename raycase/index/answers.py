"""The answers of a search as a table.

Shapes: Q queries, k neighbours, H rows of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.io.columns import RESERVED_COLUMNS
from raycase.io.schema import ASKED, CONDITION, PARTS, POOLED, QUERY, RANK, SCORE, STATED

if TYPE_CHECKING:
    from lance import LanceDataset

PartsOf = Callable[[np.ndarray, np.ndarray], pa.Array]  # query and rank of each answer, (H,) -> the column `parts`

TEXT = "text"  # the column with the texts, where no other is named


def returned_columns(dataset: LanceDataset) -> list[str]:
    """Id and the kept columns."""
    return [name for name in dataset.schema.names if name not in (CONDITION, *RESERVED_COLUMNS)]


def check_new_columns(columns: Sequence[str], *names: str) -> None:
    """Raise RequestError where an index keeps columns with names that some answers have for their own."""
    if same := sorted({*names} & {*columns}):
        raise RequestError(
            f"expected an index that keeps no column {same[0]!r}, which these answers have for their own"
        )


def answer_table(
    dataset: LanceDataset,
    query_index: Sequence[int],
    asked: Sequence[str | None],
    condition: str | None,
    scores_Qk: np.ndarray,
    offsets_Qk: np.ndarray,
    *,
    pooled: bool = False,
    states: Callable[[str, np.ndarray], np.ndarray] | None = None,
    parts: PartsOf | None = None,
) -> pa.Table:
    """The rows at these offsets (-1: none) as answers to the queries, with id and kept columns.

    `query_index`, `asked`: index and requested condition of each query; `condition`: the one that was searched;
    `pooled`: from stored tokens; `states`: gives the probabilities that rows say something of it; `parts`: gives the
    column of this name.
    """
    query_H, rank_H = (offsets_Qk >= 0).nonzero()
    names = returned_columns(dataset)
    offsets_H = offsets_Qk[query_H, rank_H]
    rows = dataset.take(offsets_H, columns=names)
    columns: dict[str, Any] = {
        QUERY: pa.array(np.asarray(query_index, dtype=np.int64)[query_H]),
        ASKED: pa.array([asked[i] for i in query_H.tolist()], pa.string()),
        CONDITION: pa.array([condition] * len(query_H), pa.string()),
        POOLED: pa.array([pooled] * len(query_H), pa.bool_()),
        RANK: pa.array(rank_H + 1, pa.int32()),
        SCORE: pa.array(scores_Qk[query_H, rank_H], pa.float32()),
    }
    if states is not None and condition is not None:
        columns[STATED] = pa.array(states(condition, offsets_H), pa.float32())
    if parts is not None:
        columns[PARTS] = parts(query_H, rank_H)
    return pa.table(columns | {name: rows[name] for name in names})


def no_answers(dataset: LanceDataset) -> pa.Table:
    """A table of answers without rows."""
    return answer_table(dataset, [], [], None, np.empty((0, 1), np.float32), np.empty((0, 1), np.int64))
