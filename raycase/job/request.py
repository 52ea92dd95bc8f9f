"""What jobs over a corpus share: the flags of how they run, what is checked of any of them, and the checked request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from raycase.commands.flags import RunFlags
from raycase.encoder.prompts import prompt_file
from raycase.errors import RequestError, at_least, check_ranges, expecting, note
from raycase.io.inputs import Listing, list_input, peek, source_of
from raycase.io.model_files import DEFAULT_MODEL, model_folder
from raycase.io.places import Folder, check_paths
from raycase.io.source import InputFile
from raycase.job.output import JobFile, Output, output_folder, read_job
from raycase.job.pair_result import PairResult

ROWS_OF_UNIT = 4096  # at most, by default


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked job. Nothing is written and no weights are loaded yet."""

    flags: RunFlags
    files: list[InputFile]
    model: Any  # the configuration of a system
    kind: PairResult
    output: Output
    unit_rows: int
    began: float  # seconds since the epoch

    @property
    def dim(self) -> int:
        return int(self.model.unconditional_dim if self.kind.unconditional else self.model.dim)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What decides the output besides the input files; the fingerprint is of this."""
        return {"model": self.model.describe(), "compute": self.flags.compute} | self.kind.config

    @property
    def step(self) -> dict[str, Any]:
        """The arguments of the encode step, without what the machine decides."""
        return {
            "config": self.model,
            "kind": self.kind,
            "weights": self.config["model"]["weights"],
            "batch_tokens": self.flags.batch_tokens,
            "compute": self.flags.compute,
            "compile": self.flags.compile,
        }


def actor_range(text: str | None) -> tuple[int, int] | None:
    """MIN:MAX as numbers; one number is both. Raises RequestError."""
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
    if not 1 <= least <= most:
        raise RequestError(f"--actors: expected MIN:MAX with 1 <= MIN <= MAX, got {text!r}")
    return least, most


def check_places(
    job: Any, results: str, reads: Mapping[str, str | None], writes: Mapping[str, Folder]
) -> tuple[Output, Listing, JobFile | None]:
    """The output of a job with a folder `results`; the files of its input; and the job that the output was begun by,
    unless it is overwritten: datasets are at the version with which that began. `reads`, `writes`: further places.

    Raises RequestError for numbers out of range, vectors to cut that have no condition, places that are one, and those
    that cannot be read.
    """
    ranges = {
        **at_least(1, job, "batch_tokens", "unit_rows", "limit"),
        "max_rejected": (0 <= job.max_rejected <= 1, "a share between 0 and 1"),
        "gpus_per_actor": (job.gpus_per_actor is None or job.gpus_per_actor >= 0, "0 or more"),
        "stall_timeout": (job.stall_timeout > 0, "minutes above 0"),
    }
    check_ranges(job, ranges)
    actor_range(job.actors)
    if job.dim is not None and job.unconditional:
        raise RequestError(
            "--dim: expected vectors under conditions to cut, got --unconditional, which writes those of the encoder; "
            "leave --dim out"
        )
    check_paths(
        reads={"--input": job.input, "--prompt": prompt_file(job.prompt), **reads},
        opens={"--model": model_folder(job.model)},
        writes={"--output": output_folder(job.output, results), **writes},
    )
    output = Output(job.output, results)
    with expecting(f"--output: expected a readable folder at {output.root.uri}", OSError, why=output.root.why):
        begun = read_job(output) if not job.overwrite and output.job_file.exists() else None
    listing = list_input(job.input)
    if begun:
        listing = replace(listing, files=[_at_begun(file, begun) for file in listing.files])
    return output, listing, begun


def _at_begun(file: InputFile, begun: JobFile) -> InputFile:
    """A dataset at the version with which the job began, if that is still there; other files as they are."""
    known = next((old for old in begun.files if old.uri == file.uri), file)
    if known == file or not all(source_of(each).keeps_versions for each in (known, file)):
        return file
    try:
        peek(known)
    except RequestError:
        return file  # of another content: the job says that it has changed
    now, then = (each.mark.rpartition(" ")[0] for each in (file, known))
    note(f"--input: {file.uri} is now {now}; this job continues with {then}. For the new rows, choose another --output")
    return known


def first_file(files: Sequence[InputFile], begun: JobFile | None) -> InputFile:
    """The file that decides the columns' types: the first that has columns, of the job to resume if there is one."""
    there = {*files}
    known = (file for file in (begun.files if begun else ()) if file in there)
    return next((file for file in chain(known, files) if peek(file).names), files[0])


def find_model(flags: RunFlags, begun: JobFile | None, output: Output, find: Callable[..., Any]) -> Any:
    """The model that the flags name and choose, by `find`; without a name that of the job to resume, else the default.
    StatedHead so where these two differ. Raises RequestError."""
    choices = flags.prompt_choices | {"dim": flags.dim}
    if flags.model is not None or not begun:
        return find(DEFAULT_MODEL if flags.model is None else flags.model, **choices)
    expected = f"--model: expected the model that {output.root.uri} was started with, {begun.model}"
    with expecting(expected, RequestError, advice="; pass its present place as --model"):
        config = find(begun.model, **choices)
    if begun.model != DEFAULT_MODEL:
        note(f"{output.root.uri}: started with --model {begun.model}; resuming with it")
    return config
