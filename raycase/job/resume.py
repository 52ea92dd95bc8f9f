"""How each command that works in pieces runs and resumes: it runs what a listing of its output lacks, lists again, and
counts the whole.

A piece (a unit, a group of a join) is done exactly when its file, which is put at once, is in the listing. Knows no
Ray: what runs the pieces is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from raycase.errors import WorkError, note
from raycase.io.storage import Location
from raycase.job.job_record import Job, check_held
from raycase.job.listing import Units, drop_strays, finished_units
from raycase.job.manifest import Lines, read_manifest, write_manifest
from raycase.job.output import Output
from raycase.job.unit_files import UnitLine
from raycase.job.verify import listed_defects

T = TypeVar("T")
Held = Callable[[], None]  # raises WorkError where the output is no longer this job's


def run_missing(
    left: int, running: Iterable[Any], listed: Callable[[], int], held: Held, root: Location, what: str
) -> None:
    """Run what is left, as far as `running` is drawn from, and list how much is left then, which is nothing.

    What another job wrote into the output is seen with its record: hence `held` before the run, and after the
    listing. Raises WorkError where something is missing at the end.
    """
    if left:
        held()
        for _ in running:
            pass
    left = listed()
    held()
    if left:
        raise WorkError(f"{root.uri}: {left} {what} are missing; run the same command again")


def run_files(
    folder: Location,
    tasks: Mapping[str, T],
    run: Callable[[list[T]], Iterable[Any]],
    held: Held,
    root: Location,
    what: str,
) -> None:
    """`run_missing` of tasks by the name of the file that each puts last: those that the folder lacks."""

    def left() -> list[T]:
        there = folder.list()
        return [task for name, task in tasks.items() if name not in there]

    first = left()
    running = run(first) if first else ()
    run_missing(len(first), running, lambda: len(left()), held, root, f"of {len(tasks)} {what}")


def run_units(
    output: Output,
    job: Job,
    done: Units,
    left: Callable[[Units], int],
    written: Iterable[UnitLine | None],
    what: str,
) -> tuple[Units, Lines]:
    """`run_missing` of the units of an output that a job holds; gives all units, and the manifest's lines.

    left: how much is left to do where these units are done. written: yields as units are written, their lines if it
    knows them; it begins when it is drawn from.
    """
    lines = Lines(output)
    strays: list[str] = []

    def running() -> Iterator[None]:
        lines.keep(done)
        for line in written:
            if line:
                lines.add(line)
            yield

    def listed() -> int:
        nonlocal done, strays
        done, strays = finished_units(output, job.print8)
        return left(done)

    run_missing(left(done), running(), listed, partial(check_held, output, job), output.root, what)
    for stray in drop_strays(output, done, strays):
        note(f"removed {stray}: not a unit of this job")
    return done, lines


def account(output: Output, job: Job, units: Units, lines: Lines, ran: int, values: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an output whose units are all done; with these values it is written where units `ran`, or there
    is none. Raises WorkError where a listing contradicts it."""
    if ran or not output.manifest.exists():
        own = {"fingerprint": job.fingerprint, "config": job.config, "input_files": len(job.files)}
        write_manifest(output, lines.of(units), own | values)
    for defect in listed_defects(output):
        raise WorkError(f"{output.root.uri}: {defect}; remove the file and run the same command again")
    return read_manifest(output)
