"""Search without a condition: the score of an id is the mean of its cosines under the conditions that it has.

Shapes: Q queries, N rows of I distinct ids, B rows in a block, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raycase.index.exact import Block
from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, offsets_of, sql_in, vectors_of
from raycase.io.schema import CONDITION, ID, VECTOR

if TYPE_CHECKING:
    from lance import LanceDataset


def conditional_rows(dataset: LanceDataset, where: Filter | None = None) -> pa.Table:
    """Id and offset of all rows with a condition that pass the filter, without their vectors."""
    rows_filter = f"{CONDITION} IS NOT NULL" + (f" AND {where}" if where else "")
    return dataset.to_table(columns=[ID, OFFSET], filter=rows_filter)


def rows_of_same_ids(dataset: LanceDataset, offsets: set[int]) -> pa.Table:
    """All rows with a condition, with their vectors, of the ids that the rows at these offsets have."""
    ids = dataset.take(sorted(offsets), columns=[ID])[ID].unique().to_pylist()
    rows_filter = f"{CONDITION} IS NOT NULL AND {sql_in(ID, ids)}"
    return dataset.to_table(columns=[ID, CONDITION, VECTOR, OFFSET], filter=rows_filter)


def blocks_of_rows(rows: pa.Table, condition: str) -> Iterator[Block]:
    """Offsets and vectors of those of some rows, with their vectors, that are under a condition."""
    under = rows.filter(pc.equal(rows[CONDITION], condition))
    yield offsets_of(under), vectors_of(under[VECTOR])


def mean_nearest(
    queries: Mapping[str, np.ndarray], rows: pa.Table, blocks: Callable[[str], Iterable[Block]], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k ids with the largest mean cosine to each query, best first: cosines (Q, k), offsets (Q, k) of each id's
    first row; -inf and -1 where there are fewer.

    `queries`: condition -> unit vectors (Q, D). `rows`: id and offset of the rows that count, in the order of the
    dataset. `blocks`: gives offsets and vectors of the rows under a condition, in that order; an id has at most one
    row under each.
    """
    offsets_N = offsets_of(rows)
    id_index_N = rows[ID].combine_chunks().dictionary_encode().indices.to_numpy()
    first_row_I = np.unique(id_index_N, return_index=True)[1]
    sums_QI = np.zeros((len(next(iter(queries.values()))), len(first_row_I)), dtype=np.float32)
    for condition, vectors_QD in queries.items():
        for offsets_B, vectors_BD in blocks(condition):
            row_index_B = np.searchsorted(offsets_N, offsets_B)
            sums_QI[:, id_index_N[row_index_B]] += vectors_QD @ vectors_BD.numpy().T
    counts_I = np.bincount(id_index_N, minlength=len(first_row_I)).astype(np.float32)
    scores, id_index = torch.from_numpy(sums_QI / counts_I).topk(min(k, len(first_row_I)))
    missing = ((0, 0), (0, k - scores.shape[1]))
    scores_Qk = np.pad(scores.numpy(), missing, constant_values=-np.inf)
    return scores_Qk, np.pad(offsets_N[first_row_I][id_index.numpy()], missing, constant_values=-1)
