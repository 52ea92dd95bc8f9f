"""Lance's indices of an index's columns: scalar ones of id and condition, and IVF-RQ of vectors, by which a search is
approximate. What it finds is compared by the vectors themselves, in the format of the output that was indexed.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, IndexMetadata, Version, offsets_of, sql_and, sql_equals, vectors_of
from raycase.index.options import APPROXIMATE, REFINE, Options
from raycase.io.schema import CONDITION, ID, UNCONDITIONAL, VECTOR

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.index.topk import Nearest

ROWS_A_PARTITION = 4096
DIM_STEP = 8  # Lance's IVF_RQ has only vectors whose dimensions this divides
LEAST_TO_TRAIN = 256  # vectors; fewer in a column are compared one by one
MORE = 8  # neighbours beyond k, as Lance orders them by products of rounded vectors
MOST_PARTS = 8  # of an approximate index: a search looks into each, and to join them builds all of it again
BITMAP_CONDITIONS = 1000  # up to so many conditions are indexed by a bitmap, more by a tree


def approximate_nearest(
    version: Version, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
) -> Nearest:
    """The k rows nearest to unit vectors (Q, D) under a condition (None: unconditional) that pass the filter."""
    from raycase.index.topk import DIGITS, merge_hits, nothing  # imports torch, which is not needed to build an index

    dataset, metadata = version[1:]
    under = None if metadata.rows_under(condition) == metadata.rows else sql_equals(CONDITION, condition)
    passing = sql_and(under, where) or None
    column = UNCONDITIONAL if condition is None else VECTOR
    nearest = {
        "column": column,
        "q": vectors_QD if len(vectors_QD) > 1 else vectors_QD[0],
        "k": k + MORE,
        "metric": "dot",  # for columns with too few vectors to train an index, where Lance would default to L2
        "refine_factor": math.ceil(min(options.candidates(k, REFINE), metadata.rows) / (k + MORE)),
    }
    for probes in ({"nprobes": options.nprobes}, {"minimum_nprobes": options.nprobes}):
        rows = dataset.to_table(
            columns=[OFFSET, "_distance", column],
            nearest=nearest | probes,
            filter=passing,
            prefilter=passing is not None,
        )
        query_H = rows["query_index"].to_numpy() if "query_index" in rows.column_names else np.zeros(len(rows), int)
        if np.bincount(query_H, minlength=len(vectors_QD)).min() >= k:  # else there may be rows in further partitions
            break
    # scores as an exact search has them: Lance's own differ in the fifth digit
    scores_H = np.einsum("hd,hd->h", vectors_QD[query_H], vectors_of(rows[column]).numpy()).round(DIGITS)
    return merge_hits(*nothing(len(vectors_QD), k), query_H, offsets_of(rows), scores_H)


def is_coded(dataset: LanceDataset, metadata: IndexMetadata, column: str) -> bool:
    """Whether conditions with many rows are searched approximately by the vectors of this column."""
    fits = column in dataset.schema.names and dataset.schema.field(column).type.list_size % DIM_STEP == 0
    rows = metadata.unconditional if column == UNCONDITIONAL else max(metadata.conditions.values(), default=0)
    return fits and metadata.is_approximate(rows)


def searched_by(dataset: LanceDataset, metadata: IndexMetadata) -> str:
    """How the condition with most rows is searched: exact, or an approximate type of index."""
    coded = any(is_coded(dataset, metadata, column) for column in (VECTOR, UNCONDITIONAL))
    return metadata.approximate_index if coded else "exact"


def update_scalar_indices(dataset: LanceDataset, metadata: IndexMetadata) -> None:
    """Bring the indices of id and condition, and existing approximate ones, up to date with all rows."""
    indexed = _indexed_columns(dataset)
    if indexed:
        add_new_rows(dataset)
    for column in sorted({ID, CONDITION} - indexed.keys()):
        bitmap = column == CONDITION and len(metadata.conditions) <= BITMAP_CONDITIONS
        dataset.create_scalar_index(column, "BITMAP" if bitmap else "BTREE")


def add_new_rows(dataset: LanceDataset) -> None:
    """Add new rows to the indices that are there: to approximate ones as a part more, until `MOST_PARTS` become one."""
    if full := [index.name for index in dataset.describe_indices() if len(index.segments) >= MOST_PARTS]:
        dataset.optimize.optimize_indices(index_names=full, num_indices_to_merge=MOST_PARTS)
    dataset.optimize.optimize_indices()


def update_indices(dataset: LanceDataset, metadata: IndexMetadata) -> None:
    """Bring all indices up to date with the rows and the index's type; train approximate ones that are missing."""
    update_scalar_indices(dataset, metadata)
    indexed, options = _indexed_columns(dataset), APPROXIMATE[metadata.approximate_index]
    for column, rows in ((VECTOR, sum(metadata.conditions.values())), (UNCONDITIONAL, metadata.unconditional)):
        approximate = rows >= LEAST_TO_TRAIN and is_coded(dataset, metadata, column)
        if approximate and indexed.get(column) != options["index_type"]:
            partitions = max(1, rows // ROWS_A_PARTITION)
            dataset.create_index(column, metric="dot", num_partitions=partitions, replace=True, **options)
        elif column in indexed and not approximate:
            dataset.drop_index(f"{column}_idx")


def _indexed_columns(dataset: LanceDataset) -> dict[str, str]:
    """The columns with an index, and what Lance calls its type."""
    return {index.field_names[0]: index.index_type for index in dataset.describe_indices()}
