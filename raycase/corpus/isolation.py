"""Finds the rows of a unit that kill the encoder or make it fail: it is tried in halves until they stand alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from raycase.corpus.records import EncodedUnit, Interval, ReadUnit
from raycase.data.reader import python_rows, rejection
from raycase.data.schema import REJECTED_SCHEMA, ROW_OF_PAIR, Reason, in_input_order, rejected_table
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work
from raycase.errors import WorkError

TRIES = 2  # of a row alone, for a process may die of something else too
MOST_DEATHS = 64  # at one unit; what is not found by then is rejected in groups


def isolate(
    unit: ReadUnit, prepare: Callable[[pa.Table], Prepared], attempt: Callable[[ReadUnit], EncodedUnit | str | None]
) -> EncodedUnit:
    """The unit encoded without the rows that kill the encoder, or at which it fails; these are rejected.

    prepare: tokenises some of the unit's rows. attempt: encodes a unit, where that may kill it, on an encoder of its
    own; None where that was killed, the error where it failed. Raises WorkError where not even a unit without rows can
    be encoded.
    """

    def part(first: int, end: int) -> EncodedUnit | str | None:
        rows = unit.rows.slice(first, end - first)
        none = REJECTED_SCHEMA.empty_table()
        return attempt(replace(unit, rows=rows, rows_in=len(rows), rejected=none, prepared=prepare(rows)))

    encoded: dict[int, EncodedUnit] = {}  # by the first row in the unit's table
    killers: dict[Interval, str | None] = {}  # and the error, where there was one
    deaths: Counter[Interval] = Counter()
    waiting = deque(_halves(0, len(unit.rows)))
    while waiting:
        first, end = waiting.popleft()
        done = part(first, end)
        if isinstance(done, EncodedUnit):
            encoded[first] = replace(done, table=_later(done.table, first))
            continue
        deaths[first, end] += done is None  # an error costs no process
        if end - first > 1 and (done is not None or deaths.total() < MOST_DEATHS):
            waiting += _halves(first, end)
        elif end - first == 1 and 0 < deaths[first, end] < TRIES:
            waiting.append((first, end))
        else:
            killers[first, end] = done
    if not encoded:  # it has the columns of the output
        done = part(0, 0)
        if not isinstance(done, EncodedUnit):
            ends = "is killed" if done is None else "fails"
            raise WorkError(f"the encoder {ends} even without rows, at rows from {unit.start} of {unit.uri}")
        encoded[0] = done
    return _combined(unit, [encoded[first] for first in sorted(encoded)], killers)


def _halves(first: int, end: int) -> list[Interval]:
    """The halves of an interval, without an empty one."""
    middle = (first + end) // 2
    return [(a, b) for a, b in ((first, middle), (middle, end)) if a < b]


def _later(table: pa.Table, rows: int) -> pa.Table:
    """The pairs of a part, as those of a unit with so many rows before it."""
    place = table.schema.get_field_index(ROW_OF_PAIR)
    return table.set_column(place, ROW_OF_PAIR, pc.add(table[ROW_OF_PAIR], rows))


def _combined(unit: ReadUnit, parts: list[EncodedUnit], killers: dict[Interval, str | None]) -> EncodedUnit:
    """The parts as one unit, with the killers among its rejected rows."""
    rejections = [
        rejection(
            row,
            Reason.KILLED if why is None else Reason.FAILED,
            ": ".join(filter(None, [f"one or more of {end - first} rows did" if end - first > 1 else "", why])),
        )
        for (first, end), why in killers.items()
        for row in python_rows(unit.rows.slice(first, end - first))
    ]
    rejected = [unit.rejected, *(part.rejected for part in parts), rejected_table(unit.uri, rejections)]
    return EncodedUnit(
        file=unit.file,
        start=unit.start,
        rows_in=unit.rows_in,
        table=pa.concat_tables([part.table for part in parts]),
        rejected=in_input_order(pa.concat_tables(rejected)),
        distinct_pairs=sum(part.distinct_pairs for part in parts),
        rows_truncated=sum(part.rows_truncated for part in parts),
        stats=replace(
            parts[-1].stats,
            work=sum((part.stats.work for part in parts), Work()),
            began=min(part.stats.began for part in parts),
            seconds=sum(part.stats.seconds for part in parts),
        ),
    )
