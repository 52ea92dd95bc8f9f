"""A finished output, opened to read its vectors."""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import pyarrow as pa

from raycase.errors import RequestError, WorkError, expecting
from raycase.io.formats import MEND
from raycase.io.schema import FLOATS
from raycase.io.storage import Location
from raycase.job.manifest import manifest_lines, read_manifest, several_rows
from raycase.job.output import JobFile, Output, read_job
from raycase.job.results import EMBEDDINGS, TokenResult, result_of
from raycase.job.runner import Runner
from raycase.job.unit_files import DamagedError, UnitFile, parsed, read_checked
from raycase.job.verify import repeated_ids
from raycase.tokens.stored import TokenFormat

AHEAD = 4  # files read before they are needed


@dataclass(frozen=True, kw_only=True)
class FinishedOutput:
    """A finished output and its units."""

    output: Output
    job_file: JobFile
    units: tuple[UnitFile, ...]
    sums: Mapping[str, str]  # name of a file in `embeddings/` -> its sha256 in the manifest
    pairs_of: Mapping[str, int]  # and its pairs

    @property
    def unconditional(self) -> bool:
        return bool(self.job_file.config["unconditional"])

    @property
    def has_tokens(self) -> bool:
        """Whether the rows have stored tokens."""
        return result_of(self.job_file.config) is TokenResult

    @property
    def names(self) -> list[str]:
        """Names of the files that hold vectors."""
        return [u.name(self.job_file.fingerprint8) for u in self.units if u.rows_out]

    @property
    def pairs(self) -> int:
        """The rows of all files."""
        return sum(self.pairs_of[name] for name in self.names)

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each file, in order; `AHEAD` files are read ahead. Arrow's own scanner reads ahead without bound
        when its consumer is slow."""
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
    if (folder := result_of(job.config).FOLDER) != EMBEDDINGS:
        raise RequestError(f"{flag}: expected an output with vectors, got the {folder} of pairs in {output.root.uri}")
    if (dtype := job.config["dtype"]) not in FLOATS:
        raise RequestError(
            f"{flag}: expected vectors of {' or '.join(FLOATS)}, got {dtype} in {output.root.uri}, which is for other "
            "programs; embed again with --dtype float16"
        )
    manifest = read_manifest(output)
    if manifest["fingerprint"] != job.fingerprint:
        raise WorkError(f"{flag}: expected job.json and manifest.json of one job in {output.root.uri}, got of two")
    lines = manifest_lines(output)
    names = lines["name"].to_pylist()
    sums, pairs = (dict(zip(names, lines[of].to_pylist(), strict=True)) for of in ("sha256", "pairs"))
    units = tuple(map(UnitFile.parse, names))
    looked = "repeated_ids" in manifest  # else its job is older
    ids = manifest["repeated_ids"] if looked else repeated_ids(output, job.config, names, Runner())
    if problem := several_rows(ids):
        raise RequestError(f"{flag}: {output.root.uri}: expected {problem}")
    return FinishedOutput(output=output, job_file=job, units=units, sums=sums, pairs_of=pairs)
