"""The files of an input, by what class each is read, and marks that show whether they have changed."""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import has_magic
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec.utils import glob_translate

from raycase.errors import RequestError, expecting, is_utf8, note
from raycase.io.lance_dataset import Lance
from raycase.io.source import CODECS, InputFile, Parquet, Source, TokenFile, ending_of
from raycase.io.storage import PACKAGE, Location, locate, mark, sha256_of_file
from raycase.io.text_files import Csv, Jsonl, TextFile

FORMATS: dict[str, type[Source]] = {".parquet": Parquet, ".csv": Csv, ".jsonl": Jsonl}  # by how a name ends
MARKED: tuple[type[Lance | TokenFile], ...] = (Lance, TokenFile)  # by how the marks of their files look: `MARK`
MOST_NAMES = 5  # names of what is left out, on one line


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of an input by name, and the names within the root of what is left out."""

    root: Location
    files: list[InputFile]
    left_out: list[str]

    def check_copies(self, flag: str) -> None:
        """Raise RequestError for one file under two endings, as `a.csv` and `a.csv.gz`, whose rows would be twice."""
        stems: dict[str, InputFile] = {}
        for file in self.files:
            other = stems.setdefault(file.uri[: -len(ending_of(file.uri))], file)
            if other != file:
                names = [posixpath.relpath(each.uri, self.root.uri) for each in (other, file)]
                raise RequestError(
                    f"{flag}: expected each row once, got {names[0]} and {names[1]} in {self.root.uri}; move one away, "
                    f"or select files with a glob such as {self.root.uri}/**/*{ending_of(other.uri)}"
                )

    def note_left_out(self, flag: str) -> None:
        """One line on standard error where something is left out."""
        if names := self.left_out:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            note(
                f"{flag}: skipped {len(names)} in {self.root.uri}: {', '.join(names[:MOST_NAMES])}{more}; "
                f"only {', '.join(FORMATS)} files are read, texts also as {' and '.join(CODECS)}"
            )


def source_of(file: InputFile, number: int = 0) -> Source:
    """What reads a file that was listed; `number`: of the file in the job."""
    marked = (source for source in MARKED if source.MARK.fullmatch(file.mark))
    source = next(marked, None) or _format(file.uri)
    assert source is not None
    return source(file, number)


def peek(file: InputFile) -> pa.Schema:
    """The columns of a file and their types: its schema, strings for CSV, types of the first rows for JSONL."""
    source = source_of(file)
    with source.reading():
        return source.schema


def _format(path: str) -> type[Source] | None:
    """The class that reads a file of this name, compressed or not; None where none does."""
    ending, packed = posixpath.splitext(ending_of(path))
    source = FORMATS.get(ending)
    return source if source and (issubclass(source, TextFile) or not packed) else None


def find_input(uri: str, flag: str = "--input") -> list[InputFile]:
    """The files of a path, folder or glob; notes what is left out. Raises RequestError as `list_input`."""
    listing = list_input(uri, flag)
    listing.note_left_out(flag)
    return listing.files


def list_input(uri: str, flag: str = "--input") -> Listing:
    """The files of a path, folder or glob, sorted, without hidden and others; of a Lance dataset its newest version.

    Links are followed, not in circles; a link to a file is a file of its own, as in the cache of Hugging Face.
    """
    root = locate(uri)
    if uri.startswith(PACKAGE) and os.path.isfile(root.path):
        # Installing the package again changes the modification time, but not the content.
        file = InputFile(uri=uri, size=os.path.getsize(root.path), mark=sha256_of_file(Path(root.path)))
        return Listing(root=root, files=[file], left_out=[])
    on_hub = uri.startswith("hf://") and not uri.startswith("hf://datasets/")
    hint = "; a dataset on the Hugging Face hub is given as hf://datasets/owner/name" if on_hub else ""
    with expecting(f"{flag}: expected to list {root.uri}", OSError, ValueError, why=root.why, advice=hint):
        listing = _listed_here(root) if root.is_local else _listed_there(root)
        if found := Lance.find(root, listing.left_out):
            return Listing(root=root, files=[found], left_out=[])
    if not listing.files:
        others = f"{len(listing.left_out)} others" if listing.left_out else "nothing"
        is_lance = any(".lance" in path for path in listing.left_out)
        hint = "; a Lance dataset is given by its own path" if is_lance else ""
        raise RequestError(f"{flag}: expected {', '.join(FORMATS)} files at {root.uri}, got {others}{hint}")
    listing.check_copies(flag)
    return listing


def above_wildcards(path: str) -> str:
    """The folder above the first wildcard of a glob."""
    return posixpath.dirname(re.split(r"[*?[]", path)[0]) or "/"


def _listed_here(root: Location) -> Listing:
    """The input on this machine."""

    def listing(top: Location, paths: Iterable[str]) -> Listing:
        other = {"type": "other", "size": 0}  # as a link to nothing
        return _listing(top, {path: root.fs.info(path) if os.path.isfile(path) else other for path in paths})

    if os.path.isfile(root.path):
        return listing(root, [root.path])
    if os.path.isdir(root.path):
        return listing(root, _below(root.path, inf, set()))
    base = above_wildcards(root.path)
    depth = inf if "**" in root.path else root.path.count("/") - base.rstrip("/").count("/")
    pattern = re.compile(glob_translate(root.path))
    found = _below(base, depth, set()) if has_magic(root.path) and os.path.isdir(base) else ()
    return listing(replace(root, path=base), filter(pattern.match, found))


def _below(top: str, depth: float, seen: set[str]) -> Iterator[str]:
    """All files so many levels down but what is hidden. Links are followed; folders in `seen` are not listed again."""
    if depth and (real := os.path.realpath(top)) not in seen:
        seen.add(real)
        for path in (os.path.join(top, name) for name in sorted(os.listdir(top)) if not is_hidden(name)):
            yield from _below(path, depth - 1, seen) if os.path.isdir(path) else (path,)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is left out because of its name, unless it is asked for."""
    return name.startswith((".", "_"))


def _listed_there(root: Location) -> Listing:
    """The input in a store, or another file system that fsspec knows."""
    root.fs.invalidate_cache()
    if root.fs.isfile(root.path):
        return _listing(root, {root.path: root.fs.info(root.path)})
    if root.fs.isdir(root.path):
        infos, base = root.fs.find(root.path, detail=True), root
    else:
        infos, base = root.fs.glob(root.path, detail=True), replace(root, path=above_wildcards(root.path))
    below_base = len(base.path)
    folders = {posixpath.dirname(path) for path in infos}
    infos = {
        path: info
        for path, info in infos.items()
        if not any(map(is_hidden, path[below_base:].split("/")))
        and (info["size"] or path.rstrip("/") not in folders)  # an empty object stands for a folder
    }
    return _listing(base, infos)


def _listing(root: Location, infos: dict[str, dict[str, Any]]) -> Listing:
    files = (path for path, info in infos.items() if info["type"] == "file" and _format(path))
    read = set(filter(is_utf8, files))  # job.json holds no other names
    found = [
        InputFile(uri=replace(root, path=path).uri, size=infos[path]["size"] or 0, mark=mark(infos[path]))
        for path in sorted(read)
    ]
    top = root.path.rstrip("/") + "/"
    left_out = [path.removeprefix(top) for path in sorted(infos.keys() - read)]
    return Listing(root=root, files=found, left_out=left_out)
