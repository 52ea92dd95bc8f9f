"""The checked request of a job over a corpus, and what its input and its output hold before it begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from time import time
from typing import Any, TypeVar

from raycase.encoder.model_files import DEFAULT_MODEL
from raycase.errors import RequestError, expecting, note
from raycase.io.inputs import Listing, list_input, peek, source_of
from raycase.io.lance_dataset import Lance
from raycase.io.source import InputFile
from raycase.job.output import JobFile, Output, read_job
from raycase.job.results import Encoding
from raycase.names import STALL_TIMEOUT

ROWS_OF_UNIT = 4096  # at most, by default
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Actors:
    """The encoders of a job on Ray.

    count: the fewest and the most; None: as many as there is room for. gpus: of each; None: 1 where a machine has any.
    stall_timeout: minutes without a finished unit, after which the job gives up.
    """

    count: tuple[int, int] | None = None
    gpus: float | None = None
    stall_timeout: float = STALL_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked job; nothing is written yet. `name`: of the model as requested; `max_rejected`: share of the rows."""

    encoding: Encoding
    files: list[InputFile]
    output: Output
    name: str | None = None
    unit_rows: int = ROWS_OF_UNIT
    limit: int | None = None
    overwrite: bool = False
    max_rejected: float = 0.0
    actors: Actors = Actors()
    began: float = field(default_factory=time)  # seconds since the epoch

    @cached_property
    def config(self) -> dict[str, Any]:
        """What decides the output besides the input files; the fingerprint is of this."""
        of = self.encoding
        taught = {"taught": of.model.teachings} if of.model.teachings else {}
        return {"model": of.model.describe(), "compute": of.compute} | taught | of.pairs.config | of.result.config


def list_job(uri: str, output: Output, *, overwrite: bool) -> tuple[Listing, JobFile | None]:
    """The input's files, datasets as when the job began, and the job that the output was begun by, if it goes on."""
    with expecting(f"--output: expected a readable folder at {output.root.uri}", OSError, why=output.root.why):
        begun = read_job(output) if not overwrite and output.job_file.exists() else None
    listing = list_input(uri)
    if begun:
        listing = replace(listing, files=[_at_begun(file, begun) for file in listing.files])
    return listing, begun


def _at_begun(file: InputFile, begun: JobFile) -> InputFile:
    """A dataset at the version with which the job began, if that is still there; other files as they are."""
    known = next((old for old in begun.files if old.uri == file.uri), file)
    if known == file or not all(isinstance(source_of(each), Lance) for each in (known, file)):
        return file
    try:
        peek(known)
    except RequestError:
        return file  # of another content: the job refuses it as changed
    now, then = (each.mark.rpartition(" ")[0] for each in (file, known))
    note(f"--input: {file.uri} is now {now}; this job continues with {then}. For the new rows, choose another --output")
    return known


def first_file(files: Sequence[InputFile], begun: JobFile | None) -> InputFile:
    """The file that decides the columns' types: the first that has columns, of the job to resume if there is one."""
    there = {*files}
    known = (file for file in (begun.files if begun else ()) if file in there)
    return next((file for file in chain(known, files) if peek(file).names), files[0])


def find_model(
    name: str | None, choices: Mapping[str, Any], begun: JobFile | None, output: Output, find: Callable[..., Found]
) -> Found:
    """The model of this name by `find`; without one that of the job to resume, which is noted, else the default."""
    if name is not None or not begun:
        return find(DEFAULT_MODEL if name is None else name, **choices)
    expected = f"--model: expected the model that {output.root.uri} was started with, {begun.model}"
    with expecting(expected, RequestError, advice="; pass its present place as --model"):
        config = find(begun.model, **choices)
    if begun.model != DEFAULT_MODEL:
        note(f"{output.root.uri}: started with --model {begun.model}; resuming with it")
    return config
