"""The manifest of a finished output, and its lines while a run goes on."""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.corpus.listing import Units
from raycase.corpus.output import Output
from raycase.corpus.unit_files import LINES_SCHEMA, UnitLine, lines_table, read_line
from raycase.data.parquet import parquet_bytes

LINES_AT_ONCE, LINES_SECONDS = 4096, 60.0  # a file in `manifest_lines/` holds so many at most, or those of so long


class Lines:
    """The lines of a run, put into `manifest_lines/` now and then; after it, those of all units of the job."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.new: list[UnitLine] = []
        self.saved, self.saved_as = time.monotonic(), ""

    def add(self, line: UnitLine) -> None:
        """Keep a line, and put those since the last time when they are many, or it is long ago."""
        self.new.append(line)
        if len(self.new) >= LINES_AT_ONCE or time.monotonic() - self.saved > LINES_SECONDS:
            self._put(lines_table(self.new))
            self.new, self.saved = [], time.monotonic()

    def _put(self, lines: pa.Table) -> None:
        self.saved_as = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"  # in the order of time
        (self.output.lines / self.saved_as).put(parquet_bytes(lines))

    def forget_all_but(self, units: Units) -> None:
        """Of what earlier runs knew, keep the lines of these units alone: others will be made again, perhaps otherwise.

        The manifest's lines go to `manifest_lines/`, for the manifest is not finished any more.
        """
        known = self._known()
        names = pa.array(units.names, pa.string())
        kept = known.filter(pc.is_in(known["name"], names)) if len(known) else known
        if len(kept):
            self._put(kept)
        newest = self.saved_as if len(kept) else None
        for name in self.output.lines.list():
            if name != newest:
                (self.output.lines / name).remove()
        self.output.manifest_files.remove()

    def _known(self) -> pa.Table:
        """All lines that are put somewhere; the first of a name is the newest."""
        places = [self.output.manifest_files] if self.output.manifest_files.exists() else []
        places += [self.output.lines / name for name in sorted(self.output.lines.list())]
        tables = [pq.read_table(io.BytesIO(place.read()), schema=LINES_SCHEMA) for place in places]
        return pa.concat_tables([LINES_SCHEMA.empty_table(), *tables[::-1]])

    def of(self, units: Units) -> pa.Table:
        """The lines of these units in their order, one each; what was put nowhere is read from the units themselves.

        A million take 300 MB.
        """
        known = pa.concat_tables([lines_table(self.new), self._known()])
        names = pa.array(units.names, pa.string())
        found = pc.index_in(names, known["name"])
        lacking = iter(names.filter(found.is_null()).to_pylist())
        with ThreadPoolExecutor(16) as pool:
            while some := list(islice(lacking, LINES_AT_ONCE)):
                known = pa.concat_tables([known, lines_table(pool.map(partial(read_line, self.output), some))])
        return known.take(pc.index_in(names, known["name"]))


def write_manifest(output: Output, lines: pa.Table, values: dict[str, Any]) -> dict[str, Any]:
    """Put manifest_files.parquet and, last of all, manifest.json with the totals. Returns the latter."""
    data = parquet_bytes(lines)
    manifest = totals(lines) | values | {"manifest_files_sha256": hashlib.sha256(data).hexdigest()}
    output.manifest_files.put(data)
    output.manifest.put_json(manifest)
    output.lines.remove()
    return manifest


def totals(lines: pa.Table) -> dict[str, Any]:
    """Sums over the lines of a manifest."""
    summed = ("rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs", "bytes")
    sums: dict[str, Any] = {name: int(pc.sum(lines[name]).as_py() or 0) for name in summed}
    reasons: Counter[str] = Counter()
    for found in lines["reasons"].value_counts().to_pylist():
        reasons.update({reason: rows * found["counts"] for reason, rows in json.loads(found["values"]).items()})
    return {"rows_in": sums["rows_out"] + sums["rows_rejected"], **sums, "units": len(lines), "reasons": dict(reasons)}
