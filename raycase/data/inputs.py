"""The files of an input, and marks that tell whether they have changed."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from raycase.data.storage import PACKAGE, Location, locate, mark, sha256_of_file
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
    """The files of a path, folder or glob, sorted by name, without hidden ones (`.x`, `_x`) and other endings.

    Raises RequestError where there is no such file, or the listing fails.
    """
    root = locate(uri)
    if uri.startswith(PACKAGE) and root.fs.isfile(root.path):
        # Installing the package again changes the modification time, but not the content.
        return [InputFile(uri=uri, size=root.fs.size(root.path), mark=sha256_of_file(Path(root.path)))]
    root.fs.invalidate_cache()
    try:
        if root.fs.isfile(root.path):
            infos = {root.path: root.fs.info(root.path)}
        else:
            is_folder = root.fs.isdir(root.path)
            infos = root.fs.find(root.path, detail=True) if is_folder else root.fs.glob(root.path, detail=True)
            prefix = len(root.path if is_folder else posixpath.dirname(re.split(r"[*?[]", root.path)[0]))
            infos = {path: info for path, info in infos.items() if not _is_hidden(path[prefix:])}
    except OSError as error:
        raise RequestError(f"{flag}: expected to list {root.uri}, got: {root.why(error)}") from error
    files = [
        InputFile(uri=Location(root.fs, path).uri, size=info["size"] or 0, mark=mark(info))
        for path, info in sorted(infos.items())
        if info["type"] == "file" and path.endswith(ENDINGS)
    ]
    if not files:
        others = f"{len(infos)} files with other endings" if infos else "nothing"
        raise RequestError(f"{flag}: expected {', '.join(ENDINGS)} files at {root.uri}, got {others}")
    return files


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))


@contextmanager
def readable(file: InputFile) -> Iterator[Location]:
    """Give the location of a file; errors while it is read become a RequestError that names the file."""
    source = locate(file.uri)
    try:
        yield source
    except RequestError:
        raise
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        kind = file.ending[1:]
        raise RequestError(f"{file.uri}: expected a readable {kind} file, got: {source.why(error)}") from error
