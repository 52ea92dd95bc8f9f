"""What the request of a job finds: its input files, the job that its output was begun by, and its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from raycase.corpus.job_record import Job, read_job
from raycase.corpus.output import Output
from raycase.data.columns import peek
from raycase.data.fetch import DEFAULT_MODEL
from raycase.data.inputs import LANCE, InputFile, Listing, list_input, readable
from raycase.data.lance_dataset import open_version
from raycase.errors import RequestError, note


def input_files(uri: str, begun: Job | None) -> Listing:
    """The files of the input; says what is left out. Raises RequestError."""
    listing = list_input(uri)
    if begun:
        listing = replace(listing, files=[_at_begun(file, begun) for file in listing.files])
    listing.say("--input")
    return listing


def _at_begun(file: InputFile, begun: Job) -> InputFile:
    """A Lance dataset at the version with which the job began, if that is still there; other files as they are."""
    known = next((old for old in begun.files if old.uri == file.uri), file)
    if known == file or {known.format, file.format} != {LANCE}:
        return file
    try:
        with readable(known):
            open_version(known.uri, known.mark)
    except RequestError:
        return file  # of another content: the job says that it has changed
    now, then = (each.mark.rpartition(" ")[0] for each in (file, known))
    note(f"--input: {file.uri} is {now} now, this job goes on with {then}; for the new rows choose another --output")
    return known


def job_begun(output: Output) -> Job | None:
    """The job that the output was begun by. Raises RequestError for a folder that cannot be read."""
    try:
        return read_job(output) if output.job.exists() else None
    except OSError as error:
        reason = output.root.why(error)
        raise RequestError(f"--output: expected a readable folder at {output.root.uri}, got: {reason}") from error


def first_file(files: Sequence[InputFile], begun: Job | None) -> InputFile:
    """The file that decides the columns' types: the first of the job to resume, else the first that has columns."""
    if begun and begun.files[0] in files:
        return begun.files[0]
    return next((f for f in files if peek(f).names), files[0])


def find_model(
    model: str | None, choices: dict[str, Any], begun: Job | None, output: Output, find: Callable[..., Any]
) -> Any:
    """The model of this name, with these choices, by `find`; without a name that of the job to resume, else the
    default. Says so where these two differ. Raises RequestError."""
    if model is not None or not begun:
        return find(DEFAULT_MODEL if model is None else model, **choices)
    try:
        config = find(begun.model, **choices)
    except RequestError as error:
        raise RequestError(
            f"--model: expected the model that {output.root.uri} was begun with, {begun.model}, got: {error}; pass "
            "--model with where it is now"
        ) from error
    if begun.model != DEFAULT_MODEL:
        note(f"{output.root.uri}: begun with --model {begun.model}; resuming with it")
    return config
