"""Rows of an index that go: those that a filter matches, and those whose ids come again with new outputs.

Lance marks them as deleted in a new version, so a reader of the former one keeps them; offsets count the rows left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from raycase.errors import RequestError, note
from raycase.index.filters import Filter, checked_filter
from raycase.index.index_rows import check_output_columns, index_schema, without_covered
from raycase.index.lance_files import sql_in
from raycase.index.metadata import IndexMetadata
from raycase.io.schema import CONDITION, DOCUMENT, ID
from raycase.io.storage import Location
from raycase.io.stored_tokens import BASIS
from raycase.job.written import Written

if TYPE_CHECKING:
    from lance import LanceDataset

IDS = 10_000  # ids in one filter


def delete_matching(dataset: LanceDataset, metadata: IndexMetadata, where: str, root: Location) -> int:
    """Delete the rows that a filter matches, and return how many. Raises RequestError for a wrong filter, and for one
    that leaves no row."""
    matching = checked_filter(dataset, root, where, "--delete")  # a text goes under all conditions or none
    rows = dataset.count_rows(matching)
    if rows == metadata.rows:
        raise RequestError(
            f"--delete: expected a filter that leaves rows, got {where!r}, which matches all {rows:,} of {root.uri}; "
            "build from another output with --overwrite, or remove the folder"
        )
    if not rows:
        note(f"{root.uri}: no row matches --delete {where!r}; 0 rows deleted")
    return _delete(dataset, metadata, matching)


def delete_same_ids(
    dataset: LanceDataset, metadata: IndexMetadata, sources: Sequence[Written], ids_at_once: int = IDS
) -> int:
    """Delete the rows, with and without conditions, of all ids in units that the index lacks, and return how many: all
    chunks of their documents, which may have had more, where the outputs have chunks.

    Raises RequestError for an output with other columns.
    """
    new = [source for source in (without_covered(source, metadata) for source in sources) if source.names]
    for source in new:
        check_output_columns(dataset, index_schema(source, metadata), source.output.root)
    of = DOCUMENT if metadata.chunk else ID
    tables = (table for source in new for table in source.tables([of]))
    ids = (
        one for table in tables for one in table[of].unique().to_pylist()
    )  # one in several files comes several times
    deleted = 0
    while batch := list(islice(ids, ids_at_once)):
        deleted += _delete(dataset, metadata, Filter(f"({sql_in(of, batch)})"))
    return deleted


def _delete(dataset: LanceDataset, metadata: IndexMetadata, where: Filter) -> int:
    """Delete the rows that a filter matches, and take them off the metadata's counts."""
    gone: Counter[str | None] = Counter()
    for batch in dataset.to_batches(columns=[CONDITION], filter=where):
        gone.update({row["values"]: row["counts"] for row in batch[CONDITION].value_counts().to_pylist()})
    if gone:  # else Lance writes a version all the same
        if metadata.words:
            metadata.words -= dataset.count_rows(f"{where} AND {BASIS} IS NOT NULL")
        dataset.delete(where)
    metadata.plain -= gone[None]
    metadata.conditions = {name: rows - gone[name] for name, rows in metadata.conditions.items() if rows > gone[name]}
    return gone.total()
