"""job.json: the configuration and the input files of a job; it is written first, and a run resumes by it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from raycase.corpus.listing import UnitFile, Units, finished, finished_units
from raycase.corpus.output import Output
from raycase.data.claim import claim
from raycase.data.inputs import InputFile
from raycase.data.storage import fingerprint
from raycase.errors import RequestError


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
