"""A sample of a job's input: rows at the start of units from across it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raycase.corpus.plan import Plan
from raycase.corpus.read_step import read_intervals
from raycase.corpus.records import ReadTask
from raycase.data.columns import Columns
from raycase.data.inputs import InputFile

SAMPLES, SAMPLED_ROWS = 5, 400  # how many places, and rows of each


def sample_rows(columns: Columns, plan: Plan, files: Sequence[InputFile]) -> tuple[pa.Table, int]:
    """The accepted rows of the sample among those that are left to do, and the number of rows read."""
    left = np.flatnonzero(plan.left).tolist()
    span_index = np.unique(np.linspace(0, len(left) - 1, SAMPLES).astype(int))
    tables: list[pa.Table] = []
    sampled = 0
    for span in (plan.spans[left[i]] for i in span_index):
        units = plan.units_left(span)
        places = np.unique(np.linspace(0, len(units) - 1, -(-SAMPLES // len(span_index))).astype(int))
        rows = [(start, min(end, start + SAMPLED_ROWS)) for start, end in (units[i] for i in places)]
        sampled += sum(end - start for start, end in rows)
        part = ReadTask.of(files, [(span, rows)]).spans[0]
        tables += [table for table, _ in read_intervals(part, columns)]
    return pa.concat_tables(tables, promote_options="default"), sampled
