"""The output folder of a job: where its files are; job.json, written first; and its finished units.

A run resumes by job.json and by the listing of the units, which is the checkpoint.
"""

import re
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from typing_extensions import TypedDict

from raycase.errors import RequestError, expecting
from raycase.io.json_values import from_json
from raycase.io.places import Folder, begin, taken_over
from raycase.io.source import InputFile
from raycase.io.storage import fingerprint, locate
from raycase.job.results import EMBEDDINGS, SCORES

JOB = "job.json"
FORMAT = 3  # of an output, in job.json; 0.2 wrote none
RowRange = tuple[int, int]  # rows [start, end) of a file


class Output:
    """Locations of the files in an output folder."""

    def __init__(self, uri: str, results: str = EMBEDDINGS) -> None:
        """results: name of the folder of units."""
        root = locate(uri)
        self.root, self.results = root, results
        self.job_file = root / JOB
        self.units = root / results
        self.rejected = root / "rejected"
        self.spans = root / "spans.parquet"  # those of the input, so that a resumed job need not read it to plan
        self.basis = root / "word_basis.safetensors"  # of stored tokens, chosen before the first unit
        self.lines = root / "manifest_lines"  # of the manifest, so that a resumed job need not read units for checksums
        self.manifest = root / "manifest.json"
        self.manifest_files = root / "manifest_files.parquet"
        units = root / EMBEDDINGS, root / SCORES
        # everything that a job writes besides job.json
        self.contents = self.rejected, *units, self.basis, self.spans, self.lines, self.manifest_files, self.manifest


def output_folder(uri: str | None, results: str = EMBEDDINGS) -> Folder:
    """The folder as a place that is written."""
    return Folder(uri, (JOB, *(place.name for place in Output("/", results).contents)))


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Which neighbours share a unit: files of fewer rows, up to so many rows and files. A job keeps its own."""

    rows: int
    files: int = 256
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  # of this output: other files may share its units


class EncoderFile(TypedDict):
    """The description of a model's encoder, as far as it is read back."""

    prompt: str
    pooling: list[str]


class ModelFile(TypedDict):
    """The description of a model (`EmbedderConfig.describe()`), as far as every system has it and it is read back."""

    system: str
    weights: str
    dim: int
    encoder: EncoderFile


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """The content of job.json: the configuration that decides the vectors, the input files in order, and the model."""

    config: dict[str, Any]
    files: list[InputFile]
    model: str  # its name or folder
    sharing: Sharing
    salt: str = ""  # random if the job overwrote another: units of that one's late writers must not count

    @cached_property
    def fingerprint(self) -> str:
        """Of the configuration and the salt. Input files are not part of it, for new ones may be added."""
        return fingerprint([self.config, self.salt] if self.salt else self.config)


def read_job(output: Output) -> JobFile:
    """Read job.json. Raises RequestError where it is none of this version."""
    with expecting(f"{output.job_file.uri}: expected the job.json of `raycase embed`", ValueError):
        values = from_json(dict[str, Any], output.job_file.read_json())
        if not ("config" in values and values.get("format") != FORMAT):
            made = {name: value for name, value in values.items() if name not in ("format", "fingerprint")}
            job = from_json(JobFile, made)
            if job.fingerprint != values.get("fingerprint"):  # its units would be dropped as another job's
                raise ValueError("another configuration than its fingerprint is of; put the file back as it was")
            return job
    raise RequestError(f"{output.root.uri}: written by another version of raycase, 0.2 or earlier: embed again")


def write_job(output: Output, job: JobFile, *, overwrite: bool = False) -> None:
    """Write job.json; with `overwrite`, remove an earlier output first: its manifest first of all, job.json last."""
    values = {"format": FORMAT, "fingerprint": job.fingerprint, **asdict(job)}
    begin(output.root, JOB, values, [place.name for place in output.contents[::-1]], overwrite=overwrite)


def check_held(output: Output, job: JobFile) -> None:
    """Raise WorkError where job.json is no longer this job's, before anything in the folder is removed or replaced."""
    held = read_job(output) if output.job_file.exists() else None
    if held is None or (held.fingerprint, held.sharing.rows) != (job.fingerprint, job.sharing.rows):
        raise taken_over(output.root, output.job_file.name)


# --------------------------------------------------------------------------------------------------- finished units


