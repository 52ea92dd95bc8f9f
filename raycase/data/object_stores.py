"""Object stores (S3, Azure, Google Cloud) behind fsspec's interface: requests by obstore, which makes those that
failed again, for about a minute.

All errors are OSErrors of one line. A path is `bucket/key`.
"""

from __future__ import annotations

import html
import io
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from raycase.data.store_clients import Store, open_store
from raycase.errors import first_line

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")
AZURE = ("abfs", "abfss", "az", "adl")
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"} | {name: name for name in AZURE}  # as given -> as kept

PAGE = 1000  # names in a page of a listing
LISTERS, RANGE_PAGES = 8, 4  # parts of a listing at once, and about how many pages of it each has
SMALL_BYTES, WHOLE_BYTES, PART_BYTES = 4 * 2**20, 64 * 2**20, 16 * 2**20  # larger objects go up in parts
PATIENCE = 8  # for what is not small: the wait for an answer includes sending it
LAST = chr(0x10FFFF)  # behind all names
WAITS = [0.1 * 2**i for i in range(8)]  # seconds until a listing that broke off is asked for again


class ObjectStores(AbstractFileSystem):
    """The buckets of one kind of store, named by its scheme."""

    protocol = tuple(SCHEMES)
    cachable = False  # `file_system` keeps one for all threads

    def __init__(self, scheme: str) -> None:
        super().__init__(scheme, use_listings_cache=False)  # a cached listing would hide what other processes wrote
        self.scheme = scheme

    def unstrip_protocol(self, name: str) -> str:
        """The URI of a path."""
        return f"{self.scheme}://{self._strip_protocol(name)}"

    @contextmanager
    def _at(self, path: str, patience: int = 1) -> Iterator[tuple[Store, str]]:
        """The store of a path, and the key in it; raises OSErrors."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        try:
            yield open_store(self.scheme, bucket, patience), key
        except (BaseError, FileNotFoundError, ValueError) as error:
            answer = str(error)
            said = re.search(r'<Message>(.*?)</Message>|"message": *"(.*?)"', answer, re.DOTALL)
            line = html.unescape(said[1] or said[2]).strip().splitlines()[0] if said else first_line(error).rstrip(": ")
            if isinstance(error, FileNotFoundError) or "404 Not Found" in answer:
                raise FileNotFoundError(line if said else self.unstrip_protocol(path)) from error
            refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
            raise (PermissionError if refused else OSError)(line) from error

    # ---------------------------------------------------------------------------------------------------- listings

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What a listing says of a file or folder."""
        path = self._strip_protocol(path)
        try:
            with self._at(path) as (store, key):
                if key:
                    return _info(path, obstore.head(store, key))
        except FileNotFoundError:
            pass
        if next(self._below(path), None) is None:
            raise FileNotFoundError(self.unstrip_protocol(path))
        return {"name": path, "size": 0, "type": "directory"}

    def _kind(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is a file or folder. Like the two below it raises OSError where the store does not say."""
        return self._kind(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether it is a file."""
        return self._kind(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether there are files below it."""
        return self._kind(path) == "directory"

    def modified(self, path: str) -> datetime:
        """When a file was written."""
        modified: datetime = self.info(path)["LastModified"]
        return modified

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The files and folders directly in a folder."""
        path = self._strip_protocol(path)
        with self._at(path) as (store, key):
            found = _again(lambda: obstore.list_with_delimiter(store, key or None))
        bucket = path.partition("/")[0]
        infos = [_info(f"{bucket}/{meta['path']}", meta) for meta in found["objects"] if meta["path"] != key]
        infos += [{"name": f"{bucket}/{name}", "size": 0, "type": "directory"} for name in found["common_prefixes"]]
        infos = infos or [self.info(path)]
        if infos[0]["name"] == path and infos[0]["type"] == "directory":  # only its own marker is in it
            infos = []
        return infos if detail else [info["name"] for info in infos]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """All files below a folder, or the file itself: names, or name -> info."""
        path = self._strip_protocol(path)
        if withdirs or maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        infos = {info["name"]: info for info in self._below(path)}
        if not infos and self.isfile(path):
            infos = {path: self.info(path)}
        return infos if detail else sorted(infos)

    def _below(self, path: str) -> Iterator[dict[str, Any]]:
        bucket = path.partition("/")[0]
        with self._at(path) as (store, folder):
            for metas in _listed(store, folder):
                yield from (_info(f"{bucket}/{meta['path']}", meta) for meta in metas if meta["path"] != folder)

    def entries(self, path: str, cuts: Sequence[str] = (), *, page: int = PAGE) -> Iterator[tuple[str, int]]:
        """Name and size of the files directly in a folder; on S3 and Google Cloud only a page of them is in memory.

        Between `cuts`, names in order that need not exist, a long listing is made in parallel, a few parts at a time.
        """
        if self.scheme in AZURE:  # cannot begin a listing in the middle
            yield from ((posixpath.basename(info["name"]), info["size"]) for info in self.ls(path) if _is_file(info))
            return
        pages = self._pages(path, page)
        first = next(pages, [])
        yield from first
        ahead = [cut for cut in cuts if len(first) == page and cut > first[-1][0]]
        ahead = ahead[:: max(1, RANGE_PAGES * (len(cuts) - len(ahead)))]  # the first page passed the others
        if not ahead:
            yield from (entry for entries in pages for entry in entries)
            return

        def listed(part: tuple[str, str]) -> list[tuple[str, int]]:
            return [entry for entries in self._pages(path, page, *part) for entry in entries]

        parts = list(pairwise([first[-1][0], *ahead, ""]))
        with ThreadPoolExecutor(LISTERS) as pool:
            for i in range(0, len(parts), LISTERS):
                for entries in pool.map(listed, parts[i : i + LISTERS]):
                    yield from entries

    def _pages(self, path: str, size: int, after: str = "", until: str = "") -> Iterator[list[tuple[str, int]]]:
        """The entries with names in (after, until], in order, a page at a time. obstore lists either all below a
        folder in pages, or what is directly in it as a whole: so all below, beginning anew behind a deeper folder."""
        with self._at(path) as (store, folder):
            prefix = f"{folder}/" if folder else ""
            begin: str | None = after
            while begin is not None:
                start, begin = begin, None
                for metas in _listed(store, folder, prefix + start if start else None, size):
                    page, deeper = _page(metas, folder, start, until)
                    yield page
                    if deeper is not None:
                        begin = deeper or None
                        break

    # ------------------------------------------------------------------------------------------------------- bytes

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """A file, or its bytes [start, end)."""
        with self._at(path) as (store, key):
            if start is None and end is None:
                return obstore.get(store, key).bytes().to_bytes()
            start = start or 0
            if end is None:
                return obstore.get(store, key, options={"range": {"offset": start}}).bytes().to_bytes()
            return obstore.get_range(store, key, start=start, end=end).to_bytes() if end > start else b""

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Write a file to the local disk, a part at a time."""
        with self._at(rpath) as (store, key), Path(lpath).open("wb") as file:
            for part in obstore.get(store, key):
                file.write(part)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Put a whole file: one request, or a multipart upload for a large one."""
        with self._at(path, PATIENCE if len(value) > SMALL_BYTES else 1) as (store, key):
            in_parts = len(value) > WHOLE_BYTES
            put = partial(
                obstore.put, store, key, value, use_multipart=in_parts, chunk_size=PART_BYTES, max_concurrency=4
            )
            _again(put, _given_up)

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        """Put a file of the local disk."""
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def rm_file(self, path: str) -> None:
        """Delete one file."""
        with suppress(FileNotFoundError), self._at(path) as (store, key):
            _again(partial(obstore.delete, store, key), _not_connected)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete a file, and with `recursive` all files below it; nothing where there is none."""
        for one in [path] if isinstance(path, str) else path:
            below: Iterator[str] = (
                (info["name"].partition("/")[2] for info in self._below(one)) if recursive else iter(())
            )
            while keys := list(islice(below, PAGE)):
                try:
                    with self._at(one) as (store, _):
                        _again(partial(obstore.delete, store, keys), _not_connected)
                except FileNotFoundError:  # gone already, which Azure and Google Cloud refuse
                    bucket = self._strip_protocol(one).partition("/")[0]
                    for key in keys:
                        self.rm_file(f"{bucket}/{key}")
            self.rm_file(one)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            return _Upload(self, path)
        return _Opened(self, path, mode, **{"cache_type": "none"} | options)


class _Opened(AbstractBufferedFile):
    """A file that is read as it is asked for: each read is one request."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return data


class _Upload(io.BytesIO):
    """A file that is put when it is closed."""

    def __init__(self, fs: ObjectStores, path: str) -> None:
        super().__init__()
        self.fs, self.path = fs, path

    def close(self) -> None:
        if not self.closed:
            self.fs.pipe_file(self.path, self.getvalue())
        super().close()


def _page(metas: Sequence[ObjectMeta], folder: str, after: str, until: str) -> tuple[list[tuple[str, int]], str | None]:
    """The entries of a page that are directly in the folder, and where to list again: behind a deeper folder, at which
    the page ends; "" where `until` was passed, None where the page was read to its end."""
    prefix = f"{folder}/" if folder else ""
    page: list[tuple[str, int]] = []
    for meta in metas:
        below = meta["path"].removeprefix(prefix)
        if meta["path"] == folder or below <= after:  # its marker; what a store that knows no start gives
            continue
        name, _, deeper = below.partition("/")
        if until and name > until:
            return page, ""
        if deeper:
            return [entry for entry in page if entry != (name, 0)], f"{name}/{LAST}"  # without that folder's marker
        page.append((name, meta["size"]))
    return page, None


def _listed(store: Store, folder: str, offset: str | None = None, size: int = PAGE) -> Iterator[Sequence[ObjectMeta]]:
    """All files below a folder whose paths come after `offset`, in pages."""
    waits = list(WAITS)
    while True:
        try:
            for page in obstore.list(store, folder or None, offset=offset, chunk_size=size):
                yield page
                offset = page[-1]["path"]
            return
        except BaseError as error:
            if not (waits and _broke_off(error)):
                raise
            time.sleep(waits.pop(0))


def _again(ask: Callable[[], T], *failed: Callable[[Exception], bool]) -> T:
    """What a request gives, asked again where its answer breaks off, or it failed in another way."""
    for wait in WAITS:
        try:
            return ask()
        except (BaseError, FileNotFoundError) as error:
            if not any(of(error) for of in (_broke_off, *failed)):
                raise
            time.sleep(wait)
    return ask()


def _broke_off(error: Exception) -> bool:
    """Whether an answer began and did not end. obstore asks again for what follows of a file, but for no listing."""
    return "response body: " in first_line(error)


def _not_connected(error: Exception) -> bool:
    """Whether the connection failed. obstore does not ask again for a POST, which deletes on S3."""
    return "HTTP error: " in str(error)


def _given_up(error: Exception) -> bool:
    """Whether the answer that completes a multipart upload broke off: obstore then deletes what is no more."""
    return "NoSuchUpload" in str(error)


def _info(name: str, meta: Any) -> dict[str, Any]:
    return {
        "name": name,
        "size": meta["size"],
        "type": "file",
        "ETag": meta["e_tag"],
        "LastModified": meta["last_modified"],
    }


def _is_file(info: dict[str, Any]) -> bool:
    return bool(info["type"] == "file")


@cache
def file_system(scheme: str) -> ObjectStores:
    """The stores of a scheme, one object for all threads."""
    return ObjectStores(SCHEMES[scheme])
