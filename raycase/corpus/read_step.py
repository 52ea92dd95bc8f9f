"""The read step: spans of the input -> units of checked, tokenised rows. It knows nothing of what runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from raycase.corpus.records import ReadTask, ReadUnit, naming
from raycase.corpus.unit_pairs import EncodeSettings, prepare_rows
from raycase.data.reader import read_span
from raycase.data.schema import rejected_table

if TYPE_CHECKING:
    from raycase.systems.contracts import EmbedderConfig


def read_units(task: pa.Table, *, config: EmbedderConfig, settings: EncodeSettings) -> Iterator[pa.Table]:
    """`ReadTask` -> a `ReadUnit` for each of its units, both as Arrow rows.

    Tokenises here, on CPUs and ahead of the encoder, which then never waits for it.
    """
    for part in ReadTask.from_arrow(task).spans:
        units = read_span(part.file, part.span, settings.columns, part.units)
        for start, end in part.units:
            with naming(f"reading rows {start} to {end} of {part.file.uri}"):
                rows, rejections = next(units)
            unit = ReadUnit(
                uri=part.file.uri,
                file=part.span.file,
                start=start,
                rows_in=end - start,
                rows=rows,
                rejected=rejected_table(part.file.uri, rejections),
                prepared=prepare_rows(config, rows, settings),
                read_pid=os.getpid(),
            )
            yield unit.to_arrow()
