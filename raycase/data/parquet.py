"""A table as the bytes of a Parquet file."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **parquet_options(table.schema))
    return sink.getvalue()


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a table of this schema is written."""
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # numbers of a byte would each take four; other vectors do not compress, and a dictionary of them is lost work
    small = [f"{f.name}.list.element" for f in schema if pa.types.is_fixed_size_list(f.type) and _is_byte(f.type)]
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts + small or False}
    return options | {"write_page_checksum": True}


def _is_byte(kind: pa.FixedSizeListType) -> bool:
    return kind.value_type in (pa.int8(), pa.uint8())
