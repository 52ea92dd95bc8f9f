"""A finished output, opened to read its vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.job_record import SCORE_COLUMN, Job, read_job
from raycase.corpus.listing import UnitFile, finished_units
from raycase.corpus.manifest import manifest_lines
from raycase.corpus.output import Output, output_at
from raycase.corpus.unit_files import DamagedError, read_checked
from raycase.data.schema import EMBEDDING, finite_vectors
from raycase.data.storage import Location
from raycase.errors import RequestError, WorkError

AHEAD = 4  # files read before they are needed


@dataclass(frozen=True, kw_only=True)
class Written:
    """A finished output and its units."""

    output: Output
    job: Job
    units: tuple[UnitFile, ...]
    sums: Mapping[str, str]  # name of a file in `embeddings/` -> its sha256 in the manifest

    @property
    def unconditional(self) -> bool:
        return bool(self.job.config["unconditional"])

    @property
    def has_words(self) -> bool:
        """Whether the rows have stored words."""
        return "word_bytes" in self.job.config

    @property
    def names(self) -> list[str]:
        """Names of the files that hold vectors."""
        return [u.name(self.job.print8) for u in self.units if u.rows_out]

    def summed(self, names: Iterable[str]) -> dict[str, str]:
        """Files by name with their sha256."""
        return {name: self.sums[name] for name in names}

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each file, in order; `AHEAD` files are read ahead. Arrow's own scanner reads ahead without bound
        when its consumer is slow."""
        waiting: deque[Future[pa.Table]] = deque()
        with ThreadPoolExecutor(AHEAD) as pool:
            for name in self.names:
                waiting.append(pool.submit(self._read, name, columns))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _read(self, name: str, columns: list[str] | None) -> pa.Table:
        return read_rows(self.output.embeddings / name, self.sums[name], columns)

    def schema(self) -> pa.Schema:
        """The schema of the files; it is the same for all."""
        return pq.read_schema(pa.BufferReader((self.output.embeddings / self.names[0]).read()))


def read_rows(file: Location, sha256: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file in `embeddings/`. Raises WorkError where it has another checksum or a vector is not finite."""
    instead = f"expected {file.uri} as its manifest says, got"
    mend = "remove the file and run its job again"
    try:
        table = pq.read_table(pa.BufferReader(read_checked(file, sha256)), columns=columns)
    except DamagedError as error:
        raise WorkError(f"{instead}: {error}; {mend}") from error
    if EMBEDDING in table.column_names and not finite_vectors(table):
        raise WorkError(f"{instead} a vector that is not finite; {mend}")
    return table


def open_written(uri: str, flag: str) -> Written:
    """The finished output at a URI. Raises RequestError if there is none, and WorkError for one that is damaged."""
    output = output_at(uri)
    if not output.job.exists():
        raise RequestError(f"{flag}: expected an output of `raycase embed` at {output.root.uri}, got no job.json")
    if not output.manifest.exists():
        raise RequestError(
            f"{flag}: expected a finished output, got no manifest.json in {output.root.uri}; run its job again"
        )
    job = read_job(output)
    if SCORE_COLUMN in job.config:
        raise RequestError(f"{flag}: expected an output with vectors, got the scores of pairs in {output.root.uri}")
    try:
        lines = manifest_lines(output)
    except DamagedError as error:
        raise WorkError(f"{flag}: {output.root.uri}: {error}; run its job again") from error
    sums = dict(zip(*(lines[name].to_pylist() for name in ("name", "sha256")), strict=True))
    units = tuple(finished_units(output, job.print8, len(job.files))[0])
    if missing := sums.keys() ^ {unit.name(job.print8) for unit in units}:
        raise WorkError(
            f"{flag}: expected the {len(sums)} files of the manifest in {output.embeddings.uri}, got {len(units)}; the "
            f"first that differs is {min(missing)}; run its job again"
        )
    return Written(output=output, job=job, units=units, sums=sums)
