"""What a command reads and what it writes, compared before it begins: nothing that is read may be written over."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raycase.data.folders import MAGIC, is_hidden, matching
from raycase.data.inputs import ENDINGS, list_input
from raycase.data.storage import PACKAGE, Location, locate
from raycase.errors import RequestError

PARQUET, HTML, JSON = (".parquet", ""), (".html", ".htm", ""), (".json", "")
FORMATS = re.compile(
    r"\.(parquet|csv|tsv|json|jsonl|ndjson|txt|md|html?|svg|png|jpe?g|pdf|arrow|feather|xlsx?|gz|zst|zip|npy|safetensors)"
)  # endings that say what is in a file; "answers.v2" has none
INDEX, JOB = "_versions", "job.json"  # by which an index and the output of a job are known
MARKS = {INDEX: "an index", JOB: "the output of a job", "manifest_files.parquet": "the output of a job"}
NONE: Mapping[str, Any] = MappingProxyType({})

Paths = Mapping[str, str | Sequence[str] | None]  # flag -> a path or URI, or several


@dataclass(frozen=True)
class File:
    """A file that a flag writes, and the endings that its format has; "": it needs none, but no other format's."""

    uri: str | None
    endings: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder that a flag writes into.

    names: of the files and folders that are written there. Those of a cache are hashes, and go over nothing.
    mark: what is in a folder of this very kind, to which the command adds.
    left_out: nothing in it is read as input, where the folder is in one.
    here: on this machine, not in an object store.
    """

    uri: str | None
    names: tuple[str, ...] = ()
    mark: str | None = None
    left_out: bool = False
    here: bool = False


@dataclass(frozen=True)
class _Read:
    """Something that is read. A glob has a pattern; `path` is then the folder above its first wildcard."""

    flag: str
    uri: str
    path: str
    pattern: str | None
    whole: bool

    @cached_property
    def here(self) -> set[str]:
        """The files of an input on this machine, by their paths without links."""
        with suppress(RequestError):
            if self.whole and locate(self.uri).is_local:
                listing = list_input(self.uri, self.flag)
                return {os.path.realpath(listing.real.get(file.uri, file.uri)) for file in listing.files}
        return set()

    def meets(self, path: str, ending: str | None) -> bool:
        """Whether a file, or what is in a folder (no ending), is among the files that `find_input` would list."""
        if not self.whole or (ending is not None and ending.lower() not in ENDINGS) or not _is_within(path, self.path):
            return False
        below = [part for part in path[len(self.path) :].split("/") if part]
        if any(map(is_hidden, below)):
            return False
        if self.pattern is None:
            return True
        parts = self.pattern.split("/")
        for part, name in zip(parts, below, strict=False):
            if "**" in part:
                return True
            if not fnmatchcase(name, part):
                return False
        return len(parts) == len(below) if ending is not None else len(parts) > len(below)


def check_paths(*, reads: Paths = NONE, opens: Paths = NONE, writes: Mapping[str, File | Folder] = NONE) -> None:
    """Compare all that a command reads and writes, by flag, links resolved.

    reads: files, and folders and globs of which every file is read. opens: folders of which certain files are read, as
    models, indexes and outputs of jobs.

    Raises RequestError for an empty path, which would be the current folder; for a relative one in a job submitted to
    Ray, whose folder is temporary; for a file with another ending than its format has; and for writing over what is
    read or written by another flag, into what is read as input, or into an index or an output of another command.
    """
    for flag, value in {**reads, **opens, **{flag: to.uri for flag, to in writes.items()}}.items():
        for uri in _several(value):
            _check_path(flag, uri)
    for flag, to in writes.items():
        if isinstance(to, Folder) and to.here and "://" in (to.uri or ""):
            raise RequestError(f"{flag}: expected a folder on this machine, got {to.uri}; copy the result there")
    read = [r for flag, value in reads.items() for uri in _several(value) for r in _read(flag, uri, whole=True)]
    read += [r for flag, value in opens.items() for uri in _several(value) for r in _read(flag, uri, whole=False)]
    earlier: dict[str, str] = {}  # what other flags write -> flag
    for flag, to in writes.items():
        if to.uri is None:
            continue
        location = locate(to.uri)
        root = _resolved(location)
        _check_kind(flag, to, root)
        roots = [root] if isinstance(to, Folder) else [root, _replaced(location)]
        written = [place for each in roots for place in _written(to, each)]
        for place in written or [root.uri]:
            for other, of in earlier.items():
                if _is_within(place, other) or (written and _is_within(other, place)):
                    raise _same(flag, to, of, f"{to.uri} twice")
        for each in roots:
            _check_reads(flag, to, each, read)
        with suppress(OSError):  # a store that does not answer is asked once: the job says so
            if isinstance(to, File) and not root.is_local and _asked(root.fs.isdir, root.path):
                raise _no_file(flag, to)
            _check_marks(flag, to, roots[-1])
        earlier |= dict.fromkeys(written, flag)


def _several(value: str | Sequence[str] | None) -> Sequence[str]:
    return () if value is None else (value,) if isinstance(value, str) else value


def _check_path(flag: str, uri: str) -> None:
    if not uri.strip():
        raise RequestError(f"{flag}: expected a path or a URI, got {uri!r}")
    relative = "://" not in uri and not uri.startswith((PACKAGE, "/", "~"))
    if relative and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise RequestError(
            f"{flag}: expected an absolute path or a URI, got {uri!r}: "
            "a submitted job runs in a folder that Ray removes"
        )


def _check_kind(flag: str, to: File | Folder, root: Location) -> None:
    """Raise RequestError for a file with another ending, a folder for a file, and a file for a folder."""
    assert to.uri is not None
    if isinstance(to, Folder):
        if root.is_local:
            path = Path(root.path)
            there = next(above for above in (path, *path.parents) if os.path.lexists(above))
            if not there.is_dir():
                raise RequestError(f"{flag}: expected a folder, got the file {there}")
        return
    ending = posixpath.splitext(to.uri.rstrip("/"))[1].lower()
    if ending not in to.endings and ("" not in to.endings or FORMATS.fullmatch(ending)):
        raise RequestError(f"{flag}: expected a file that ends with {to.endings[0]}, got {to.uri}")
    if to.uri.endswith("/") or (root.is_local and os.path.isdir(root.path)):
        raise _no_file(flag, to)
    if root.is_local and os.path.lexists(root.path) and not os.path.isfile(root.path):
        raise RequestError(f"{flag}: expected a file, got no regular file: {to.uri}")


def _no_file(flag: str, to: File | Folder) -> RequestError:
    return RequestError(f"{flag}: expected a file, got the folder {to.uri}")


def _check_reads(flag: str, to: File | Folder, root: Location, read: Sequence[_Read]) -> None:
    """Raise RequestError for writing over what is read, and into what is read as input."""
    written = _written(to, root)
    there = [place for place in written if root.is_local and os.path.lexists(place)]
    for other in read:
        if isinstance(to, Folder) and not other.whole and other.path == root.uri:
            raise _same(flag, to, other.flag, f"{to.uri} twice")
        over = any(_is_within(other.path, place) for place in written)
        if over or (there and not (isinstance(to, Folder) and to.left_out) and _overlap(there, other.here)):
            raise _same(flag, to, other.flag, f"{to.uri}, which would be written over what is read")
        if isinstance(to, Folder) and to.left_out:
            continue
        for place in written or [root.uri]:
            ending = posixpath.splitext(place)[1] if written else ""
            if other.meets(place, ending if isinstance(to, File) else ending or None):
                raise RequestError(
                    f"{flag}: expected a place outside of {other.flag}, got {to.uri}, which would be read as input; "
                    "choose another"
                )


def _same(flag: str, to: File | Folder, other: str, got: str) -> RequestError:
    kind = "file" if isinstance(to, File) else "folder"
    return RequestError(f"{flag}: expected another {kind} than {other}, got {got}")


def _check_marks(flag: str, to: File | Folder, root: Location) -> None:
    """Raise RequestError for a place inside an index or an output, unless it is the command's own."""
    folder, own = (posixpath.dirname(root.path), None) if isinstance(to, File) else (root.path, to.mark)
    while True:
        for mark, what in MARKS.items():
            mine = own is not None and folder == root.path and MARKS[own] == what
            if not mine and _has(Location(root.fs, folder), mark):
                inside = Location(root.fs, folder).uri
                raise RequestError(
                    f"{flag}: expected a place outside of indexes and outputs, got {to.uri} in {what}, {inside}; "
                    "choose another"
                )
        above = posixpath.dirname(folder)
        if above in (folder, "", "/"):
            return
        folder = above


