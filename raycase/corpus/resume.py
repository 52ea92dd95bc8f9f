"""How each command that works in pieces runs and resumes: it runs what a listing of its output lacks, until that lacks
nothing, and then counts the whole.

A piece (a unit, a group of a join, a part of an index) is done exactly when its file, which is put at once, is in the
listing. Knows no Ray: what runs the pieces is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from raycase.corpus.job_record import Job, check_held
from raycase.corpus.listing import Units, drop_strays, finished_units
from raycase.corpus.manifest import Lines, read_manifest, write_manifest
from raycase.corpus.output import Output
from raycase.corpus.unit_check import UnitCheck
from raycase.corpus.unit_files import UnitLine
from raycase.corpus.verify import listed_defects
from raycase.data.storage import Location
from raycase.errors import WorkError, note

PASSES = 3  # over what a listing lacks: a file may be removed meanwhile, or found damaged


class UnitsLeft(Protocol):
    """What a job has left to do: a plan, and the units that are done."""

    @property
    def done(self) -> Units: ...

    @property
    def missing(self) -> int: ...

    def after(self, done: Units) -> Self:
        """The same with these units done."""


Left = TypeVar("Left")
LeftUnits = TypeVar("LeftUnits", bound=UnitsLeft)
T = TypeVar("T")


def run_missing(
    root: Location,
    left: Left,
    run: Callable[[Left], None],
    listed: Callable[[], Left],
    *,
    count: Callable[[Left], int],
    what: str,
    held: Callable[[], None],
) -> Left:
    """Run what is left, and list what is left then, which is returned once it is nothing.

    held: raises WorkError where the output is no longer this job's; asked before each run, and after each listing, for
    what another job wrote by then is seen with its record. Raises WorkError where something is missing at the end.
    """
    for _ in range(PASSES):
        if count(left):
            held()
            run(left)
        left = listed()
        held()
        if not count(left):
            return left
    raise WorkError(
        f"{root.uri}: {count(left)} {what} are missing after {PASSES} passes; run the same command again to resume"
    )


def run_files(
    root: Location,
    folder: Location,
    tasks: Mapping[str, T],
    run: Callable[[list[T]], None],
    *,
    what: str,
    held: Callable[[], None] = lambda: None,
) -> int:
    """Run the tasks, by the name of the file that each puts last, whose file the folder lacks; returns how many those
    were at first. Otherwise as `run_missing`."""

    def listed() -> list[T]:
        there = folder.list()
        return [task for name, task in tasks.items() if name not in there]

    left = listed()
    run_missing(root, left, run, listed, count=len, what=f"of {len(tasks)} {what}", held=held)
    return len(left)


def run_units(
    output: Output,
    job: Job,
    left: LeftUnits,
    execute: Callable[[LeftUnits], Iterable[UnitLine]],
    *,
    what: str,
) -> tuple[LeftUnits, Lines]:
    """Execute the units that a job has left in the output that it holds; gives what is left then, with all that is
    done, and the manifest's lines.

    execute: yields the lines that it knows, as units are written. Units of earlier runs are checked meanwhile, where no
    manifest says that they were; damaged ones are done again. Otherwise as `run_missing`.
    """
    lines = Lines(output)
    check = None if output.manifest.exists() else UnitCheck(output, left.done, lines.known())
    strays: list[str] = []

    def run(left: LeftUnits) -> None:
        output.manifest.remove()  # it counts fewer rows than the output will have
        lines.forget_all_but(left.done)
        for line in execute(left):
            lines.add(line)

    def listed() -> LeftUnits:
        nonlocal check, strays
        for name, defect in (check.damaged() if check else {}).items():
            note(f"{output.root.uri}: {defect}: done again")
            (output.units / name).remove()
        check = None
        units, strays = finished_units(output, job.print8, len(job.files))
        return left.after(units)

    held = partial(check_held, output, job)
    try:
        left = run_missing(output.root, left, run, listed, count=lambda left: left.missing, what=what, held=held)
    finally:
        if check:
            check.stop()
    for stray in drop_strays(output, left.done, strays):
        note(f"removed {stray}: not a unit of this job")
    return left, lines


def account(
    output: Output,
    job: Job,
    units: Units,
    lines: Lines,
    *,
    ran: int,
    model: Mapping[str, Any],
    run: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """The manifest of an output whose units are all done; it is written where units `ran` or there is none.

    model, run, more: what it says beside the totals. Raises WorkError where a listing contradicts it."""
    if ran or not output.manifest.exists():
        values = {"fingerprint": job.fingerprint, "config": job.config, "model": model, "input_files": len(job.files)}
        write_manifest(output, lines.of(units), values | more | {"run": run})
    for defect in listed_defects(output):
        output.manifest.remove()  # so that the next run reads the units
        raise WorkError(f"{output.root.uri}: {defect}; run the same command again")
    return read_manifest(output)
