"""A finished output, opened to read its vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.job_record import Job, read_job
from raycase.corpus.listing import UnitFile, finished_units
from raycase.corpus.output import Output, output_at
from raycase.errors import RequestError

AHEAD = 4  # files read before they are needed


@dataclass(frozen=True, kw_only=True)
class Written:
    """A finished output and its units."""

    output: Output
    job: Job
    units: tuple[UnitFile, ...]

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
        return pq.read_table(pa.BufferReader((self.output.embeddings / name).read()), columns=columns)

    def schema(self) -> pa.Schema:
        """The schema of the files; it is the same for all."""
        return pq.read_schema(pa.BufferReader((self.output.embeddings / self.names[0]).read()))


def open_written(uri: str, flag: str) -> Written:
    """The finished output at a URI. Raises RequestError if there is none."""
    output = output_at(uri)
    if not output.job.exists():
        raise RequestError(f"{flag}: expected an output of `raycase embed` at {output.root.uri}, got no job.json")
    if not output.manifest.exists():
        raise RequestError(
            f"{flag}: expected a finished output, got no manifest.json in {output.root.uri}; run its job again"
        )
    job = read_job(output)
    units = [UnitFile.parse(name) for name in finished_units(output, job.print8)[0].names]
    return Written(output=output, job=job, units=tuple(unit[1] for unit in units if unit))
