"""Reads a finished output and checks it against its manifest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.job_record import read_job
from raycase.corpus.listing import UnitFile
from raycase.corpus.manifest import LINES_AT_ONCE, totals
from raycase.corpus.output import Output, output_at
from raycase.data.schema import CONDITION, EMBEDDING, ID, REJECTED_SCHEMA
from raycase.data.stored_words import StoredWords, WordFormat
from raycase.errors import RequestError, WorkError


def verify(uri: str) -> dict[str, Any]:
    """Check counts, checksums, schemas, vectors (finite) and pairs (no duplicates) of an output against its manifest.

    Returns the totals. Raises RequestError where there is no output, and WorkError that names the first three defects.
    """
    output = output_at(uri)
    if not output.job.exists():
        raise RequestError(f"expected the output of `raycase embed` at {output.root.uri}, got no job.json")
    if not output.manifest.exists():
        raise WorkError(f"{output.root.uri}: expected manifest.json, got none: the job is not finished; run it again")
    defects = list(_defects(output))
    if defects:
        more = f" (and {len(defects) - 3} more)" if len(defects) > 3 else ""
        raise WorkError(f"{output.root.uri}: " + "; ".join(defects[:3]) + more)
    manifest: dict[str, Any] = output.manifest.read_json()
    return {name: manifest[name] for name in ("rows_in", "rows_out", "rows_rejected", "pairs", "units")}


def _defects(output: Output) -> Iterator[str]:
    """Each defect in words. Stops after the first where the manifest's own table of files cannot be trusted."""
    manifest = output.manifest.read_json()
    if not output.manifest_files.exists():
        yield "manifest_files.parquet: missing"
        return
    data = output.manifest_files.read()
    if hashlib.sha256(data).hexdigest() != manifest["manifest_files_sha256"]:
        yield "manifest_files.parquet: checksum differs from manifest.json"
        return
    lines = pq.read_table(pa.BufferReader(data))
    yield from _total_defects(output, manifest, lines)
    yield from _coverage_defects(lines)
    yield from _file_defects(output, manifest, lines)


def _total_defects(output: Output, manifest: dict[str, Any], lines: pa.Table) -> Iterator[str]:
    """`manifest.json` against the table of files and `job.json`."""
    for name, value in totals(lines).items():
        if manifest[name] != value:
            yield f"manifest.json: {name} is {manifest[name]}, its files add up to {value}"
    if read_job(output).fingerprint != manifest["fingerprint"]:
        yield "job.json: another fingerprint than manifest.json"


def _coverage_defects(lines: pa.Table) -> Iterator[str]:
    """Rows of the input that no unit covers, or two units do."""
    units = (UnitFile(*(line[n] for n in ("file", "start", "rows_out", "rows_rejected"))) for line in _rows(lines))
    for file, group in groupby(units, key=lambda u: u.file):  # the manifest is in the order of the input
        next_row = 0
        for unit in group:
            if unit.start != next_row:
                yield f"input file {file}: rows {next_row} to {unit.start} are missing or twice"
            next_row = unit.end


def _file_defects(output: Output, manifest: dict[str, Any], lines: pa.Table) -> Iterator[str]:
    """The files in `embeddings/` and `rejected/` against their lines of the manifest; pairs in more than one file."""
    listed = set(output.embeddings.list())
    for name in sorted(listed - set(lines["name"].to_pylist())):
        yield f"embeddings/{name}: not in the manifest"
    pair_hashes = _PairHashes()
    schema: pa.Schema | None = None
    basis = hashlib.sha256(output.basis.read()).hexdigest() if output.basis.exists() else None
    for line in _rows(lines):
        name = f"embeddings/{line['name']}"
        if line["name"] not in listed:
            yield f"{name}: missing"
            continue
        raw = (output.embeddings / line["name"]).read()
        if hashlib.sha256(raw).hexdigest() != line["sha256"]:
            yield f"{name}: checksum differs"
            continue
        table = pq.read_table(pa.BufferReader(raw))
        schema = schema or table.schema
        if table.schema != schema or table.schema.field(EMBEDDING).type.list_size != manifest["model"]["dim"]:
            yield f"{name}: schema differs from the first file's or the model's"
            continue
        form = WordFormat.of(table.schema)
        if form is not None and form.basis != basis:
            yield f"{output.basis.name}: {'another' if basis else 'missing'}, not the one that coded {name}"
        yield from _table_defects(name, table, line)
        pair_hashes.add(table)
        if line["rows_rejected"]:
            yield from _rejected_defects(output, line)
    yield from pair_hashes.duplicates(output, lines)


def _table_defects(name: str, table: pa.Table, line: dict[str, Any]) -> Iterator[str]:
    """Count and vectors of one file of pairs."""
    if len(table) != line["pairs"]:
        yield f"{name}: {len(table)} pairs, the manifest says {line['pairs']}"
    values = table[EMBEDDING].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    if table[EMBEDDING].null_count or not np.isfinite(values).all():
        yield f"{name}: a vector is null or not finite"
    form = WordFormat.of(table.schema)
    if form is not None:
        try:
            StoredWords.from_arrow(table, form)
        except ValueError as error:
            yield f"{name}: stored words: {error}"


def _rejected_defects(output: Output, line: dict[str, Any]) -> Iterator[str]:
    """The file of a unit's rejected rows against its line of the manifest."""
    name = f"rejected/{line['name']}"
    try:
        raw = (output.rejected / line["name"]).read()
    except FileNotFoundError:
        yield f"{name}: missing"
        return
    if hashlib.sha256(raw).hexdigest() != line["rejected_sha256"]:
        yield f"{name}: checksum differs"
        return
    table = pq.read_table(pa.BufferReader(raw))
    if not table.schema.equals(REJECTED_SCHEMA) or len(table) != line["rows_rejected"]:
        yield f"{name}: {len(table)} rows of {table.schema.names}, the manifest says {line['rows_rejected']}"


class _PairHashes:
    """64-bit hashes of the (id, condition) of every pair: 8 bytes per pair. Equal hashes are compared in full."""

    def __init__(self) -> None:
        self.hashes: list[np.ndarray] = []

    def add(self, table: pa.Table) -> None:
        self.hashes.append(self._hash(table))

    @staticmethod
    def _hash(table: pa.Table) -> np.ndarray:
        pairs = zip(table[ID].to_pylist(), table[CONDITION].to_pylist(), strict=True)
        return np.fromiter((hash(p) for p in pairs), dtype=np.int64, count=len(table))

    def duplicates(self, output: Output, lines: pa.Table) -> Iterator[str]:
        """One defect for each pair that occurs more than once in the output."""
        if not self.hashes:
            return
        values, counts = np.unique(np.concatenate(self.hashes), return_counts=True)
        suspects = values[counts > 1]
        if not len(suspects):
            return
        seen: Counter[tuple[Any, str]] = Counter()
        for name in lines["name"].to_pylist():
            table = pq.read_table(pa.BufferReader((output.embeddings / name).read()), columns=[ID, CONDITION])
            table = table.filter(pa.array(np.isin(self._hash(table), suspects)))
            seen.update(zip(table[ID].to_pylist(), table[CONDITION].to_pylist(), strict=True))
        for (id_, condition), times in seen.items():
            if times > 1:
                yield f"id {id_!r} under {condition!r}: {times} times"


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a large table as dictionaries, converted in batches."""
    for batch in table.to_batches(max_chunksize=LINES_AT_ONCE):
        yield from batch.to_pylist()
