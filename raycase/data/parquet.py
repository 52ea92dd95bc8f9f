"""A table as the bytes of a Parquet file."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(table: pa.Table, rows: int | None = None) -> bytes:
    """A table as a Parquet file; `rows`: of a row group."""
    sink = io.BytesIO()
    texts = [f.name for f in table.schema if pa.types.is_string(f.type)]
    # vectors do not compress, and a dictionary of them is lost work
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts or False}
    options |= {"write_page_checksum": True}
    pq.write_table(table, sink, row_group_size=rows, **options)
    return sink.getvalue()
