"""Reads a finished output and checks it against its manifest."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, WorkError
from raycase.io.schema import CONDITION, ID, REJECTED_SCHEMA
from raycase.job.manifest import LINES_AT_ONCE, manifest_lines, read_manifest, totals
from raycase.job.output import Output, read_job
from raycase.job.results import count_defects, result_of
from raycase.job.runner import Mapped, Runner
from raycase.job.unit_files import DamagedError, UnitFile, parsed, read_checked

FILES_AT_ONCE = 16  # of a task
PART_PAIRS = 2**24  # whose hashes are compared at once: 128 MB
PAIR = [ID, CONDITION]
MOST_REPEATED = 100  # ids that are named in a manifest


def check_files(
    lines: pa.Table, *, uri: str, schema: pa.Schema, dim: int, basis: str | None, config: Mapping[str, Any]
) -> list[str]:
    """The defects of some files of an output, in words.

    schema: of the first file of units. basis: sha256 of that of stored tokens. config: of the job.
    """
    result = result_of(config)
    output = Output(uri, result.FOLDER)
    defects: list[str] = []
    for line in lines.to_pylist():
        try:
            name = f"{output.results}/{line['name']}"
            table = parsed(read_checked(output.units / line["name"], line["sha256"]), name)
            found = ["schema differs from the first file's"]
            if table.schema == schema:
                found = [f"{len(table)} pairs, the manifest has {line['pairs']}"] * (len(table) != line["pairs"])
                found += [*count_defects(line["rows_out"], table, config), *result.defects(table, config, dim, basis)]
            defects += [f"{name}: {defect}" for defect in found]
            if rows := line["rows_rejected"]:
                name = f"rejected/{line['name']}"
                table = parsed(read_checked(output.rejected / line["name"], line["rejected_sha256"]), name)
                if not table.schema.equals(REJECTED_SCHEMA) or len(table) != rows:
                    defects.append(f"{name}: {len(table)} rows of {table.schema.names}, the manifest has {rows}")
        except DamagedError as error:
            defects.append(str(error))
    return defects


def verify(uri: str, runner: Runner | None = None) -> dict[str, Any]:
    """Check counts, checksums, schemas, vectors (finite) and ids (each of one row) of an output against its manifest.

    runner: default: this process. Returns the totals. Raises RequestError where there is no output, and WorkError that
    names the first three defects.
    """
    output = Output(uri)
    if not output.job_file.exists():
        raise RequestError(f"expected the output of `raycase embed` at {output.root.uri}, got no job.json")
    output = Output(uri, result_of(read_job(output).config).FOLDER)
    if not output.manifest.exists():
        raise WorkError(f"{output.root.uri}: expected manifest.json, got none: the job is not finished; run it again")
    manifest = read_manifest(output)
    if defects := list(listed_defects(output)) or list(_file_defects(output, manifest, runner or Runner())):
        more = f" (and {len(defects) - 3} more)" if len(defects) > 3 else ""
        raise WorkError(f"{output.root.uri}: " + "; ".join(defects[:3]) + more)
    return {name: manifest[name] for name in ("rows_in", "rows_out", "rows_rejected", "pairs", "units")}


def listed_defects(output: Output) -> Iterator[str]:
    """The defects that a listing shows, in words: of totals, rows of the input, names and sizes. Reads no vectors."""
    manifest, lines = read_manifest(output), manifest_lines(output)
    for total, value in totals(lines).items():
        if manifest[total] != value:
            yield f"manifest.json: {total} is {manifest[total]}, its files add up to {value}"
    if read_job(output).fingerprint != manifest["fingerprint"]:
        yield "job.json: another fingerprint than manifest.json"
    sizes, rejected = output.units.list(), output.rejected.list()
    file, next_row = -1, 0  # the manifest is in the order of the input
    for line in chain.from_iterable(batch.to_pylist() for batch in lines.to_batches(max_chunksize=LINES_AT_ONCE)):
        if line["file"] != file:
            file, next_row = line["file"], 0
        if line["start"] != next_row:
            yield f"input file {file}: rows {next_row} to {line['start']} are missing or twice"
        next_row = line["start"] + line["rows_out"] + line["rows_rejected"]
        name = line["name"]
        size = sizes.pop(name, None)
        if size is None:
            yield f"{output.results}/{name}: missing"
        elif size != line["bytes"]:
            yield f"{output.results}/{name}: {size} bytes, the manifest has {line['bytes']}"
        elif line["rows_rejected"] and name not in rejected:
            yield f"rejected/{name}: missing"
    for name in sorted(sizes):
        yield f"{output.results}/{name}: not in the manifest"


def _file_defects(output: Output, manifest: dict[str, Any], runner: Runner) -> Iterator[str]:
    """The defects of the files that are listed, in words."""
    lines = manifest_lines(output)
    if not len(lines):
        return
    [first] = lines.slice(0, 1).to_pylist()
    check = partial(
        check_files,
        uri=output.root.uri,
        schema=parsed(read_checked(output.units / first["name"], first["sha256"]), first["name"]).schema,
        dim=manifest["model"]["dim"],
        basis=hashlib.sha256(output.basis.read()).hexdigest() if output.basis.exists() else None,
        config=read_job(output).config,
    )
    defects = sorted(chain.from_iterable(_of_files(runner, check, lines, output)))  # results come in any order
    ids = [] if defects else repeated_ids(output, check.keywords["config"], lines["name"].to_pylist(), runner)
    yield from defects or (f"several rows with the id {id_!r}" for id_ in ids)


def _of_files(
    runner: Runner, function: Callable[[Any], Mapped], files: pa.Table | Sequence[str], output: Output
) -> Iterator[Mapped]:
    """What a function gives for some of the files at a time."""
    some = [files[start : start + FILES_AT_ONCE] for start in range(0, len(files), FILES_AT_ONCE)]
    places, threads = [("output", output.root)], os.cpu_count() or 1
    return runner.map(function, some, unit=f"groups of {FILES_AT_ONCE} files", places=places, threads=threads)


# ------------------------------------------------------------------------------------------------------ pairs twice


def repeated_ids(output: Output, config: Mapping[str, Any], units: Iterable[str], runner: Runner) -> list[Any]:
    """Ids that several rows have under one condition, however these fell into units: at most `MOST_REPEATED`.

    config: of the job; units: names of all its files, whose vectors are not read. Ids that are numbers of rows, or may
    repeat, are not looked at. Raises WorkError for a damaged file.
    """
    if config["id_column"] is None or not result_of(config).UNIQUE:
        return []
    rows_of = {name: rows for name in units if (rows := UnitFile.parse(name).rows_out)}
    under = (config["conditions"] or [None])[0]  # of several, each row has all
    pairs = partial(_pairs, uri=output.root.uri, results=output.results, under=under)
    hashes = _of_files(runner, partial(_hashes, pairs), [*rows_of], output)
    twice = repeated(hashes, sum(rows_of.values()))[:MOST_REPEATED]
    seen: Counter[tuple[Any, str]] = Counter()
    for table in map(pairs, rows_of if len(twice) else ()):
        table = table.filter(pa.array(np.isin(pair_hashes(table), twice)))
        seen.update(zip(table[ID].to_pylist(), table[CONDITION].to_pylist(), strict=True))
    return list(dict.fromkeys(id_ for (id_, _), times in seen.items() if times > 1))


def _pairs(name: str, *, uri: str, results: str, under: str | None) -> pa.Table:
    """Id and condition of the pairs in a unit's file, of one condition or all (None). Raises DamagedError."""
    with (Output(uri, results).units / name).open() as file:
        table = parsed(file, f"{results}/{name}", PAIR)
    return table if under is None else table.filter(pc.equal(table[CONDITION], under))


