"""The answers to a file of queries, cut into units that are re-ranked one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.data.inputs import InputFile, readable
from raycase.data.schema import ASKED, QUERY, RANK, SCORE
from raycase.data.storage import locate
from raycase.errors import RequestError
from raycase.search.rescore import check_answers

UNIT_ROWS = 4096  # answers in a unit, at least


@dataclass(frozen=True, kw_only=True)
class AnswerUnit:
    """Rows [start, stop) of a file of answers; all answers to a query are in one unit."""

    file: str
    start: int
    stop: int
    unconditional: bool  # whether some of them were searched without a condition


def cut_answers(file: InputFile, *, text: str, queries: int, unit_rows: int = UNIT_ROWS) -> list[AnswerUnit]:
    """The units of a file with answers to so many queries, whose texts are in the column `text`. Raises RequestError
    for a file of another kind, or with answers to other queries."""
    if file.ending != ".parquet":
        raise RequestError(f"--answers: expected a .parquet file, got {file.uri}; see `raycase search --output`")
    with readable(file) as source, source.open() as handle:
        names = pq.read_schema(handle).names
        for name in (QUERY, ASKED, RANK, SCORE):
            if name not in names:
                raise RequestError(f"--answers: {file.uri}: expected the column {name!r}, got {', '.join(names)}")
        check_answers(names, text, file.uri)
        keys = pq.read_table(handle, columns=[QUERY, ASKED])
    query_N = keys[QUERY].to_numpy()
    if len(query_N) and not 0 <= query_N.min() <= query_N.max() < queries:
        raise RequestError(
            f"--queries: expected the queries that {file.uri} has answers to, up to {query_N.max() + 1}, got {queries}"
        )
    ends = np.append(np.flatnonzero(np.diff(query_N)) + 1, len(query_N))
    if len(np.unique(query_N)) < len(ends) - (not len(query_N)):
        raise RequestError(f"--answers: {file.uri}: expected the answers to each query together, got them apart")
    units, start = [], 0
    for end in ends.tolist():
        if end - start >= unit_rows or (end == len(query_N) and end > start):
            unconditional = bool(pc.any(pc.is_null(keys[ASKED][start:end])).as_py())
            units.append(AnswerUnit(file=file.uri, start=start, stop=end, unconditional=unconditional))
            start = end
    return units


def read_unit(unit: AnswerUnit) -> pa.Table:
    """The rows of a unit; of the file only the row groups that hold them are read."""
    source = locate(unit.file)
    with source.open() as handle:
        file = pq.ParquetFile(handle)
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(rows)
        groups = [i for i, end in enumerate(ends) if end > unit.start and end - rows[i] < unit.stop]
        first = int(ends[groups[0]] - rows[groups[0]])
        return file.read_row_groups(groups).slice(unit.start - first, unit.stop - unit.start)
