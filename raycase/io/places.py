"""The places that a command reads and writes, compared before it begins: nothing that is read may be written over.

Its output folder is claimed for one job, by a JSON record with the job's fingerprint.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fsspec.utils import glob_translate

from raycase.errors import RequestError, WorkError, check_problems
from raycase.io.inputs import FORMATS, above_wildcards
from raycase.io.source import CODECS
from raycase.io.storage import PACKAGE, Location, locate

PARQUET, HTML = (".parquet", ""), (".html", ".htm", "")
ENDINGS = {*FORMATS, *CODECS, ".tsv", ".json", ".txt", ".md", ".html", ".htm", ".svg", ".png"}  # of other files
OF_INDEX = ("data", "_versions")  # names of what is in an index
NONE: Mapping[str, Any] = MappingProxyType({})

Paths = Mapping[str, str | Sequence[str] | None]  # flag -> a path or URI, or several


@dataclass(frozen=True)
class File:
    """A file that a flag writes, and the endings that its format has; "": it needs none, but no other format's."""

    uri: str | None
    endings: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder that a flag writes into, and names within; a cache's are hashes. `here`: on this machine alone."""

    uri: str | None
    names: tuple[str, ...] = ()
    here: bool = False


def check_paths(*, reads: Paths = NONE, opens: Paths = NONE, writes: Mapping[str, File | Folder] = NONE) -> None:
    """Compare all that a command reads and writes, by flag, links resolved, before anything is written.

    reads: files, and folders and globs of which every file is read. opens: folders of which certain files are read, as
    models, indexes and outputs of jobs.
    """
    read = [
        (flag, uri, paths is reads)
        for paths in (reads, opens)
        for flag, value in paths.items()
        for uri in ((value,) if isinstance(value, str) else value or ())
    ]
    wanted = [(flag, to, to.uri) for flag, to in writes.items() if to.uri is not None]
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    for flag, _, uri in (*((flag, None, uri) for flag, uri, _ in read), *wanted):
        is_relative = "://" not in uri and not uri.startswith((PACKAGE, "/", "~"))
        got = f"path or a URI, got {uri!r}"
        removed = f"{flag}: expected an absolute {got}: a submitted job runs in a folder that Ray removes"
        check_problems({f"{flag}: expected a {got}": not uri.strip(), removed: submitted and is_relative})
    taken: dict[str, str] = {}  # what flags before write -> flag
    for flag, to, uri in wanted:
        if problem := _unfit(to, uri) or _clash(to, uri, read, taken):
            raise RequestError(f"{flag}: expected {problem}")
        taken |= dict.fromkeys(_written(to, uri)[1], flag)


def _unfit(to: File | Folder, uri: str) -> str | None:
    """What is wrong with a place by itself: an ending, a folder or a file there, an index around it, no rights."""
    location = locate(uri)
    if isinstance(to, Folder):
        if to.here and not location.is_local:
            return f"a folder on this machine, got {uri}; copy the result there"
        if location.is_local and os.path.isfile(location.path):
            return f"a folder, got the file {uri}"
    else:
        ending = posixpath.splitext(uri)[1].lower()
        if ending not in to.endings and ("" not in to.endings or ending in ENDINGS):
            return f"a file that ends with {to.endings[0]}, got {uri}"
        if uri.endswith("/") or (location.is_local and os.path.isdir(location.path)):
            return f"a file, got the folder {uri}"
    place = Path(_resolved(location))
    folders = [place, *place.parents] if location.is_local else []
    if isinstance(to, File) and (file := next(filter(os.path.isfile, folders[1:]), None)):
        return f"a place in a folder, got {uri} below the file {file}"
    for folder in folders if isinstance(to, Folder) and to.names != OF_INDEX else folders[1:]:
        if all(os.path.isdir(folder / name) for name in OF_INDEX):
            return f"a place outside the index {folder}, got {location.uri}"
    is_writable = all(os.access(folder, os.W_OK) for folder in [*filter(os.path.isdir, folders)][:1])
    return None if is_writable else f"a place that can be written, got {location.uri}"


def _clash(to: File | Folder, uri: str, read: Sequence[tuple[str, str, bool]], taken: Mapping[str, str]) -> str | None:
    """What a place has in common with what is read, as (flag, URI, whether every file is), and with other outputs."""
    root, written = _written(to, uri)
    over = f"got {uri}, which would be written over"
    for flag, source, whole in read:
        location, pattern = locate(source), None
        place = _resolved(location)
        if has_magic(location.path) and not os.path.lexists(location.path):  # a glob: the folder above its wildcards
            base = above_wildcards(location.path)
            place = _resolved(replace(location, path=base))
            pattern = re.compile(glob_translate(place.rstrip("/") + location.path[len(base.rstrip("/")) :]))
        if any(_is_within(place, each) for each in written) or (not whole and place == root):
            return f"another place than {flag}, {over}"
        if not whole and _is_within(root, place) and all((location / name).exists() for name in OF_INDEX):
            return f"a place outside the index of {flag}, got {uri}"
        files = [each if isinstance(to, File) else f"{each}/x.parquet" for each in written or [root]]
        if whole and any(pattern.match(file) if pattern else _is_within(file, place) for file in files):
            return f"a place outside {flag}, got {uri}, which would be read as input"
    for place, flag in taken.items():
        if _is_within(root, place) or any(_is_within(place, each) for each in written):
            return f"another place than {flag}, {over}"
    return None


def _written(to: File | Folder, uri: str) -> tuple[str, list[str]]:
    """Where a flag's place is, and what is written there. A file goes in place of a link, not through it."""
    location = locate(uri)
    if isinstance(to, Folder):
        root = _resolved(location)
        return root, [f"{root}/{name}" for name in to.names]
    folder, name = posixpath.split(location.path)
    root = f"{_resolved(replace(location, path=folder))}/{name}"
    return root, [root]


def _resolved(location: Location) -> str:
    """Without links, where it is on this machine."""
    return os.path.realpath(location.path) if location.is_local else location.uri


def _is_within(place: str, other: str) -> bool:
    """Whether a place is another one, or in it."""
    return place == other or place.startswith(other.rstrip("/") + "/")


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
    """The record of this job if the folder holds it; None if it is free, or `overwrite`. Writes nothing.

    record: name of the JSON file with the fingerprint of what decides the results. job: what the folder may hold, in
    words. results: names, of which none may exist without a record. difference: from the job there, if it is known.
    """
    if overwrite:
        return None
    if (folder / record).exists():
        values = _record(folder / record)
        if values.get("fingerprint") == fingerprint:
            return values
        got = f"another ({difference})" if difference else "another"
    else:
        there = (place for place in (folder / name for name in results) if place.exists())
        full = (place for place in there if not place.fs.isdir(place.path) or next(place.entries(), None))
        if (place := next(full, None)) is None:
            return None
        got = f"{place.name} without {record}"
    raise RequestError(
        f"--output: expected an empty folder or {job} in {folder.uri}, got {got}; choose another folder or pass "
        "--overwrite"
    )


def begin(folder: Location, record: str, values: dict[str, Any], results: Iterable[str], *, overwrite: bool) -> None:
    """Put the record, with the key `fingerprint`; with `overwrite`, remove the results first, the old record last."""
    for name in (*results, record) if overwrite else ():
        (folder / name).remove()
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


def _record(file: Location) -> dict[str, Any]:
    """The values of a record; none where the file is not written by a job."""
    try:
        values = file.read_json()
    except RequestError:
        return {}
    return values if isinstance(values, dict) else {}
