"""The manifest of a finished output: its totals, and a line for each unit."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import raycase
from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.unit_files import LINES_SCHEMA, UnitLine, lines_table, read_checked, read_line
from raycase.data.parquet import parquet_bytes

VERSIONS = ("ray", "torch", "transformers", "pyarrow")  # packages that a manifest names
LINES_AT_ONCE, LINES_SECONDS = 4096, 60.0  # of a file in `manifest_lines/`: most lines, most seconds


class Lines:
    """The manifest's lines: those of this run, saved in `manifest_lines/` now and then, and those of earlier runs."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.new: list[UnitLine] = []
        self.saved, self.saved_as = time.monotonic(), ""

    def add(self, line: UnitLine) -> None:
        """Add a line; save the new ones if they are many, or the last time is long ago."""
        self.new.append(line)
        if len(self.new) >= LINES_AT_ONCE or time.monotonic() - self.saved > LINES_SECONDS:
            self._put(lines_table(self.new))
            self.new, self.saved = [], time.monotonic()

    def _put(self, lines: pa.Table) -> None:
        self.saved_as = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"  # names sort by time
        (self.output.lines / self.saved_as).put(parquet_bytes(lines))

    def forget_all_but(self, units: Units) -> None:
        """Remove the saved lines of all other units: those units will be made again, perhaps with other bytes.

        The manifest's lines move to `manifest_lines/`, for the manifest is no longer complete.
        """
        saved = self.known()
        names = pa.array(units.names, pa.string())
        lines = saved.filter(pc.is_in(saved["name"], names)) if len(saved) else saved
        if len(lines):
            self._put(lines)
        newest = self.saved_as if len(lines) else None
        for name in self.output.lines.list():
            if name != newest:
                (self.output.lines / name).remove()
        self.output.manifest_files.remove()

    def known(self) -> pa.Table:
        """All saved lines; the first one of a unit is the newest."""
        files = [self.output.manifest_files] if self.output.manifest_files.exists() else []
        files += [self.output.lines / name for name in sorted(self.output.lines.list())]
        tables: list[pa.Table] = []
        for file in files:
            with suppress(pa.ArrowException, OSError):  # damaged: its lines are made from the units' files
                tables.append(pq.read_table(pa.BufferReader(file.read()), schema=LINES_SCHEMA))
        return pa.concat_tables([LINES_SCHEMA.empty_table(), *tables[::-1]])

    def of(self, units: Units) -> pa.Table:
        """The lines of these units in their order; those that were never saved are made from the units' files.

        A million lines take 300 MB.
        """
        known = pa.concat_tables([lines_table(self.new), self.known()])
        names = pa.array(units.names, pa.string())
        line_index = pc.index_in(names, known["name"])
        unsaved = iter(names.filter(line_index.is_null()).to_pylist())
        with ThreadPoolExecutor(16) as pool:
            while batch := list(islice(unsaved, LINES_AT_ONCE)):
                known = pa.concat_tables([known, lines_table(pool.map(partial(read_line, self.output), batch))])
        return known.take(pc.index_in(names, known["name"]))


def write_manifest(output: Output, lines: pa.Table, values: dict[str, Any]) -> dict[str, Any]:
    """Write manifest_files.parquet and, last of all, manifest.json with the totals. Returns the latter."""
    data = parquet_bytes(lines)
    made = {
        "versions": {name: version(name) for name in VERSIONS} | {"raycase": raycase.__version__},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    manifest = totals(lines) | values | made | {"manifest_files_sha256": hashlib.sha256(data).hexdigest()}
    output.manifest_files.put(data)
    output.manifest.put_json(manifest)
    output.lines.remove()
    return manifest


def manifest_lines(output: Output) -> pa.Table:
    """The table of files of a finished output. Raises DamagedError where it is not the manifest's."""
    sha256 = output.manifest.read_json()["manifest_files_sha256"]
    return pq.read_table(pa.BufferReader(read_checked(output.manifest_files, sha256)))


def totals(lines: pa.Table) -> dict[str, Any]:
    """The sums over the lines of a manifest."""
    summed = ("rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs", "bytes")
    sums: dict[str, Any] = {name: int(pc.sum(lines[name]).as_py() or 0) for name in summed}
    reasons: Counter[str] = Counter()
    for equal in lines["reasons"].value_counts().to_pylist():
        reasons.update({reason: rows * equal["counts"] for reason, rows in json.loads(equal["values"]).items()})
    return {"rows_in": sums["rows_out"] + sums["rows_rejected"], **sums, "units": len(lines), "reasons": dict(reasons)}
