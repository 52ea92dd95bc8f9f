"""What is below a folder of this machine, or matches a glob. Links are followed, but not in circles."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

from fsspec.utils import glob_translate

from raycase.data.storage import FOLDER, kind_of

MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file below a folder, or something that is none.

    real: its path without links. linked: whether a link below the folder led to it.
    """

    path: str
    real: str
    linked: bool
    size: int = 0
    modified: float = 0.0
    changed: float = 0.0
    no_file: str | None = None  # what it is, where it is no regular file


def is_hidden(name: str) -> bool:
    """Whether a file or folder is left out because of its name, unless it is asked for."""
    return name.startswith((".", "_"))


def entry_at(path: str) -> Entry:
    """What is at a path."""
    return _entry(path, os.path.realpath(path), os.path.islink(path), partial(os.stat, path))


def below(folder: str) -> Iterator[Entry]:
    """All below a folder but what is hidden; links to folders come last, and each folder once.

    One that may not be listed is among them as such. Raises OSError where nothing can be listed.
    """
    seen: set[str] = set()
    ahead = [Entry(path=folder, real=os.path.realpath(folder), linked=False)]
    links: deque[Entry] = deque()
    while ahead or links:
        at = ahead.pop() if ahead else links.popleft()
        if at.real in seen:
            yield replace(at, no_file="a folder listed already")
            continue
        seen.add(at.real)
        try:
            listed = _listed(at)
        except PermissionError:
            if at.path == folder:
                raise
            yield replace(at, no_file="a folder that may not be listed")
            continue
        for entry in listed:
            if entry.no_file != FOLDER:
                yield entry
            elif os.path.islink(entry.path):
                links.append(entry)
            else:
                ahead.append(entry)


def matching(pattern: str) -> tuple[str, Iterator[Entry]]:
    """The folder above the first wildcard of a glob, and what matches it. A folder that is there by this very name is
    no wildcard."""
    base, parts = "/", [part for part in pattern.split("/") if part]
    while parts and (not MAGIC.search(parts[0]) or os.path.lexists(os.path.join(base, parts[0]))):
        base = os.path.join(base, parts.pop(0))
    return base, _matching(entry_at(base), parts)


def _matching(folder: Entry, parts: Sequence[str]) -> Iterator[Entry]:
    if not parts or not os.path.isdir(folder.path):
        return
    if "**" in parts[0]:
        pattern = re.compile(glob_translate("/".join(parts)))
        yield from (e for e in below(folder.path) if pattern.match(os.path.relpath(e.path, folder.path)))
        return
    try:
        listed = _listed(folder)
    except PermissionError:
        yield replace(folder, no_file="a folder that may not be listed")
        return
    for entry in listed:
        if fnmatchcase(os.path.basename(entry.path), parts[0]):
            if len(parts) == 1:
                yield entry
            else:
                yield from _matching(entry, parts[1:])


def _listed(folder: Entry) -> list[Entry]:
    """What is directly in a folder, by name, but for what is hidden."""
    with os.scandir(folder.path) as found:
        entries = sorted((entry for entry in found if not is_hidden(entry.name)), key=lambda entry: entry.name)
    listed = []
    for entry in entries:
        link = entry.is_symlink()
        real = os.path.realpath(entry.path) if link else os.path.join(folder.real, entry.name)
        listed.append(_entry(entry.path, real, link or folder.linked, entry.stat))
    return listed


def _entry(path: str, real: str, linked: bool, stat: Callable[[], os.stat_result]) -> Entry:
    at = Entry(path=path, real=real, linked=linked)
    try:
        found = stat()
    except OSError:  # a link to nothing, or to itself
        return replace(at, no_file="a broken link")
    return replace(
        at,
        size=found.st_size,
        modified=found.st_mtime,
        changed=found.st_ctime,
        no_file=kind_of(found.st_mode),
    )
