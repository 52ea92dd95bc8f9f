"""Parquet, of which a span is some row groups; and stored tokens, which are Parquet files of an output."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.errors import WorkError
from raycase.io.columns import Columns, check_columns
from raycase.io.source import Source, Span, SpanRows

MEND = "remove the file and run its job again"
FOOTER_BYTES = 2**16  # fetched from the end of a file; most footers are shorter


class Parquet(Source):
    """A Parquet file."""

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """Row groups and columns, read from the end of the file: one request, two where they are longer."""

        def end(count: int) -> bytes:
            return self.location.read(max(0, self.file.size - count), self.file.size)

        tail = end(FOOTER_BYTES)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        return pq.read_metadata(pa.BufferReader(tail if length <= len(tail) else end(length)))

    def open(self) -> Any:
        """The file, to be read."""
        return self.location.open()

    @property
    def schema(self) -> pa.Schema:
        return self.footer.schema.to_arrow_schema()

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        check_columns(self.schema, columns, self.file.uri)
        start = rows = at = size = 0
        for group in range(self.footer.num_row_groups):
            rows += self.footer.row_group(group).num_rows
            size += self.footer.row_group(group).total_byte_size
            if rows >= unit_rows or (rows and group == self.footer.num_row_groups - 1):
                yield self.span(start, rows, at, group + 1 - at, size)
                start, at, rows, size = start + rows, group + 1, 0, 0

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        with self.open() as handle:
            parquet = pq.ParquetFile(handle, page_checksum_verification=True)
            groups = range(span.at, span.at + span.length) if span else range(parquet.num_row_groups)
            table = parquet.read_row_groups([*groups], columns=list(names))
        yield self.planned(table, span)


class TokenFile(Parquet):
    """A file of an output of `raycase embed --any-condition`, marked by its checksum in the manifest."""

    MARK = re.compile(r"sha256 ([0-9a-f]{64})")

    def open(self) -> Any:
        """Raises WorkError where it is not the file of this checksum."""
        data = self.location.read()
        if self.file.mark != f"sha256 {hashlib.sha256(data).hexdigest()}":
            uri = self.file.uri
            raise WorkError(f"expected {uri} as its manifest says, got: {uri}: checksum differs; {MEND}")
        return pa.BufferReader(data)
