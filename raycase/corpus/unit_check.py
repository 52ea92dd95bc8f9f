"""Reads the units that earlier runs finished, while this one encodes, and finds those that are damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.unit_files import DamagedError, read_checked, read_line

READERS, UNITS_AT_ONCE = 8, 256


class UnitCheck:
    """Checks units against their checksums, in threads that end when `damaged` returns or `stop` is called."""

    def __init__(self, output: Output, units: Units, lines: pa.Table) -> None:
        """`lines`: those of the manifest that are known; a unit without one must be readable."""
        self.output, self.units, self.lines = output, units, lines
        self.found: dict[str, str] = {}
        self.error: BaseException | None = None
        self.stopped = Event()
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def damaged(self) -> dict[str, str]:
        """Name -> what is wrong, of the damaged units, once all are read. Raises what reading the store raised."""
        self.thread.join()
        if self.error:
            raise self.error
        return self.found

    def stop(self) -> None:
        """Read no further unit."""
        self.stopped.set()

    def _run(self) -> None:
        names = pa.array(self.units.names, pa.string())
        known = pc.index_in(names, self.lines["name"])
        try:
            with ThreadPoolExecutor(READERS) as pool:
                for start in range(0, len(names), UNITS_AT_ONCE):
                    if self.stopped.is_set():
                        return
                    some = names[start : start + UNITS_AT_ONCE].to_pylist()
                    rows = self.lines.take(known[start : start + UNITS_AT_ONCE]).to_pylist()
                    for name, defect in zip(some, pool.map(self._defect, some, rows), strict=True):
                        if defect:
                            self.found[name] = defect
        except BaseException as error:
            self.error = error

    def _defect(self, name: str, line: dict[str, Any]) -> str | None:
        try:
            if line["sha256"] is None:
                read_line(self.output, name)
            else:
                read_checked(self.output.embeddings / name, line["sha256"])
                if line["rejected_sha256"] is not None:
                    read_checked(self.output.rejected / name, line["rejected_sha256"])
        except DamagedError as error:
            return str(error)
        return None
