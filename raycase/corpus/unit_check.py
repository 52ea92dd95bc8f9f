"""Reads the units that earlier runs finished, while this one encodes, and finds those that are damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.progress import progress_bar
from raycase.corpus.unit_files import DamagedError, read_checked, read_line

READERS, UNITS_AT_ONCE = 8, 256


class UnitCheck:
    """Checks units against their checksums, in threads that end when `damaged` returns or `stop` is called."""

    def __init__(self, output: Output, units: Units, lines: pa.Table) -> None:
        """`lines`: those of the manifest that are known; a unit without one must be readable."""
        self.output, self.units, self.lines = output, units, lines
        self.read = 0
        self.stopped = Event()
        pool = ThreadPoolExecutor(1)
        self.found = pool.submit(self._run)
        pool.shutdown(wait=False)

    def damaged(self) -> dict[str, str]:
        """Name -> what is wrong, of the damaged units, once all are read, with the progress of that.

        Raises what reading the store raised.
        """
        with progress_bar(total=len(self.units), initial=self.read, unit=" earlier files checked") as bar:
            while wait([self.found], timeout=1).not_done:
                bar.update(self.read - bar.n)
        return self.found.result()

    def stop(self) -> None:
        """Read no further units."""
        self.stopped.set()

    def _run(self) -> dict[str, str]:
        names = pa.array(self.units.names, pa.string())
        known = pc.index_in(names, self.lines["name"])
        found: dict[str, str] = {}
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), UNITS_AT_ONCE):
                if self.stopped.is_set():
                    break
                some = names[start : start + UNITS_AT_ONCE].to_pylist()
                rows = self.lines.take(known[start : start + UNITS_AT_ONCE]).to_pylist()
                defects = pool.map(self._defect, some, rows)
                found |= {name: defect for name, defect in zip(some, defects, strict=True) if defect}
                self.read += len(some)
        return found

    def _defect(self, name: str, line: dict[str, Any]) -> str | None:
        try:
            if line["sha256"] is None:
                read_line(self.output, name)
            else:
                read_checked(self.output.units / name, line["sha256"])
                if line["rejected_sha256"] is not None:
                    read_checked(self.output.rejected / name, line["rejected_sha256"])
        except DamagedError as error:
            return str(error)
        return None
