"""The files of an input, and marks that tell whether they have changed."""

from __future__ import annotations

import csv
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import has_magic
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec.utils import glob_translate

from raycase.data.folders import below, is_hidden
from raycase.data.lance_dataset import VERSION, is_dataset, lance_reason, newest_version
from raycase.data.storage import PACKAGE, Location, check_regular, locate, mark, sha256_of_file
from raycase.data.texts import CODECS
from raycase.errors import RequestError, note, visible

PARQUET, LANCE, TEXTS = ".parquet", ".lance", (".csv", ".jsonl")
READ = ", ".join((PARQUET, *TEXTS))
ENDINGS = (PARQUET, *TEXTS, *(text + codec for text in TEXTS for codec in CODECS))
MOST_NAMES = 5  # names of what is left out, on one line


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file of the input, or a Lance dataset; `mark` changes when its content does (ETag, modification time,
    version)."""

    uri: str
    size: int
    mark: str

    @property
    def ending(self) -> str:
        """What its name ends with, as `.jsonl.gz`."""
        return _ending(self.uri)

    @property
    def format(self) -> str:
        """What is in it, compressed or not: .parquet, .csv, .jsonl, or .lance whatever the dataset's name."""
        if VERSION.fullmatch(self.mark):
            return LANCE
        return self.ending.removesuffix(self.compression)

    @property
    def compression(self) -> str:
        """.gz or .zst, where it is compressed as a whole; else ""."""
        return next((ending for ending in CODECS if self.ending.endswith(ending)), "")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of an input by name, and the paths of what is left out. by_glob: a glob named the files."""

    root: Location
    files: list[InputFile]
    left_out: list[str]
    by_glob: bool = False

    @property
    def names_left_out(self) -> list[str]:
        """What is left out, by name within the root, in letters that can be shown."""
        return [visible(posixpath.relpath(path, self.root.path)) for path in self.left_out]

    def check_copies(self, flag: str, known: Sequence[InputFile] = ()) -> None:
        """Raise RequestError for what would give the same rows twice: one file under two endings, as `a.csv` and
        `a.csv.gz`, and files of two formats in a folder, of which one is likely the other again. Not for `known`
        ones, nor for formats that a glob names."""
        stems: dict[str, InputFile] = {}
        begun = {file.uri for file in known}
        for file in self.files:
            other = stems.setdefault(file.uri[: -len(file.ending)], file)
            if other == file and not self.by_glob and file.format != self.files[0].format:
                other = self.files[0]
            if other != file and not {file.uri, other.uri} <= begun:
                here = self.root.uri
                names = [posixpath.relpath(each.uri, here) for each in (other, file)]
                raise RequestError(
                    f"{flag}: expected each row once, got {names[0]} and {names[1]} in {here}, perhaps the same rows; "
                    f"move one away, or name those that are meant, as {here}/**/*{other.ending}"
                )

    def say(self, flag: str) -> None:
        """One line on standard error where something is left out."""
        if names := self.names_left_out:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            note(
                f"{flag}: left out {len(names)} of {self.root.uri}: {', '.join(names[:MOST_NAMES])}{more}; "
                f"{READ} files are read, texts also as {' and '.join(CODECS)}"
            )


def find_input(uri: str, flag: str = "--input") -> list[InputFile]:
    """The files of a path, folder or glob; says what is left out. Raises RequestError as `list_input` and
    `Listing.check_copies`."""
    listing = list_input(uri, flag)
    listing.check_copies(flag)
    listing.say(flag)
    return listing.files


def list_input(uri: str, flag: str = "--input") -> Listing:
    """The files of a path, folder or glob, sorted by name, without hidden ones (`.x`, `_x`) and other endings; of a
    Lance dataset its newest version.

    Links are followed, not in circles. A link to a file that is in the input by its own name gives nothing more; links
    to a file elsewhere are files of their own, as in the cache of Hugging Face. Raises RequestError where there is no
    such file, or the listing fails.
    """
    root = locate(uri)
    if uri.startswith(PACKAGE) and os.path.isfile(root.path):
        # Installing the package again changes the modification time, but not the content.
        file = InputFile(uri=uri, size=os.path.getsize(root.path), mark=sha256_of_file(Path(root.path)))
        return Listing(root=root, files=[file], left_out=[])
    if root.is_local:
        check_regular(root.path)
    try:
        listing = _listed_here(root) if root.is_local else _listed_there(root)
        if is_dataset(root, listing.left_out):
            size, version = newest_version(root)
            return Listing(root=root, files=[InputFile(uri=root.uri, size=size, mark=version)], left_out=[])
    except (OSError, ValueError, RuntimeError) as error:
        on_hub = uri.startswith("hf://") and not uri.startswith("hf://datasets/")
        hint = "; a dataset on the Hugging Face hub is given as hf://datasets/owner/name" if on_hub else ""
        reason = lance_reason(error) if "lance" in str(error) else root.why(error)
        raise RequestError(f"{flag}: expected to list {root.uri}, got: {reason}{hint}") from error
    if not listing.files:
        others = f"{len(listing.left_out)} others" if listing.left_out else "nothing"
        hint = "; a Lance dataset is given by its own path" if any(LANCE in path for path in listing.left_out) else ""
        raise RequestError(f"{flag}: expected {READ} files at {root.uri}, got {others}{hint}")
    return listing


def above_wildcards(path: str) -> str:
    """The folder above the first wildcard of a glob."""
    return posixpath.dirname(re.split(r"[*?[]", path)[0]) or "/"


def _listed_here(root: Location) -> Listing:
    """The input on this machine."""
    if os.path.isfile(root.path):
        return _listing(root, {root.path: _info(root.path)})
    if os.path.isdir(root.path):
        files = {entry.path: entry.is_symlink() for entry in below(root.path)}
        return _listing(root, _without_copies(files))
    base = above_wildcards(root.path)
    levels = inf if "**" in root.path else root.path.count("/") - base.rstrip("/").count("/")
    pattern = re.compile(glob_translate(root.path))
    found = below(base, levels) if has_magic(root.path) and os.path.isdir(base) else ()
    files = {entry.path: entry.is_symlink() for entry in found if pattern.match(entry.path)}
    return _listing(replace(root, path=base), _without_copies(files), by_glob=True)


def _without_copies(files: dict[str, bool]) -> dict[str, dict[str, Any]]:
    """Path -> info of files, of which we know whether they are links, without links to others that are read."""
    links = {path for path, is_link in files.items() if is_link}
    own = {os.path.realpath(path) for path in files if path not in links and _ending(path) in ENDINGS} if links else ()
    return {path: _info(path) for path in files if path not in links or os.path.realpath(path) not in own}


def _info(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        return {"type": "other", "size": 0}
    found = os.stat(path)
    return {"type": "file", "size": found.st_size, "mtime": found.st_mtime, "created": found.st_ctime}


def _listed_there(root: Location) -> Listing:
    """The input in a store, or another file system that fsspec knows."""
    root.fs.invalidate_cache()
    if root.fs.isfile(root.path):
        return _listing(root, {root.path: root.fs.info(root.path)})
    by_glob = not root.fs.isdir(root.path)
    if by_glob:
        infos, base = root.fs.glob(root.path, detail=True), replace(root, path=above_wildcards(root.path))
    else:
        infos, base = root.fs.find(root.path, detail=True), root
    below_base = len(base.path)
    folders = {posixpath.dirname(path) for path in infos}
    infos = {
        path: info
        for path, info in infos.items()
        if not any(map(is_hidden, path[below_base:].split("/")))
        and (info["size"] or path.rstrip("/") not in folders)  # an empty object stands for a folder
    }
    return _listing(base, infos, by_glob=by_glob)


def _listing(root: Location, infos: dict[str, dict[str, Any]], by_glob: bool = False) -> Listing:
    read = {path for path, info in infos.items() if info["type"] == "file" and _ending(path) in ENDINGS}
    files = [
        InputFile(uri=replace(root, path=path).uri, size=infos[path]["size"] or 0, mark=mark(infos[path]))
        for path in sorted(read)
    ]
    return Listing(root=root, files=files, left_out=sorted(infos.keys() - read), by_glob=by_glob)


def _ending(path: str) -> str:
    """Of whatever case, without case; that of a compressed file with the one before it."""
    name, ending = posixpath.splitext(path.lower())
    return posixpath.splitext(name)[1] + ending if ending in CODECS else ending


@contextmanager
def readable(file: InputFile) -> Iterator[Location]:
    """Give the location of a file; errors while it is read become a RequestError that names the file."""
    source = locate(file.uri)
    is_lance = file.format == LANCE
    kinds = (OSError, ValueError, csv.Error, pa.ArrowException, *((RuntimeError,) if is_lance else ()))
    try:
        yield source
    except RequestError:
        raise
    except kinds as error:
        expected = (
            f"{file.mark.rpartition(' ')[0]} that can be read" if is_lance else f"a readable {file.ending[1:]} file"
        )
        reason = lance_reason(error) if is_lance else source.why(error)
        raise RequestError(f"{file.uri}: expected {expected}, got: {reason}") from error
