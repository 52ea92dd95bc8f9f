"""The files of an input, and marks that tell whether they have changed."""

from __future__ import annotations

import csv
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from raycase.data.folders import MAGIC, Entry, below, entry_at, is_hidden, matching
from raycase.data.lance_dataset import VERSION, is_dataset, lance_reason, newest_version
from raycase.data.storage import FOLDER, PACKAGE, Location, locate, mark, sha256_of_file
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
    """The files of an input, by name, and what is left out of it.

    left_out: path -> what it is, where it is no regular file; "" for a file with another ending.
    real: URI -> path without links, of files that were found by way of a link. by_glob: a glob named the files.
    """

    root: Location
    files: list[InputFile]
    left_out: dict[str, str]
    real: dict[str, str] = field(default_factory=dict)
    by_glob: bool = False

    def without(self, written: Sequence[str]) -> Listing:
        """Without what is in these folders, or one of these files; they have no links in their paths."""

        def is_written(uri: str) -> bool:
            return any(uri == place or uri.startswith(f"{place}/") for place in written)

        files = [file for file in self.files if not is_written(self.real.get(file.uri, file.uri))]
        left_out = {path: what for path, what in self.left_out.items() if not is_written(_uri(self.root, path))}
        return replace(self, files=files, left_out=left_out)

    @property
    def names_left_out(self) -> list[str]:
        """What is left out, by name within the root, in letters that can be shown, and what it is."""
        names = ((posixpath.relpath(path, self.root.path), what) for path, what in sorted(self.left_out.items()))
        return [visible(f"{name} ({what})" if what else name) for name, what in names]

    def check_copies(self, flag: str, known: Sequence[InputFile] = ()) -> None:
        """Raise RequestError for what would give the same rows twice: one file under two endings, as `a.csv` and
        `a.csv.gz`, and files of two formats in a folder, of which one is likely the other again. Not for `known`
        ones, nor for formats that a glob names."""
        files: dict[str, InputFile] = {}
        for file in self.files:
            name = file.uri[: -len(file.ending)]
            other = files.setdefault(name, file)
            if other != file and not {file.uri, other.uri} <= {begun.uri for begun in known}:
                folder, names = posixpath.dirname(name), [posixpath.basename(each.uri) for each in (other, file)]
                raise RequestError(
                    f"{flag}: expected each file once, got {names[0]} and {names[1]} in {folder}, the same rows twice; "
                    f"move one away, or name those that are meant, as {folder}/*{other.ending}"
                )
        formats: dict[str, InputFile] = {}
        for file in self.files:
            formats.setdefault(file.format, file)
        if not self.by_glob and len(formats) > 1 and not formats.keys() <= {begun.format for begun in known}:
            here = self.root.uri
            ending = next(iter(formats.values())).ending
            name, other_name = [posixpath.relpath(file.uri, here) for file in list(formats.values())[:2]]
            raise RequestError(
                f"{flag}: expected files of one format in {here}, got {name} and {other_name}, perhaps the same rows "
                f"twice; name those that are meant, as {here}/**/*{ending}, or {here}/**/* for all"
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

    Links are followed, not in circles. A file that is in the input by its own name, or by way of a link to a folder,
    counts once; links to a file elsewhere are files of their own, as in the cache of Hugging Face. Raises RequestError
    where there is no such file, or the listing fails.
    """
    root = locate(uri)
    if uri.startswith(PACKAGE) and root.fs.isfile(root.path):
        # Installing the package again changes the modification time, but not the content.
        file = InputFile(uri=uri, size=root.fs.size(root.path), mark=sha256_of_file(Path(root.path)))
        return Listing(root=root, files=[file], left_out={})
    try:
        listing = _listed_here(root) if root.is_local else _listed_there(root)
        if is_dataset(root, list(listing.left_out)):
            if listing.files:
                raise ValueError(
                    f"a Lance dataset with {listing.files[0].uri} in it, which is no part of it; move it away"
                )
            return _dataset(root, flag)
    except (OSError, ValueError) as error:
        on_hub = uri.startswith("hf://") and not uri.startswith("hf://datasets/")
        hint = "; a dataset on the Hugging Face hub is given as hf://datasets/owner/name" if on_hub else ""
        raise RequestError(f"{flag}: expected to list {root.uri}, got: {root.why(error)}{hint}") from error
    if not listing.files:
        count = len(listing.left_out)
        others = f"{count} files with other endings" if count else "nothing"
        if any(path.endswith(LANCE) for path in listing.left_out):
            others += "; a Lance dataset is given by its own path"
        if listing.left_out.get(root.path):
            others = listing.left_out[root.path]
        raise RequestError(f"{flag}: expected {READ} files at {root.uri}, got {others}")
    return replace(listing, by_glob=listing.root.path != root.path)


def _listed_here(root: Location) -> Listing:
    """The input on this machine."""
    if os.path.isdir(root.path):
        entries = below(root.path)
    elif os.path.lexists(root.path):
        entries = iter([entry_at(root.path)])
    else:
        base, entries = matching(root.path)
        root = replace(root, path=base)
    found = sorted(entries, key=lambda entry: (entry.linked, entry.path))
    left_out = {entry.path: entry.no_file for entry in found if entry.no_file}
    read = [entry for entry in found if not entry.no_file and _ending(entry.path) in ENDINGS]
    here = {entry.real for entry in read if not entry.linked}
    named: dict[str, Entry] = {}  # by the path without links; several links to one file elsewhere are several files
    for entry in read:
        alone = entry.linked and entry.real not in here and os.path.islink(entry.path)
        if named.setdefault(entry.path if alone else entry.real, entry) != entry:
            left_out[entry.path] = "a file listed already"
    read_by_links = {entry.real for entry in read}
    others = [e for e in found if not e.no_file and _ending(e.path) not in ENDINGS]
    left_out |= {entry.path: "" for entry in others if entry.real not in read_by_links}
    files = [
        InputFile(uri=e.path, size=e.size, mark=mark({"mtime": e.modified, "created": e.changed}))
        for e in sorted(named.values(), key=lambda entry: entry.path)
    ]
    real = {entry.path: entry.real for entry in named.values() if entry.path != entry.real}
    return Listing(root=root, files=files, left_out=left_out, real=real)


def _listed_there(root: Location) -> Listing:
    """The input in a store, or another file system that fsspec knows."""
    root.fs.invalidate_cache()
    if root.fs.isfile(root.path):
        infos = {root.path: root.fs.info(root.path)}
    else:
        is_folder = root.fs.isdir(root.path)
        infos = root.fs.find(root.path, detail=True) if is_folder else root.fs.glob(root.path, detail=True)
        base = root if is_folder else replace(root, path=posixpath.dirname(MAGIC.split(root.path)[0]))
        below_base = len(base.path)
        infos = {path: info for path, info in infos.items() if not any(map(is_hidden, path[below_base:].split("/")))}
        root = base
    folders = {posixpath.dirname(path) for path in infos}
    files, left_out = [], {}
    for path, info in sorted(infos.items()):
        if info["type"] == "file" and _ending(path) in ENDINGS:
            files.append(InputFile(uri=_uri(root, path), size=info["size"] or 0, mark=mark(info)))
        elif info["size"] or path not in folders:  # an empty object stands for a folder
            left_out[path] = FOLDER if info["type"] == "directory" else ""
    return Listing(root=root, files=files, left_out=left_out)


def _dataset(root: Location, flag: str) -> Listing:
    """The newest version of a Lance dataset."""
    try:
        size, version = newest_version(root)
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(f"{flag}: expected a Lance dataset at {root.uri}, got: {lance_reason(error)}") from error
    return Listing(root=root, files=[InputFile(uri=root.uri, size=size, mark=version)], left_out={})


def _uri(root: Location, path: str) -> str:
    return replace(root, path=path).uri


def _ending(path: str) -> str:
    """Of whatever case, without case; that of a compressed file with the one before it."""
    name, ending = posixpath.splitext(path.lower())
    return posixpath.splitext(name)[1] + ending if ending in CODECS else ending


@contextmanager
def readable(file: InputFile) -> Iterator[Location]:
    """Give the location of a file; errors while it is read become a RequestError that names the file."""
    source = locate(file.uri)
    try:
        yield source
    except RequestError:
        raise
    except (OSError, ValueError, csv.Error, pa.ArrowException, RuntimeError) as error:
        if file.format == LANCE:
            version = f"{file.mark.rpartition(' ')[0]} that can be read"
            raise RequestError(f"{file.uri}: expected {version}, got: {lance_reason(error)}") from error
        if isinstance(error, RuntimeError):
            raise
        kind = file.ending[1:]
        raise RequestError(f"{file.uri}: expected a readable {kind} file, got: {source.why(error)}") from error
