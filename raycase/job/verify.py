"""A finished output: what checks it against its manifest, and what reads its vectors."""

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, WorkError, check_problems, expecting
from raycase.io.schema import CONDITION, FLOATS, ID, REJECTED_SCHEMA
from raycase.io.source import MEND
from raycase.io.storage import Location
from raycase.job.manifest import LINES_AT_ONCE, read_manifest, totals
from raycase.job.output import JobFile, Output, UnitFile, read_job
from raycase.job.results import EMBEDDINGS, TokenResult, count_defects, result_of
from raycase.job.runner import Mapped, Runner
from raycase.job.units import DamagedError, parsed, read_checked
from raycase.tokens.stored import TokenFormat

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
    config = read_job(output).config
    output = Output(uri, result_of(config).FOLDER)
    if not output.manifest.exists():
        raise WorkError(f"{output.root.uri}: expected manifest.json, got none: the job is not finished; run it again")
    manifest, lines = read_manifest(output)
    defects, runner = [*listed_defects(output, manifest, lines)], runner or Runner()
    if not defects and len(lines):
        [first] = lines.slice(0, 1).to_pylist()
        schema = parsed(read_checked(output.units / first["name"], first["sha256"]), first["name"]).schema
        basis = hashlib.sha256(output.basis.read()).hexdigest() if output.basis.exists() else None
        of_all = {"dim": manifest["model"]["dim"], "schema": schema, "basis": basis, "config": config}
        check = partial(check_files, uri=output.root.uri, **of_all)
        defects = sorted(chain.from_iterable(_of_files(runner, check, lines, output)))  # results come in any order
        ids = [] if defects else repeated_ids(output, config, lines["name"].to_pylist(), runner)
        defects += [f"several rows with the id {id_!r}" for id_ in ids]
    if defects:
        more = f" (and {len(defects) - 3} more)" if len(defects) > 3 else ""
        raise WorkError(f"{output.root.uri}: " + "; ".join(defects[:3]) + more)
    return {name: manifest[name] for name in ("rows_in", "rows_out", "rows_rejected", "pairs", "units")}


def listed_defects(output: Output, manifest: Mapping[str, Any], lines: pa.Table) -> Iterator[str]:
    """The defects that a listing shows, in words: of totals, rows of the input, names and sizes. Reads no vectors."""
    for total, value in totals(lines).items():
        if manifest[total] != value:
            yield f"manifest.json: {total} is {manifest[total]}, its files add up to {value}"
    if read_job(output).fingerprint != manifest["fingerprint"]:
        yield "manifest.json: another fingerprint than job.json"
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
        elif line["rows_rejected"] and rejected.pop(name, None) is None:
            yield f"{output.results}/{name}: its rejected/{name}: missing"
    for folder, names in ((output.results, sizes), ("rejected", rejected)):
        yield from (f"{folder}/{name}: not in the manifest" for name in sorted(names))


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
    manifest: Mapping[str, Any]
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


def several_rows(ids: Sequence[Any]) -> str:
    """What is wrong with an output in which these ids are of several rows, as an error names it; "" for none."""
    named = f"{', '.join(map(repr, ids[:3]))}{f' and {len(ids) - 3} or more others' * (len(ids) > 3)}"
    return f"each id in one row, got several rows with {named}; mend the input and pass --overwrite" if ids else ""


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
    manifest, lines = read_manifest(output)
    if manifest["fingerprint"] != job.fingerprint:
        raise WorkError(f"{flag}: expected job.json and manifest.json of one job in {output.root.uri}, got of two")
    names = lines["name"].to_pylist()
    sums, pairs = (dict(zip(names, lines[of].to_pylist(), strict=True)) for of in ("sha256", "pairs"))
    units = tuple(map(UnitFile.parse, names))
    if problem := several_rows(manifest["repeated_ids"]):
        raise RequestError(f"{flag}: {output.root.uri}: expected {problem}")
    return FinishedOutput(
        output=output,
        job_file=job,
        manifest=manifest,
        units=units,
        sums=sums,
        pairs_of=pairs,
        unconditional=job.config["unconditional"],
        has_tokens=result is TokenResult,
    )
