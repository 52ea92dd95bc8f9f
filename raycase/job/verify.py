"""A finished output: what checks it against its manifest, what reads its vectors, and the manifest itself."""

import hashlib
import json
import os
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NotRequired

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

import raycase
from raycase.errors import RequestError, WorkError, check_problems, expecting
from raycase.io.json_values import from_json
from raycase.io.schema import CONDITION, FLOATS, ID, REJECTED_SCHEMA, parquet_bytes, parquet_table
from raycase.io.source import MEND
from raycase.io.storage import Location
from raycase.job.output import JobFile, Output, read_job
from raycase.job.results import EMBEDDINGS, TokenResult, count_defects, result_of
from raycase.job.runner import Mapped, Runner
from raycase.job.units import DamagedError, UnitFile, UnitLine, Units, parsed, read_checked, read_line
from raycase.tokens.stored import TokenFormat

VERSIONS = ("ray", "torch", "transformers", "pyarrow")  # packages that a manifest names
LINES_AT_ONCE, LINES_SECONDS = 4096, 60.0  # of a file in `manifest_lines/`: most lines, most seconds
LINES_SCHEMA = pa.schema([(f.name, pa.int64() if f.type is int else pa.string()) for f in fields(UnitLine)])
FILES_AT_ONCE = 16  # of a task
AHEAD = 4  # files read before they are needed
PART_PAIRS = 2**24  # whose hashes are compared at once: 128 MB
PAIR = [ID, CONDITION]
MOST_REPEATED = 100  # ids that are named in a manifest


def check_files(
    lines: pa.Table, *, uri: str, schema: pa.Schema, dim: int, basis: str | None, config: Mapping[str, Any]
) -> list[str]:
    """The defects of some files of an output; `schema`: of the first file, `basis`: sha256 of that of stored tokens."""
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
    """Check counts, checksums, schemas, vectors and ids of an output against its manifest; returns the totals."""
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
    manifest = read_manifest(output)
    lines = read_lines(output.manifest_files, manifest["manifest_files_sha256"])
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
    lines = read_lines(output.manifest_files, manifest["manifest_files_sha256"])
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
    """Ids, at most `MOST_REPEATED`, that several rows have under one condition, unless they may repeat."""
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

    They are dealt by value to temporary files, for those of billions of pairs do not fit into memory.
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


# ------------------------------------------------------------------------------------------------------------ read


@dataclass(frozen=True, kw_only=True)
class FinishedOutput:
    """A finished output and its units."""

    output: Output
    job_file: JobFile
    units: tuple[UnitFile, ...]
    sums: Mapping[str, str]  # name of a file in `embeddings/` -> its sha256 in the manifest
    pairs_of: Mapping[str, int]  # and its pairs
    unconditional: bool
    has_tokens: bool  # whether the rows have stored tokens

    @property
    def names(self) -> list[str]:
        """Names of the files that hold vectors."""
        return [u.name(self.job_file.fingerprint[:8]) for u in self.units if u.rows_out]

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each file, in order; `AHEAD` are read ahead, where Arrow's own scanner has no bound."""
        pool, folder = ThreadPoolExecutor(AHEAD), self.output.units
        reads = (pool.submit(read_rows, folder / name, self.sums[name], columns) for name in self.names)
        try:
            waiting = deque(islice(reads, AHEAD + 1))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(islice(reads, 1))
        finally:  # where the rest is not wanted, perhaps in a thread that is just starting, which must not wait
            pool.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the files; it is the same for all."""
        return read_rows(self.output.units / self.names[0], self.sums[self.names[0]]).schema

    def check_basis(self, flag: str) -> None:
        """Raise RequestError, which names the flag, unless the basis beside stored tokens is that which coded them."""
        form = TokenFormat.of(self.schema) if self.names else None
        data = self.output.basis.read() if self.output.basis.exists() else b""
        if self.names and (form is None or form.basis != hashlib.sha256(data).hexdigest()):
            raise RequestError(
                f"{flag}: expected {self.output.basis.uri}, the basis of the stored tokens, got "
                f"{'another' if data else 'none'}; embed again"
            )


def read_rows(file: Location, sha256: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file in `embeddings/`. Raises WorkError where it is not the one of this checksum."""
    with expecting(f"expected {file.uri} as in its manifest", DamagedError, advice=f"; {MEND}", raises=WorkError):
        return parsed(read_checked(file, sha256), file.uri, columns)


def open_written(uri: str, flag: str) -> FinishedOutput:
    """The finished output at a URI. Raises RequestError if there is none, and WorkError for one that is damaged."""
    output = Output(uri)
    for file in (output.job_file, output.manifest):
        if not file.exists():
            raise RequestError(
                f"{flag}: expected a finished output of `raycase embed` at {output.root.uri}, got no {file.name}; run "
                "its job"
            )
    job = read_job(output)
    result, dtype, place = result_of(job.config), job.config["dtype"], output.root.uri
    scores = f"{flag}: expected an output with vectors, got the {result.FOLDER} of pairs in {place}"
    small = f"{flag}: expected vectors of {' or '.join(FLOATS)}, got {dtype} in {place}, which is for other programs; "
    check_problems(
        {scores: result.FOLDER != EMBEDDINGS, small + "embed again with --dtype float16": dtype not in FLOATS}
    )
    manifest = read_manifest(output)
    if manifest["fingerprint"] != job.fingerprint:
        raise WorkError(f"{flag}: expected job.json and manifest.json of one job in {output.root.uri}, got of two")
    lines = read_lines(output.manifest_files, manifest["manifest_files_sha256"])
    names = lines["name"].to_pylist()
    sums, pairs = (dict(zip(names, lines[of].to_pylist(), strict=True)) for of in ("sha256", "pairs"))
    units = tuple(map(UnitFile.parse, names))
    looked = "repeated_ids" in manifest  # else its job is older
    ids = manifest["repeated_ids"] if looked else repeated_ids(output, job.config, names, Runner())
    if problem := several_rows(ids):
        raise RequestError(f"{flag}: {output.root.uri}: expected {problem}")
    return FinishedOutput(
        output=output,
        job_file=job,
        units=units,
        sums=sums,
        pairs_of=pairs,
        unconditional=job.config["unconditional"],
        has_tokens=result is TokenResult,
    )


# ------------------------------------------------------------------------------------------------------------- manifest


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
    repeated_ids: NotRequired[list[Any]]  # of several rows: the first of them
    fingerprint: str
    model: ManifestModel
    manifest_files_sha256: str


def read_manifest(output: Output) -> dict[str, Any]:
    """Read manifest.json. Raises RequestError where it is not one of raycase."""
    with expecting(f"{output.manifest.uri}: expected the manifest of an output", ValueError):
        return dict(from_json(Manifest, output.manifest.read_json()))


def several_rows(ids: Sequence[Any]) -> str:
    """What is wrong with an output in which these ids are of several rows, as an error names it; "" for none."""
    named = f"{', '.join(map(repr, ids[:3]))}{f' and {len(ids) - 3} or more others' * (len(ids) > 3)}"
    return f"each id in one row, got several rows with {named}; mend the input and pass --overwrite" if ids else ""


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
