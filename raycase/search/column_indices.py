"""Lance's indices of an index's columns: scalar ones of id and condition, approximate ones of the vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raycase.data.schema import CONDITION, ID
from raycase.search.metadata import PLAIN, VECTOR, IndexMetadata

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_TO_TRAIN = 256  # vectors from which a product quantizer learns its codes
BITMAP_CONDITIONS = 1000  # up to so many conditions are indexed by a bitmap, more by a tree
ROWS_A_PARTITION = {"ivf-pq": 4096, "hnsw": 2**20}


def update_scalar_indices(dataset: LanceDataset, metadata: IndexMetadata) -> None:
    """Bring the indices of id and condition, and existing approximate ones, up to date with all rows."""
    indexed = _indexed_columns(dataset)
    if indexed:
        dataset.optimize.optimize_indices()
    for column in {ID, CONDITION} - indexed:
        bitmap = column == CONDITION and len(metadata.conditions) <= BITMAP_CONDITIONS
        dataset.create_scalar_index(column, "BITMAP" if bitmap else "BTREE")


def update_indices(
    dataset: LanceDataset,
    metadata: IndexMetadata,
    *,
    retrain: bool,
    partitions: int | None = None,
    sub_vectors: int | None = None,
) -> None:
    """Bring all indices up to date with the rows and the index's kind; approximate ones are trained where they are
    missing, or again with `retrain`."""
    update_scalar_indices(dataset, metadata)
    indexed = _indexed_columns(dataset)
    for column, rows in ((VECTOR, sum(metadata.conditions.values())), (PLAIN, metadata.plain)):
        # a column without index is searched exactly by Lance
        approximate = rows >= LEAST_TO_TRAIN and metadata.is_approximate(metadata.most_rows(column))
        if approximate and (retrain or column not in indexed):
            _train(dataset, column, rows, metadata.approximate_kind, partitions, sub_vectors)
        elif column in indexed and not approximate:
            dataset.drop_index(f"{column}_idx")


def _indexed_columns(dataset: LanceDataset) -> set[str]:
    return {index.field_names[0] for index in dataset.describe_indices()}


def _train(
    dataset: LanceDataset, column: str, rows: int, kind: str, partitions: int | None, sub_vectors: int | None
) -> None:
    """Train the approximate index of a column of vectors."""
    if kind == "ivf-pq" and sub_vectors is None:
        dim = dataset.schema.field(column).type.list_size
        sub_vectors = next(n for n in range(max(1, dim // 4), 0, -1) if dim % n == 0)
    dataset.create_index(
        column,
        "IVF_PQ" if kind == "ivf-pq" else "IVF_HNSW_SQ",
        metric="dot",
        replace=True,
        num_partitions=min(rows, partitions or max(1, rows // ROWS_A_PARTITION[kind])),
        num_sub_vectors=sub_vectors if kind == "ivf-pq" else None,
    )
