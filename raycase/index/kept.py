"""Conditions that an index keeps: pooled from its stored tokens once, then searched like those embedded in advance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.index.answers import returned_columns
from raycase.index.lance_files import fragment_rows, sql_equals, write_batches
from raycase.index.metadata import IndexMetadata
from raycase.io.schema import CONDITION, VECTOR, embedding_array, embedding_type
from raycase.io.storage import Location
from raycase.io.stored_tokens import CODES

if TYPE_CHECKING:
    from lance import LanceDataset


def keep_conditions(
    dataset: LanceDataset, metadata: IndexMetadata, conditions: Sequence[str], root: Location, model: str | None
) -> LanceDataset:
    """Pool new conditions, and again those that were kept before rows with words came; add them in new versions.

    Raises RequestError for an index without stored tokens, and for conditions that it has otherwise.
    """
    for condition in conditions:
        if condition in metadata.conditions and condition not in metadata.kept:
            raise RequestError(f"--keep-condition: expected a condition that is new to the index, got {condition!r}")
    if conditions and not metadata.words:
        raise RequestError(
            f"--keep-condition: expected stored tokens in {root.uri}, got none; see `raycase embed --any-condition`"
        )
    metadata.kept = list(dict.fromkeys([*metadata.kept, *conditions])) if metadata.words else []
    stale = [name for name in metadata.kept if metadata.conditions.get(name) != metadata.words]
    if not stale:
        return dataset
    from raycase.index.pooled import PooledVectors, StoredRows  # take seconds to import
    from raycase.index.query_encoder import ask, resolve_query_encoder

    model = model or metadata.name
    encoder = resolve_query_encoder(metadata, model).load()
    asked = cache(lambda name: ask(encoder, [name], model=model, named="--keep-condition"))
    for condition in stale:
        asked(condition)  # refused before anything is deleted
        if metadata.conditions.pop(condition, 0):
            dataset.delete(sql_equals(CONDITION, condition))
        if VECTOR not in dataset.schema.names:
            dataset.add_columns(pa.field(VECTOR, embedding_type(encoder.dim, metadata.dtype)))
        rows_with_tokens = StoredRows(dataset, root, metadata, CODES, memory_bytes=0)
        blocks = PooledVectors(rows_with_tokens, asked).blocks(condition)
        names = [*returned_columns(dataset), CONDITION, VECTOR]
        schema = pa.schema([field for field in dataset.schema if field.name in names])
        rows = (batch for block in blocks for batch in _batch(dataset, schema, condition, *block).to_batches())
        dataset = write_batches(root, schema, rows, "append", fragment_rows(metadata.words, metadata.shards))
        metadata.conditions[condition] = metadata.words
    return dataset


def _batch(dataset: LanceDataset, schema: pa.Schema, condition: str, offsets_B: np.ndarray, vectors: Any) -> pa.Table:
    """The rows at these offsets under a condition."""
    kept = dataset.take(offsets_B, columns=[n for n in schema.names if n not in (CONDITION, VECTOR)])
    dtype = schema.field(VECTOR).type.value_type.to_pandas_dtype()
    rows = kept.append_column(CONDITION, pa.array([condition] * len(kept), pa.string()))
    return rows.append_column(VECTOR, embedding_array(vectors.numpy().astype(dtype))).select(schema.names).cast(schema)
