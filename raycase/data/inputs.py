"""The files of an input: which there are, and whether they are what they were."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from raycase.data.storage import PACKAGE, STORE_ERRORS, Location, locate, mark, sha256_of_file
from raycase.errors import RequestError

ENDINGS = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file of the input; `mark` changes when its content does (ETag or modification time)."""

    uri: str
    size: int
    mark: str

    @property
    def ending(self) -> str:
        return posixpath.splitext(self.uri)[1]


def find_input(uri: str, flag: str = "--input") -> list[InputFile]:
    """The files of a path, folder or glob, sorted by name; hidden ones (`.x`, `_x`) and other endings are left out.

    Raises RequestError where nothing is there, or nothing that can be read.
    """
    root = locate(uri)
    if uri.startswith(PACKAGE) and root.fs.isfile(root.path):
        # Installed anew, its time changes and its content does not.
        return [InputFile(uri=uri, size=root.fs.size(root.path), mark=sha256_of_file(Path(root.path)))]
    root.fs.invalidate_cache()
    try:
        if root.fs.isfile(root.path):
            found = {root.path: root.fs.info(root.path)}
        else:
            is_folder = root.fs.isdir(root.path)
            found = root.fs.find(root.path, detail=True) if is_folder else root.fs.glob(root.path, detail=True)
            inside = len(root.path if is_folder else posixpath.dirname(re.split(r"[*?[]", root.path)[0]))
            found = {p: i for p, i in found.items() if not _hidden(p[inside:])}
    except STORE_ERRORS as error:
        raise RequestError(f"{flag}: expected to list {root.uri}, got: {root.why(error)}") from error
    files = [
        InputFile(uri=Location(root.fs, p).uri, size=info["size"] or 0, mark=mark(info))
        for p, info in sorted(found.items())
        if info["type"] == "file" and p.endswith(ENDINGS)
    ]
    if not files:
        others = f"{len(found)} files with other endings" if found else "nothing"
        raise RequestError(f"{flag}: expected {', '.join(ENDINGS)} files at {root.uri}, got {others}")
    return files


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))


@contextmanager
def readable(file: InputFile) -> Iterator[Location]:
    """Whatever goes wrong while reading a file is said with its name, as a RequestError."""
    source = locate(file.uri)
    try:
        yield source
    except RequestError:
        raise
    except (*STORE_ERRORS, ValueError, csv.Error, pa.ArrowException) as error:
        kind = file.ending[1:]
        raise RequestError(f"{file.uri}: expected a readable {kind} file, got: {source.why(error)}") from error
