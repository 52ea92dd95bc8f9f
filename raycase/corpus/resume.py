"""How each command that works in pieces runs and resumes: it runs what a listing of its output lacks, until that lacks
nothing, and then counts the whole.

A piece (a unit, a group of a join) is done exactly when its file, which is put at once, is in the
listing. Knows no Ray: what runs the pieces is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
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
    """What a job has left to do, by the units that are done; its length is 0 where nothing is."""

    @property
    def done(self) -> Units: ...

    def __len__(self) -> int: ...

    def after(self, done: Units) -> Self:
        """The same with these units done."""


T = TypeVar("T")
Left = TypeVar("Left", bound=Sized)
LeftUnits = TypeVar("LeftUnits", bound=UnitsLeft)
Held = Callable[[], None]  # raises WorkError where the output is no longer this job's


def run_missing(
    left: Left, run: Callable[[Left], None], listed: Callable[[], Left], held: Held, root: Location, what: str
) -> Left:
    """Run what is left, and list what is left then; that is returned once it is nothing.

    What another job wrote into the output is seen with its record: hence `held` before each run, and after each
    listing. Raises WorkError where something is missing at the end.
    """
    for _ in range(PASSES):
        if len(left):
            held()
            run(left)
        left = listed()
        held()
        if not len(left):
            return left
    raise WorkError(f"{root.uri}: {len(left)} {what} are missing after {PASSES} passes; run the same command again")


def run_files(
    folder: Location, tasks: Mapping[str, T], run: Callable[[list[T]], None], held: Held, root: Location, what: str
) -> int:
    """`run_missing` of tasks by the name of the file that each puts last: those that the folder lacks. Returns how many
    that were at first."""

    def listed() -> list[T]:
        there = folder.list()
        return [task for name, task in tasks.items() if name not in there]

    left = listed()
    run_missing(left, run, listed, held, root, f"of {len(tasks)} {what}")
    return len(left)


def run_units(
    output: Output, job: Job, left: LeftUnits, execute: Callable[[LeftUnits], Iterable[UnitLine]], what: str
) -> tuple[LeftUnits, Lines]:
    """`run_missing` of the units of an output that a job holds; gives what is left then, which says what is done, and
    the manifest's lines.

    execute: yields the lines that it knows, as units are written. Units of earlier runs are checked meanwhile, where no
    manifest says that they were; damaged ones are done again.
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
        units, strays = finished_units(output, job.print8)
        return left.after(units)

    try:
        left = run_missing(left, run, listed, partial(check_held, output, job), output.root, what)
    finally:
        if check:
            check.stop()
    for stray in drop_strays(output, left.done, strays):
        note(f"removed {stray}: not a unit of this job")
    return left, lines


def account(output: Output, job: Job, units: Units, lines: Lines, ran: int, values: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an output whose units are all done; with these values it is written where units `ran`, or there
    is none. Raises WorkError where a listing contradicts it."""
    if ran or not output.manifest.exists():
        own = {"fingerprint": job.fingerprint, "config": job.config, "input_files": len(job.files)}
        write_manifest(output, lines.of(units), own | values)
    for defect in listed_defects(output):
        output.manifest.remove()  # so that the next run reads the units
        raise WorkError(f"{output.root.uri}: {defect}; run the same command again")
    return read_manifest(output)