def _has(folder: Location, mark: str) -> bool:
    """Whether a folder has what an index or an output has, and not only a file of that name."""
    if not _asked(folder.fs.exists, (folder / mark).path):
        return False
    if mark == INDEX:
        return _asked(folder.fs.exists, (folder / "data").path)
    if mark == JOB:
        with suppress(OSError, RequestError, AttributeError):
            return {"config", "files"} <= (folder / mark).read_json().keys()
        return False
    return True


def _overlap(places: Sequence[str], files: set[str]) -> bool:
    """Whether one of the files is one of the places, or in it."""
    return any(file in files or any(_is_within(each, file) for each in files) for file in map(os.path.realpath, places))


def _asked(question: Callable[[str], bool], path: str) -> bool:
    """The answer of a store; no where it may not say. Raises OSError where it fails, after all the retries."""
    try:
        return question(path)
    except (PermissionError, NotImplementedError):
        return False


def _written(to: File | Folder, root: Location) -> list[str]:
    """The places that are written."""
    return [root.uri] if isinstance(to, File) else [(root / name).uri for name in to.names]


def _read(flag: str, uri: str, *, whole: bool) -> list[_Read]:
    """The place of something that is read; none where it has no location: its reader says so."""
    with suppress(RequestError):
        location = locate(uri)
        base, pattern = location.path, None
        if MAGIC.search(base) and not (location.is_local and os.path.lexists(base)):
            base = matching(base)[0] if location.is_local else posixpath.dirname(MAGIC.split(base)[0])
            pattern = location.path[len(base) :].strip("/")
        root = _resolved(Location(location.fs, base))
        return [_Read(flag, uri, root.uri, pattern, whole)]
    return []


def _resolved(location: Location) -> Location:
    """Without links, where it is on this machine."""
    return Location(location.fs, os.path.realpath(location.path)) if location.is_local else location


def _replaced(location: Location) -> Location:
    """The file that is written: in place of a link, not through it."""
    if not location.is_local:
        return location
    folder, name = posixpath.split(location.path)
    return Location(location.fs, posixpath.join(os.path.realpath(folder), name))


def _is_within(place: str, other: str) -> bool:
    """Whether a place is another one, or in it."""
    return place == other or place.startswith(other.rstrip("/") + "/")
