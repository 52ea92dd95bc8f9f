"""The output folder: job.json first, one file per unit, manifest last; resuming, accounting."""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.corpus.finished import UnitFile, Units, finished
from raycase.data.claim import claim
from raycase.data.inputs import InputFile
from raycase.data.storage import Location, fingerprint, locate
from raycase.errors import RequestError, WorkError

STATS = b"raycase"  # key of a unit's counts in its file's metadata
ROW_OF_PAIR = "__row"  # the input row of each pair: counted, not written


@dataclass(frozen=True)
class Output:
    """Where the files of an output folder are."""

    root: Location

    @property
    def job(self) -> Location:
        return self.root / "job.json"

    @property
    def embeddings(self) -> Location:
        return self.root / "embeddings"

    @property
    def rejected(self) -> Location:
        return self.root / "rejected"

    @property
    def spans(self) -> Location:
        """How the input is cut, so that a resume need not find out again."""
        return self.root / "spans.parquet"

    @property
    def lines(self) -> Location:
        """Lines of the manifest while a run goes on, so that a resume need not read the units for their checksums."""
        return self.root / "manifest_lines"

    @property
    def manifest(self) -> Location:
        return self.root / "manifest.json"

    @property
    def manifest_files(self) -> Location:
        return self.root / "manifest_files.parquet"

    def clear(self) -> None:
        """Remove what a job wrote, the manifest first and job.json last; other files in the folder stay."""
        for part in (*self.parts[::-1], self.job):
            part.remove()

    @property
    def parts(self) -> tuple[Location, ...]:
        """All that a job writes beside job.json."""
        return self.rejected, self.embeddings, self.spans, self.lines, self.manifest_files, self.manifest


def output_at(uri: str) -> Output:
    """The output folder at a URI."""
    return Output(locate(uri))


# ------------------------------------------------------------------------------------------------------------ job


@dataclass(frozen=True, kw_only=True)
class Job:
    """What job.json holds: the configuration that decides the vectors, and the input files in their order."""

    config: dict[str, Any]
    files: list[InputFile]
    salt: str = ""  # of a job that overwrote another: a late writer of the same configuration is not ours

    @cached_property
    def fingerprint(self) -> str:
        """Of the configuration; the input files are listed beside it, since new ones may come."""
        return fingerprint([self.config, self.salt] if self.salt else self.config)

    @property
    def print8(self) -> str:
        """What the names of its units begin with."""
        return self.fingerprint[:8]


def find_job(
    output: Output, config: dict[str, Any], files: Sequence[InputFile], *, overwrite: bool = False
) -> tuple[Job, Units]:
    """The job that the folder is for, and what of it is done: a new one, or the same as before with new input files
    after those known.

    Raises RequestError where the folder holds another job's output, or where a known input file changed or vanished.
    """
    config = json.loads(json.dumps(config, default=str))
    if overwrite:
        job = Job(config=config, files=list(files), salt=uuid.uuid4().hex)
        return job, finished((), job.print8)[0]
    begun = read_job(output) if output.job.exists() else None
    job = begun or Job(config=config, files=list(files))
    units, strays = finished_units(output, job.print8)
    foreign = next((name for name in strays if UnitFile.parse(name) is None), None)
    if foreign:
        raise RequestError(
            f"--output: expected only units in {output.embeddings.uri}, got {foreign}; "
            "move it away, or pass --overwrite to remove the whole folder"
        )
    claim(
        output.root,
        output.job.name,
        replace(job, config=config).fingerprint,
        job="the same job",
        results=[output.embeddings.name],
        difference=_difference(job.config, config),
    )
    if begun is None:
        return job, units
    now = {f.uri: f for f in files}
    for old in begun.files:
        if now.get(old.uri) != old:
            what = "is changed" if old.uri in now else "is not there any more"
            raise RequestError(
                f"--input: expected {old.uri} as it was when {output.root.uri} was begun, but it {what}; "
                "put it back, choose another output folder or pass --overwrite"
            )
    known = set(begun.files)
    return replace(begun, files=begun.files + [f for f in files if f not in known]), units


def read_job(output: Output) -> Job:
    """Read job.json. Raises RequestError where it is not one of raycase."""
    values = output.job.read_json()
    try:
        return Job(config=values["config"], files=[InputFile(**f) for f in values["files"]], salt=values["salt"])
    except (KeyError, TypeError) as error:
        raise RequestError(f"{output.job.uri}: expected the job.json of jobs/embed.py, got another file") from error


