"""A sample of a job's input: rows at the start of spans from across it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raycase.corpus.plan import Plan
from raycase.data.columns import Columns
from raycase.data.inputs import InputFile
from raycase.data.reader import read_span

SAMPLED_SPANS, SAMPLED_ROWS = 5, 400  # rows of each sampled span


def sample_rows(columns: Columns, plan: Plan, files: Sequence[InputFile]) -> tuple[pa.Table, int]:
    """The accepted rows of the sample among those that are left to do, and the number of rows read."""
    left = np.flatnonzero(plan.left).tolist()
    span_index = np.unique(np.linspace(0, len(left) - 1, SAMPLED_SPANS).astype(int))
    tables: list[pa.Table] = []
    sampled = 0
    for span in (plan.spans[left[i]] for i in span_index):
        start, unit_end = plan.units_left(span)[0]
        end = min(unit_end, start + SAMPLED_ROWS)
        sampled += end - start
        tables += [table for table, _ in read_span(files[span.file], span, columns, [(start, end)])]
    return pa.concat_tables(tables), sampled
