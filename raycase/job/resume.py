"""How work resumes: by the job that an output folder holds, and by a listing of the files that are there.

What is put at once (a unit, a group of a join) is done exactly when its file is listed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from raycase.errors import MOST_LABEL, RequestError, WorkError, visible
from raycase.io.places import claim
from raycase.io.storage import Location
from raycase.job.job_record import Job, Sharing, read_job
from raycase.job.unit_files import Units, finished

if TYPE_CHECKING:
    from raycase.job.request import Request

T = TypeVar("T")


def find_job(request: Request) -> tuple[Job, Units]:
    """The job to run in the output folder, and its finished units: a new job, or the one to resume with new input files
    last.

    Raises RequestError if the folder holds another job's output, or if a known input file has changed or is missing.
    """
    output, files, overwrite = request.output, request.files, request.job.overwrite
    config = json.loads(json.dumps(request.config, default=str))
    sharing, salt = Sharing(rows=request.unit_rows), uuid.uuid4().hex if overwrite else ""
    job = Job(config=config, files=list(files), model=request.model.model, sharing=sharing, salt=salt)
    if overwrite:
        return job, finished((), job.print8)[0]
    if output.job.exists():
        job = replace(read_job(output), model=job.model)
    units, _ = finished(output.units.list(), job.print8)
    claim(
        output.root,
        output.job.name,
        replace(job, config=config).fingerprint,
        job="the same job",
        results=[output.units.name],
        difference="" if job.config == config else _difference(job.config, config),
    )
    files_now = {f.uri: f for f in files}
    for old in job.files:
        if files_now.get(old.uri) != old:
            what = "has changed" if old.uri in files_now else "is missing"
            raise RequestError(
                f"--input: expected {old.uri} as it was when {output.root.uri} was started, but it {what}; "
                "put it back, choose another output folder or pass --overwrite"
            )
    known = set(job.files)
    return replace(job, files=job.files + [f for f in files if f not in known]), units


def _difference(recorded: Any, requested: Any, path: str = "") -> str:
    """Where two configurations first differ, in words."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for key in sorted(recorded.keys() | requested.keys()):
            if recorded.get(key) != requested.get(key):
                return _difference(recorded.get(key), requested.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: {visible(recorded, MOST_LABEL)} there, {visible(requested, MOST_LABEL)} requested"


def run_files(
    folder: Location,
    tasks: Mapping[str, T],
    run: Callable[[list[T]], Iterable[Any]],
    held: Callable[[], None],
    root: Location,
    what: str,
) -> None:
    """Run those of the tasks, by the name of the file that each puts last, whose file the folder lacks.

    held: raises WorkError where the output is no longer this job's; what another job wrote into it is seen with its
    record. Raises WorkError where something is missing at the end.
    """

    def left() -> list[T]:
        there = folder.list()
        return [task for name, task in tasks.items() if name not in there]

    if missing := left():
        held()
        for _ in run(missing):
            pass
        missing = left()
    held()
    if missing:
        raise WorkError(f"{root.uri}: {len(missing)} of {len(tasks)} {what} are missing; run the same command again")
