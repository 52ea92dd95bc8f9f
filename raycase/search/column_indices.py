"""Lance's indices of an index's columns: scalar ones of id and condition, approximate ones of the vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.data.schema import CONDITION, ID, PLAIN, VECTOR
from raycase.search.metadata import IndexMetadata

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_TO_TRAIN = 256  # vectors from which a product quantizer learns its codes
BITMAP_CONDITIONS = 1000  # up to so many conditions are indexed by a bitmap, more by a tree
HNSW = "IVF_HNSW_SQ"
TYPES = {"hnsw": HNSW, "ivf-pq": "IVF_PQ", "ivf-rq": "IVF_RQ"}  # kind -> Lance's name
ROWS_A_PARTITION = {"hnsw": 2**20, "ivf-pq": 4096, "ivf-rq": 4096}
BITS, MOST_BITS = 1, 9  # of a dimension in IVF_RQ


@dataclass(frozen=True, kw_only=True)
class IndexSpec:
    """An index of one column."""

    column: str
    type: str  # Lance's name
    rows: int  # that have a value
    partitions: int = 0  # of an approximate index; 0: it is a scalar one
    sub_vectors: int | None = None  # of IVF_PQ
    bits: int | None = None  # of a dimension, of IVF_RQ

    @property
    def name(self) -> str:
        """Lance's own name for it."""
        return f"{self.column}_idx"


MOST_PARTS = 8  # of an approximate index: a search looks into each, and to make them one builds all of it again
Create = Callable[["LanceDataset", IndexSpec], None]


def create_index(dataset: LanceDataset, spec: IndexSpec, model: Mapping[str, Any] | None = None) -> None:
    """Build or replace the index, in this process; `model`: what is trained of it already, in Lance's names."""
    if not spec.partitions:
        dataset.create_scalar_index(spec.column, spec.type)
        return
    dataset.create_index(
        spec.column,
        spec.type,
        metric="dot",
        replace=True,
        num_partitions=spec.partitions,
        num_sub_vectors=spec.sub_vectors,
        **({"num_bits": spec.bits} if spec.bits else {}),
        **model or {},
    )


def kind_of(kind: str, dim: int) -> str:
    """The kind of the index of vectors of this dimension: Lance's IVF_RQ has none that 8 does not divide."""
    return "hnsw" if kind == "ivf-rq" and dim % 8 else kind


def update_scalar_indices(dataset: LanceDataset, metadata: IndexMetadata, create: Create = create_index) -> None:
    """Bring the indices of id and condition, and existing approximate ones, up to date with all rows."""
    indexed = _indexed_columns(dataset)
    if indexed:
        add_new_rows(dataset)
    for column in sorted({ID, CONDITION} - indexed):
        bitmap = column == CONDITION and len(metadata.conditions) <= BITMAP_CONDITIONS
        create(dataset, IndexSpec(column=column, type="BITMAP" if bitmap else "BTREE", rows=metadata.rows))


def add_new_rows(dataset: LanceDataset) -> None:
    """Add the rows that no index has to those that are there: to approximate ones as a part more, until `MOST_PARTS`
    become one."""
    full = [index.name for index in dataset.describe_indices() if len(index.segments) >= MOST_PARTS]
    if full:
        dataset.optimize.optimize_indices(index_names=full, num_indices_to_merge=MOST_PARTS)
    dataset.optimize.optimize_indices()


def update_indices(
    dataset: LanceDataset,
    metadata: IndexMetadata,
    *,
    retrain: bool,
    partitions: int | None = None,
    sub_vectors: int | None = None,
    bits: int | None = None,
    create: Create = create_index,
) -> None:
    """Bring all indices up to date with the rows and the index's kind; approximate ones are trained where they are
    missing, or again with `retrain`. `create` is `create_index`, or has many do the same."""
    update_scalar_indices(dataset, metadata, create)
    indexed = _indexed_columns(dataset)
    for column, rows in ((VECTOR, sum(metadata.conditions.values())), (PLAIN, metadata.plain)):
        # a column without index is searched exactly by Lance
        approximate = rows >= LEAST_TO_TRAIN and metadata.is_approximate(metadata.most_rows(column))
        if approximate and (retrain or column not in indexed):
            kind = kind_of(metadata.approximate_kind, dataset.schema.field(column).type.list_size)
            create(dataset, _approximate(dataset, column, rows, kind, partitions, sub_vectors, bits))
        elif column in indexed and not approximate:
            dataset.drop_index(f"{column}_idx")


def _indexed_columns(dataset: LanceDataset) -> set[str]:
    return {index.field_names[0] for index in dataset.describe_indices()}


def _approximate(
    dataset: LanceDataset,
    column: str,
    rows: int,
    kind: str,
    partitions: int | None,
    sub_vectors: int | None,
    bits: int | None,
) -> IndexSpec:
    """The approximate index of a column of vectors."""
    if kind == "ivf-pq" and sub_vectors is None:
        dim = dataset.schema.field(column).type.list_size
        sub_vectors = next(n for n in range(max(1, dim // 4), 0, -1) if dim % n == 0)
    return IndexSpec(
        column=column,
        type=TYPES[kind],
        rows=rows,
        partitions=min(rows, partitions or max(1, rows // ROWS_A_PARTITION[kind])),
        sub_vectors=sub_vectors if kind == "ivf-pq" else None,
        bits=bits or BITS if kind == "ivf-rq" else None,
    )
