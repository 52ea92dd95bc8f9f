"""Finished units: their file names, and the rows that a listing of them covers. The listing is the checkpoint."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from raycase.job.output import Output


@dataclass(frozen=True, order=True)
class UnitFile:
    """A finished unit: rows [start, start + rows) of an input file, as its file name says."""

    file: int
    start: int
    rows_out: int
    rows_rejected: int

    @property
    def rows(self) -> int:
        return self.rows_out + self.rows_rejected

    @property
    def end(self) -> int:
        return self.start + self.rows

    def name(self, print8: str) -> str:
        return f"{print8}-{self.file:05d}-{self.start:012d}-{self.rows_out}-{self.rows_rejected}.parquet"

    @staticmethod
    def parse(name: str) -> tuple[str, UnitFile] | None:
        """Fingerprint (8 hex digits) and unit of a file name; None for any other name."""
        match = _UNIT_NAME.fullmatch(name)
        return match and (match[1], UnitFile(*(int(g) for g in match.groups()[1:])))


# As `UnitFile.name` writes them, with numbers that 64 bits hold: a unit is found again under the name that it has.
_UNIT_NAME = re.compile(
    r"([0-9a-f]{8})-([0-9]{5}|[1-9][0-9]{5,8})-([0-9]{12}|[1-9][0-9]{12,17})"
    r"-(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})\.parquet"
)


class Units:
    """Finished units of one job that share no row, in the order of the input. A million take 40 MB."""

    def __init__(self, values_N4: np.ndarray, print8: str) -> None:
        """(N, 4) int64: file, start, rows out, rows rejected, in any order.

        Units overlap if a late writer of a stopped run finished a unit that has been cut otherwise since (another
        limit). Of those that start at the same row the longest counts; units that overlap an earlier one do not count.
        """
        self.print8 = print8
        file, start, rows = values_N4[:, 0], values_N4[:, 1], values_N4[:, 2] + values_N4[:, 3]
        self.values_N4 = _without_overlap(values_N4[np.lexsort((-rows, start, file))])
        self.file, self.start = self.values_N4[:, 0], self.values_N4[:, 1]
        self.end = self.start + self.values_N4[:, 2] + self.values_N4[:, 3]
        files, first = np.unique(self.file, return_index=True)
        edges = [*first.tolist(), len(self)]
        self.files: list[int] = files.tolist()  # that have finished units
        self._slices = dict(zip(self.files, pairwise(edges), strict=True))

    def __len__(self) -> int:
        return len(self.values_N4)

    def __iter__(self) -> Iterator[UnitFile]:
        return (UnitFile(*row) for row in map(np.ndarray.tolist, self.values_N4))

    def __contains__(self, name: object) -> bool:
        """Whether it is the file name of one of the units."""
        parsed = UnitFile.parse(name) if isinstance(name, str) else None
        if parsed is None or parsed[0] != self.print8:
            return False
        return parsed[1] in set(self.within(parsed[1].file, parsed[1].start, parsed[1].end + 1))

    @property
    def names(self) -> Iterator[str]:
        """Their file names, in the order of the input."""
        return (unit.name(self.print8) for unit in self)

    def within(self, file: int, start: int, end: int) -> Iterator[UnitFile]:
        """The units of a file that share rows with [start, end)."""
        first, last = self._slices.get(file, (0, 0))
        i = first + int(np.searchsorted(self.end[first:last], start, side="right"))
        while i < last and self.start[i] < end:
            yield UnitFile(*self.values_N4[i].tolist())
            i += 1

    def gaps(self, file: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of rows [start, end) of a file that no unit covers."""
        for unit in self.within(file, start, end):
            if unit.start > start:
                yield start, unit.start
            start = max(start, unit.end)
        if start < end:
            yield start, end

    def covered(self, file: int, edges: np.ndarray) -> np.ndarray:
        """How many rows of a file before each edge are in a unit."""
        first, last = self._slices.get(file, (0, 0))
        start, end = self.start[first:last], self.end[first:last]
        before = np.searchsorted(start, edges, side="left")  # units that begin before the edge
        rows = np.concatenate([[0], np.cumsum(end - start)])[before]
        ends = np.concatenate([[0], end])[before]
        return rows - np.maximum(0, ends - edges)

    def last_row(self, file: int) -> int:
        """The end of the last unit of a file; 0 if it has none."""
        first, last = self._slices.get(file, (0, 0))
        return int(self.end[last - 1]) if last > first else 0

    def missing(self, rows: Sequence[int]) -> int:
        """How many of the first `rows` rows of each file are in no unit."""
        limits = np.asarray(rows, dtype=np.int64)
        known = self.file < len(limits)
        limit = limits[self.file[known]]
        covered = np.minimum(self.end[known], limit) - np.minimum(self.start[known], limit)
        return int(limits.sum() - covered.sum())


def _without_overlap(values_N4: np.ndarray) -> np.ndarray:
    """Rows (sorted by file, start, and the longest first) that share no row of the input with an earlier one."""
    file, start = values_N4[:, 0], values_N4[:, 1]
    end = start + values_N4[:, 2] + values_N4[:, 3]
    if not ((file[1:] == file[:-1]) & (start[1:] < end[:-1])).any() and (end > start).all():
        return values_N4
    units: list[int] = []
    for i in range(len(values_N4)):
        if not units or file[i] != file[units[-1]] or start[i] >= end[units[-1]]:
            units.append(i)
    return values_N4[units]


def finished(names: Iterable[str], print8: str) -> tuple[Units, list[str]]:
    """The units of the job with this fingerprint (8 digits) among file names, and the other names: strays."""
    values, strays = array("q"), []
    for name in names:
        match = _UNIT_NAME.fullmatch(name)
        if match and match[1] == print8:
            values.extend(map(int, match.groups()[1:]))
        else:
            strays.append(name)
    listed_N4 = np.frombuffer(values, dtype=np.int64).reshape(-1, 4)
    units = Units(listed_N4, print8)
    if len(units) < len(listed_N4):
        strays += [name for row in listed_N4.tolist() if (name := UnitFile(*row).name(print8)) not in units]
    return units, strays


def finished_units(output: Output, print8: str) -> tuple[Units, list[str]]:
    """The finished units of a job in its output folder, and the names of the other files there."""
    return finished((name for name, _ in output.units.entries()), print8)


def drop_strays(output: Output, units: Units, strays: Iterable[str]) -> list[str]:
    """Remove files that do not count: units of another fingerprint or overlapping ones by a late writer, rejected rows
    without their unit, and temporary files of a killed writer. Returns their URIs."""
    stray_files = [output.units / name for name in strays if UnitFile.parse(name)]
    stray_files += [output.rejected / name for name, _ in output.rejected.entries() if name not in units]
    stray_files += [half for part in (output.units, output.rejected) for half in part.half_written()]
    for stray in stray_files:
        stray.remove()
    return [stray.uri for stray in stray_files]
