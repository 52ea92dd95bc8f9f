"""How each command that works in pieces runs and resumes: it runs what a listing of its output lacks, lists again, and
counts the whole.

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
from raycase.corpus.unit_files import UnitLine
from raycase.corpus.verify import listed_defects
from raycase.data.storage import Location
from raycase.errors import WorkError, note


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
    """Run what is left, and list what is left then, which is nothing.

    What another job wrote into the output is seen with its record: hence `held` before the run, and after the
    listing. Raises WorkError where something is missing at the end.
    """
    if len(left):
        held()
        run(left)
    left = listed()
    held()
    if len(left):
        raise WorkError(f"{root.uri}: {len(left)} {what} are missing; run the same command again")
    return left


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

    execute: yields the lines that it knows, as units are written.
    """
    lines = Lines(output)
    strays: list[str] = []

    def run(left: LeftUnits) -> None:
        lines.keep(left.done)
        for line in execute(left):
            lines.add(line)

    def listed() -> LeftUnits:
        nonlocal strays
        units, strays = finished_units(output, job.print8)
        return left.after(units)

    left = run_missing(left, run, listed, partial(check_held, output, job), output.root, what)
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
        raise WorkError(f"{output.root.uri}: {defect}; remove the file and run the same command again")
    return read_manifest(output)
