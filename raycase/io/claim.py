"""Claiming an output folder for one job: a JSON record in it holds the job's fingerprint, so that a run resumes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raycase.errors import RequestError, WorkError
from raycase.io.storage import Location


def claim(
    folder: Location,
    record: str,
    fingerprint: str,
    *,
    job: str,
    results: Iterable[str],
    overwrite: bool = False,
    difference: str = "",
) -> dict[str, Any] | None:
    """Return the record of this job if the folder holds it, None if the folder is free. Writes nothing.

    A free folder is the job's once `begin` has put the record.

    Args:
        folder: where the job writes.
        record: name of the JSON file that holds the fingerprint, as `join.json`.
        fingerprint: of everything that decides the results.
        job: what the folder may hold, in words, as `this very join`.
        results: names of the files and folders that the job writes; without a record none may exist.
        overwrite: treat the folder as free whatever it holds.
        difference: what differs from the job in the folder, if the caller knows.

    Raises RequestError where the folder holds another job, or results without a record.
    """
    if overwrite:
        return None
    got = None
    if (folder / record).exists():
        values = _record(folder / record)
        if values.get("fingerprint") == fingerprint:
            return values
        got = f"another ({difference})" if difference else "another"
    for place in (folder / name for name in results):
        if got is None and place.exists() and (not place.fs.isdir(place.path) or next(place.entries(), None)):
            got = f"{place.name} without {record}"
    if got is None:
        return None
    raise RequestError(
        f"--output: expected an empty folder or {job} in {folder.uri}, got {got}; choose another folder or pass "
        "--overwrite"
    )


def begin(folder: Location, record: str, values: dict[str, Any], results: Iterable[str], *, overwrite: bool) -> None:
    """Put the record, with the key `fingerprint`, before any result; with `overwrite`, clear the folder first."""
    if overwrite:
        clear(folder, record, results)
    (folder / record).put_json(values)


def check_held(folder: Location, record: str, fingerprint: str) -> None:
    """Raise WorkError where the record is no longer this job's: before its results are counted or any is removed."""
    if not (folder / record).exists() or _record(folder / record).get("fingerprint") != fingerprint:
        raise taken_over(folder, record)


def taken_over(folder: Location, record: str) -> WorkError:
    """The error of a job whose folder was removed, or claimed by another."""
    return WorkError(
        f"{folder.uri}: expected the {record} that this job wrote, got none or another's: the folder was removed or a "
        "job with --overwrite took it over, and this one ends"
    )


def clear(folder: Location, record: str, results: Iterable[str]) -> None:
    """Remove a job's results in this order and its record last; other files in the folder stay."""
    for name in (*results, record):
        (folder / name).remove()


def _record(file: Location) -> dict[str, Any]:
    """The values of a record; none where the file is not written by a job."""
    try:
        values = file.read_json()
    except RequestError:
        return {}
    return values if isinstance(values, dict) else {}
