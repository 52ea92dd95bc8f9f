"""The output folder of a job: where its files are, and job.json, which is written first and by which a run resumes."""

import uuid
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from typing_extensions import TypedDict

from raycase.errors import RequestError, expecting
from raycase.io.json_values import from_json
from raycase.io.places import Folder, begin, taken_over
from raycase.io.source import InputFile
from raycase.io.storage import fingerprint, locate
from raycase.job.results import EMBEDDINGS, SCORES

JOB = "job.json"
FORMAT = 3  # of an output, in job.json; 0.2 wrote none


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
            return from_json(JobFile, made)
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