def write_job(output: Output, job: Job) -> None:
    """Put job.json."""
    values = {"config": job.config, "salt": job.salt, "files": [asdict(f) for f in job.files]}
    output.job.put_json({"fingerprint": job.fingerprint} | values)


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """The first place where two configurations differ, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: {str(found)[:80]} there, {str(wanted)[:80]} asked"


# ---------------------------------------------------------------------------------------------------------- units


@dataclass(frozen=True, kw_only=True)
class UnitLine:
    """One line of manifest_files.parquet: a finished unit, its counts and checksums."""

    name: str
    file: int
    start: int
    rows_out: int
    rows_rejected: int
    rows_truncated: int
    pairs: int
    distinct_pairs: int
    bytes: int
    sha256: str
    rejected_sha256: str | None
    reasons: str  # JSON: reason -> rows


LINES_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        *((n, pa.int64()) for n in ("file", "start", "rows_out", "rows_rejected", "rows_truncated")),
        *((n, pa.int64()) for n in ("pairs", "distinct_pairs", "bytes")),
        *((n, pa.string()) for n in ("sha256", "rejected_sha256", "reasons")),
    ]
)


def write_unit(
    output: Output,
    print8: str,
    unit: tuple[int, int],
    table: pa.Table,
    rejected: pa.Table,
    *,
    rows_in: int,
    distinct_pairs: int,
    rows_truncated: int,
) -> UnitLine:
    """Write a unit (input file, first row): the rejected rows first, the vectors last, each in one atomic put.

    The table says in its column `ROW_OF_PAIR` which input row each pair is of. Raises WorkError where rows in are not
    rows out and rejected.
    """
    file = UnitFile(
        file=unit[0], start=unit[1], rows_out=len(pc.unique(table[ROW_OF_PAIR])), rows_rejected=len(rejected)
    )
    if file.rows != rows_in:
        raise WorkError(f"input file {unit[0]}, from row {unit[1]}: {rows_in} rows in, {file.rows} out and rejected")
    name = file.name(print8)
    stats = {
        "rows_truncated": rows_truncated,
        "distinct_pairs": distinct_pairs,
        "reasons": dict(sorted(Counter(rejected["reason"].to_pylist()).items())),
    }
    rejected_bytes: bytes | None = None
    if len(rejected):
        rejected_bytes = parquet_bytes(rejected)
        (output.rejected / name).put(rejected_bytes)
    data = parquet_bytes(table.drop_columns([ROW_OF_PAIR]).replace_schema_metadata({STATS: json.dumps(stats)}))
    (output.embeddings / name).put(data)
    return _line(name, file, data, rejected_bytes, pairs=len(table), stats=stats)


def _line(
    name: str, unit: UnitFile, data: bytes, rejected: bytes | None, *, pairs: int, stats: dict[str, Any]
) -> UnitLine:
    return UnitLine(
        name=name,
        **asdict(unit),
        rows_truncated=stats["rows_truncated"],
        pairs=pairs,
        distinct_pairs=stats["distinct_pairs"],
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        rejected_sha256=None if rejected is None else hashlib.sha256(rejected).hexdigest(),
        reasons=json.dumps(stats["reasons"], ensure_ascii=False),
    )


def read_line(output: Output, name: str) -> UnitLine:
    """Make the manifest's line of a unit that an earlier run wrote, from the files themselves."""
    parsed = UnitFile.parse(name)
    assert parsed is not None
    data = (output.embeddings / name).read()
    metadata = pq.read_metadata(io.BytesIO(data))
    rejected = (output.rejected / name).read() if parsed[1].rows_rejected else None
    stats = json.loads(metadata.metadata[STATS])
    return _line(name, parsed[1], data, rejected, pairs=metadata.num_rows, stats=stats)


def parquet_bytes(table: pa.Table, rows: int | None = None) -> bytes:
    """A table as a Parquet file; `rows`: of a row group."""
    sink = io.BytesIO()
    texts = [f.name for f in table.schema if pa.types.is_string(f.type)]
    # vectors do not compress, and a dictionary of them is lost work
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts or False}
    pq.write_table(table, sink, row_group_size=rows, **options)
    return sink.getvalue()


# -------------------------------------------------------------------------------------------------------- account

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
            self._put(_lines_table(self.new))
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
        known = pa.concat_tables([_lines_table(self.new), self._known()])
        names = pa.array(units.names, pa.string())
        found = pc.index_in(names, known["name"])
        lacking = iter(names.filter(found.is_null()).to_pylist())
        with ThreadPoolExecutor(16) as pool:
            while some := list(islice(lacking, LINES_AT_ONCE)):
                known = pa.concat_tables([known, _lines_table(pool.map(partial(read_line, self.output), some))])
        return known.take(pc.index_in(names, known["name"]))


def _lines_table(lines: Iterable[UnitLine]) -> pa.Table:
    return pa.Table.from_pylist([vars(line) for line in lines], schema=LINES_SCHEMA)


def finished_units(output: Output, print8: str) -> tuple[Units, list[str]]:
    """The units of a job in the listing, and the names of other files there."""
    return finished((name for name, _ in output.embeddings.entries()), print8)


def drop_strays(output: Output, units: Units, strays: Iterable[str]) -> list[str]:
    """Remove files that do not count: another fingerprint's or an overlapping unit of a late writer, rejected rows
    without their unit, and what a killed writer left. Returns their names."""
    places = [output.embeddings / name for name in strays if UnitFile.parse(name)]
    places += [output.rejected / name for name, _ in output.rejected.entries() if name not in units]
    places += [half for part in (output.embeddings, output.rejected) for half in part.half_written()]
    for stray in places:
        stray.remove()
    return [stray.uri for stray in places]


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
