"""The read and the write step on packs of units, each one item of Ray Data: its driver takes 20 to 35 ms for an item.

Imports no torch: a process that writes need not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from raycase.corpus.records import pack, unpack
from raycase.corpus.write_step import write_units

ENCODERS_FED = 128  # by packs of one unit, at 5 s a unit
MOST_UNITS, MOST_BYTES = 16, 64 * 2**20  # of a pack; those of read rows


def pack_units(encoders: int) -> int:
    """Units of a pack for so many encoders: more where the driver could not feed them with single ones."""
    return min(MOST_UNITS, math.ceil(encoders / ENCODERS_FED))


def read_packs(task: pa.Table, *, size: int, **step: Any) -> Iterator[pa.Table]:
    """`read_units`, in packs of `size` units."""
    from raycase.corpus.read_step import read_units

    return in_packs(read_units(task, **step), size)


def write_packs(row: pa.Table, **step: Any) -> pa.Table:
    """`write_units` of each unit of a pack."""
    return pack([write_units(unit, **step) for unit in unpack(row)])


def in_packs(units: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Units in packs of `size`, or of fewer that are large."""
    waiting: list[pa.Table] = []
    for unit in units:
        waiting.append(unit)
        if len(waiting) == size or sum(row.nbytes for row in waiting) >= MOST_BYTES:
            yield pack(waiting)
            waiting = []
    if waiting:
        yield pack(waiting)