def _hashes(pairs: Callable[[str], pa.Table], names: Sequence[str]) -> np.ndarray:
    """`pair_hashes` of some files."""
    return np.concatenate([pair_hashes(pairs(name)) for name in names])


def pair_hashes(table: pa.Table) -> np.ndarray:
    """A 64-bit hash of the (id, condition) of each pair, the same in every process: (N,) uint64."""
    import pandas as pd

    pairs = table.select(PAIR).to_pandas()
    return pd.util.hash_pandas_object(pairs, index=False, categorize=True).to_numpy()


def repeated(hashes: Iterable[np.ndarray], count: int) -> np.ndarray:
    """The values that occur more than once, of about `count` that come array by array; each once.

    They are dealt by value to parts in temporary files, for those of billions of pairs do not fit into memory.
    """
    parts = count // PART_PAIRS + 1
    found = [np.empty(0, np.uint64)]
    with TemporaryDirectory() as folder:
        files = [Path(folder, str(part)) for part in range(parts)]
        for values in hashes:
            part_of = values % np.uint64(parts)
            for part in np.unique(part_of).tolist():
                with files[part].open("ab") as end:
                    values[part_of == part].tofile(end)
        for file in filter(Path.exists, files):
            values, counts = np.unique(np.fromfile(file, np.uint64), return_counts=True)
            found.append(values[counts > 1])
    return np.concatenate(found)
