"""How the rows of an index are cut into fragments of its dataset, and which fragments are a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raycase.data.lance_dataset import import_lance, lance_uri, storage_options
from raycase.data.storage import Location
from raycase.search.metadata import IndexMetadata

if TYPE_CHECKING:
    from lance import LanceDataset

FRAGMENTS_A_SHARD, MOST_FRAGMENT_ROWS = 4, 2**20  # of the rows of an output; the latter is Lance's default, too
SMALL = 10  # rows that are added are in one fragment while they are less than such a part of a shard's
UNEVEN = 1.25  # times the mean: rows of the largest shard from which an index that gets other shards is written anew


def shard_fragments(dataset: LanceDataset, shards: int) -> list[list[int]]:
    """The fragments of each shard, with about as many rows in each: every one goes, in order, to the shard that has the
    fewest rows so far. So the fragments of an output, which stand together, are spread over all shards: rows under a
    condition, and those with stored words, are in each."""
    of: list[list[int]] = [[] for _ in range(shards)]
    rows = [0] * shards
    for fragment in dataset.get_fragments():
        least = min(range(shards), key=rows.__getitem__)
        of[least].append(fragment.fragment_id)
        rows[least] += fragment.metadata.num_rows
    return of


def fragment_rows(rows: int, shards: int, others: int = 0) -> int:
    """The most rows of a fragment, of some that come to others: several fragments a shard, but one for a few rows."""
    if shards == 1 or rows * shards * SMALL < others:
        return MOST_FRAGMENT_ROWS
    fragments = shards * max(FRAGMENTS_A_SHARD, -(-rows // (shards * MOST_FRAGMENT_ROWS)))
    return max(1, -(-rows // fragments))


def write_in_shards(dataset: LanceDataset, metadata: IndexMetadata, root: Location) -> LanceDataset:
    """Write all rows anew, in fragments by which the index's shards have about as many rows each, unless they have
    already. The columns have no indices then."""
    rows = [
        sum(dataset.get_fragment(one).metadata.num_rows for one in of)
        for of in shard_fragments(dataset, metadata.shards)
    ]
    if max(rows) * metadata.shards <= UNEVEN * sum(rows):
        return dataset
    lance, place = import_lance(), {"storage_options": storage_options(root)}
    fragments = lance.fragment.write_fragments(
        dataset.scanner().to_reader(),
        lance_uri(root),
        schema=dataset.schema,
        mode="overwrite",
        max_rows_per_file=fragment_rows(metadata.rows, metadata.shards),
        **place,
    )
    operation = lance.LanceOperation.Overwrite(dataset.schema, fragments)
    return lance.LanceDataset.commit(lance_uri(root), operation, read_version=dataset.version, **place)