@dataclass(frozen=True, order=True)
class UnitFile:
    """A finished unit: `rows` rows from `start` of input file number `file`, or of small files that begin with it."""

    file: int
    start: int
    rows_out: int
    rows_rejected: int

    @property
    def end(self) -> int:
        return self.start + self.rows_out + self.rows_rejected

    def name(self, fingerprint8: str) -> str:
        return f"{fingerprint8}-{self.file:05d}-{self.start:012d}-{self.rows_out}-{self.rows_rejected}.parquet"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The opposite of `name`."""
        return cls(*map(int, name.removesuffix(".parquet").split("-")[1:]))


# As `UnitFile.name` writes them, with numbers that 64 bits hold: a unit is found again under the name that it has.
_UNIT_NAME = re.compile(
    r"([0-9a-f]{8})-([0-9]{5}|[1-9][0-9]{5,8})-([0-9]{12}|[1-9][0-9]{12,17})"
    r"-(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})\.parquet"
)


class Units:
    """Finished units of one job that share no row, in the order of the input. A million take 40 MB."""

    def __init__(self, values_N4: np.ndarray, fingerprint8: str) -> None:
        """(N, 4) int64: file, start, rows out, rows rejected, in any order.

        Units overlap if a late writer of a stopped run finished one that was cut otherwise since: of those that start
        at the same row the longest counts, and none that overlaps an earlier one.
        """
        self.fingerprint8 = fingerprint8
        file, start, rows = values_N4[:, 0], values_N4[:, 1], values_N4[:, 2] + values_N4[:, 3]
        order = np.lexsort((-rows, start, file))
        counted, end = [], (0, 0)  # which units count; the file of the last one, and the row behind it
        of_N4 = np.stack([order, file[order], start[order], (start + rows)[order]], 1)
        for unit, *at, behind in map(np.ndarray.tolist, of_N4):
            if tuple(at) >= end:
                counted.append(unit)
                end = at[0], behind
        self.values_N4 = values_N4[counted]
        self.file, self.start = self.values_N4[:, 0], self.values_N4[:, 1]
        self.end = self.start + self.values_N4[:, 2] + self.values_N4[:, 3]
        files, first = np.unique(self.file, return_index=True)
        self._slices = dict(zip(files.tolist(), pairwise([*first.tolist(), len(self)]), strict=True))

    def __len__(self) -> int:
        return len(self.values_N4)

    def __iter__(self) -> Iterator[UnitFile]:
        return (UnitFile(*row) for row in map(np.ndarray.tolist, self.values_N4))

    @property
    def names(self) -> Iterator[str]:
        """Their file names, in the order of the input."""
        return (unit.name(self.fingerprint8) for unit in self)

    def inner_gap(self) -> tuple[int, int, int] | None:
        """The first rows that no unit covers before a later unit of their file: the file, first row and end."""
        behind = np.where(np.diff(self.file, prepend=-1) != 0, 0, np.roll(self.end, 1))
        at = np.flatnonzero(self.start != behind)[:1]
        return next(((int(self.file[i]), int(behind[i]), int(self.start[i])) for i in at), None)

    def gaps(self, file: int, start: int, end: int) -> Iterator[RowRange]:
        """Rows [start, end) of a file that no unit covers, one stretch after the other."""
        first, last = self._slices.get(file, (0, 0))
        for i in range(bisect_right(self.end, start, first, last), last):
            if self.start[i] >= end:
                break
            if self.start[i] > start:
                yield start, int(self.start[i])
            start = int(self.end[i])
        if start < end:
            yield start, end

    def missing(self, rows: Sequence[int]) -> int:
        """How many of the first `rows` rows of each file are in no unit."""
        limits = np.asarray(rows, dtype=np.int64)
        known = self.file < len(limits)
        limit = limits[self.file[known]]
        covered = np.minimum(self.end[known], limit) - np.minimum(self.start[known], limit)
        return int(limits.sum() - covered.sum())


def finished(names: Iterable[str], fingerprint8: str) -> tuple[Units, list[str]]:
    """The units of the job with this fingerprint (8 digits) among file names, and the other names: strays."""
    values, strays = array("q"), []
    for name in names:
        match = _UNIT_NAME.fullmatch(name)
        if match and match[1] == fingerprint8:
            values.extend(map(int, match.groups()[1:]))
        else:
            strays.append(name)
    listed_N4 = np.frombuffer(values, dtype=np.int64).reshape(-1, 4)
    units = Units(listed_N4, fingerprint8)
    if len(units) < len(listed_N4):
        strays += {UnitFile(*row).name(fingerprint8) for row in listed_N4.tolist()}.difference(units.names)
    return units, strays


def drop_strays(output: Output, units: Units, strays: Iterable[str]) -> list[str]:
    """Remove units of others, rejected rows without their unit, and temporary files; returns their URIs."""
    stray_files = [output.units / name for name in strays if _UNIT_NAME.fullmatch(name)]
    stray_files += [output.rejected / name for name in {*output.rejected.list()}.difference(units.names)]
    stray_files += [half for folder in (output.units, output.rejected) for half in folder.half_written()]
    for stray in stray_files:
        stray.remove()
    return [stray.uri for stray in stray_files]
