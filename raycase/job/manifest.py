"""The manifest of an output, written last of all: its lines, one of each unit, and their sums."""

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

import raycase
from raycase.errors import expecting
from raycase.io.json_values import from_json
from raycase.io.schema import parquet_bytes, parquet_table
from raycase.io.storage import Location
from raycase.job.output import Output, Units
from raycase.job.units import UnitLine, read_checked, read_line

VERSIONS = ("ray", "torch", "transformers", "pyarrow")  # packages that a manifest names
LINES_AT_ONCE, LINES_SECONDS = 4096, 60.0  # of a file in `manifest_lines/`: most lines, most seconds
LINES_SCHEMA = pa.schema([(f.name, pa.int64() if f.type is int else pa.string()) for f in fields(UnitLine)])


def lines_table(lines: Iterable[UnitLine]) -> pa.Table:
    """Lines as a table of `LINES_SCHEMA`; reasons are JSON."""
    rows = [vars(line) | {"reasons": json.dumps(line.reasons, ensure_ascii=False)} for line in lines]
    return pa.Table.from_pylist(rows, schema=LINES_SCHEMA)


@dataclass
class Lines:
    """The manifest's lines: those of this run, saved in `manifest_lines/` now and then, and those of earlier runs."""

    output: Output
    new: list[UnitLine] = field(default_factory=list)
    saved: float = field(default_factory=time.monotonic)

    def add(self, line: UnitLine) -> None:
        """Add a line; save the new ones if they are many, or the last time is long ago."""
        self.new.append(line)
        if len(self.new) >= LINES_AT_ONCE or time.monotonic() - self.saved > LINES_SECONDS:
            self._put(lines_table(self.new))
            self.new, self.saved = [], time.monotonic()

    def _put(self, lines: pa.Table) -> str:
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"  # names sort by time
        (self.output.lines / name).put(parquet_bytes(lines))
        return name

    def begin(self, units: Units) -> None:
        """Remove the manifest, no longer complete, and lines of other units than these: they may get other bytes."""
        self.output.manifest.remove()
        saved = self._saved()
        kept = saved.filter(pc.is_in(saved["name"], pa.array(units.names, pa.string())))
        if len(kept) < len(saved):
            new = self._put(kept)
            for name in self.output.lines.list().keys() - {new}:
                (self.output.lines / name).remove()
            self.output.manifest_files.remove()

    def _saved(self) -> pa.Table:
        """All saved lines; the first one of a unit is the newest."""
        files = [self.output.lines / name for name in sorted(self.output.lines.list(), reverse=True)]
        files += [self.output.manifest_files] if self.output.manifest_files.exists() else []
        return pa.concat_tables([LINES_SCHEMA.empty_table(), *map(read_lines, files)])

    def of(self, units: Units) -> pa.Table:
        """The lines of these units in order, those never saved made from their files; a million lines take 300 MB."""
        known = pa.concat_tables([lines_table(self.new), self._saved()])
        names = pa.array(units.names, pa.string())
        unsaved = names.filter(pc.invert(pc.is_in(names, known["name"])))
        with ThreadPoolExecutor(16) as pool:
            for start in range(0, len(unsaved), LINES_AT_ONCE):
                batch = unsaved[start : start + LINES_AT_ONCE].to_pylist()
                known = pa.concat_tables([known, lines_table(pool.map(partial(read_line, self.output), batch))])
        return known.take(pc.index_in(names, known["name"]))


class ManifestModel(TypedDict):
    """The model in manifest.json, as far as it is read back."""

    name: str
    dim: int


class Manifest(TypedDict):
    """manifest.json, as far as it is read back. Columns of a line are summed under their own names."""

    rows_in: int
    rows_out: int
    rows_rejected: int
    rows_truncated: int
    pairs: int
    distinct_pairs: int
    bytes: int
    units: int
    reasons: dict[str, int]
    repeated_ids: list[Any]  # of several rows: the first of them
    fingerprint: str
    model: ManifestModel
    manifest_files_sha256: str


def read_manifest(output: Output) -> tuple[dict[str, Any], pa.Table]:
    """manifest.json and its lines. Raises RequestError where it is not one of raycase, DamagedError for other lines."""
    with expecting(f"{output.manifest.uri}: expected the manifest of an output", ValueError):
        manifest: dict[str, Any] = dict(from_json(Manifest, output.manifest.read_json()))
    return manifest, read_lines(output.manifest_files, manifest["manifest_files_sha256"])


def read_lines(file: Location, sha256: str | None = None) -> pa.Table:
    """A table of `LINES_SCHEMA` from its file, which has this checksum if one is given."""
    data = file.read() if sha256 is None else read_checked(file, sha256)
    errors = (ValueError, KeyError, OSError, pa.ArrowException)  # OSError: of Arrow, no store is asked here
    with expecting(f"{file.uri}: expected lines of a manifest", *errors, advice="; remove it"):
        return parquet_table(data).select(LINES_SCHEMA.names).cast(LINES_SCHEMA)


def write_manifest(output: Output, lines: pa.Table, values: dict[str, Any]) -> None:
    """Write manifest_files.parquet and, last of all, manifest.json with the totals."""
    data = parquet_bytes(lines)
    made = {
        "versions": {name: version(name) for name in VERSIONS} | {"raycase": raycase.__version__},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    output.manifest_files.put(data)
    sha256 = hashlib.sha256(data).hexdigest()
    output.manifest.put_json(totals(lines) | values | made | {"manifest_files_sha256": sha256})
    output.lines.remove()


def totals(lines: pa.Table) -> dict[str, Any]:
    """The sums over the lines of a manifest."""
    summed = [f.name for f in LINES_SCHEMA if f.name in Manifest.__annotations__ and pa.types.is_integer(f.type)]
    sums: dict[str, Any] = {name: int(pc.sum(lines[name]).as_py() or 0) for name in summed}
    reasons: Counter[str] = Counter()
    for equal in lines["reasons"].value_counts().to_pylist():
        reasons.update({reason: rows * equal["counts"] for reason, rows in json.loads(equal["values"]).items()})
    return {"rows_in": sums["rows_out"] + sums["rows_rejected"], **sums, "units": len(lines), "reasons": dict(reasons)}
