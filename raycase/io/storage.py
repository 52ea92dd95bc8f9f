"""Files and folders of any store that fsspec knows, by URI or path: atomic writes, listings, fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from raycase.errors import RequestError, expecting, first_line
from raycase.io.json_values import finite, loads

PACKAGE = "package:raycase/"  # files that ship with raycase, wherever it is installed
S3 = ("s3", "s3a")
BUCKETS = (*S3, "gs", "gcs", "az", "abfs", "abfss")
TIMEOUT = float(os.environ.get("RAYCASE_S3_TIMEOUT", "30"))  # seconds without an answer of a store
SHOWN_LATE = (0.1, 0.4, 1.5, 0)  # seconds after which a store is asked again for what it lists late
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # the temporary names of `put`


@dataclass(frozen=True)
class Location:
    """A file or folder on a file system."""

    fs: AbstractFileSystem
    path: str

    @property
    def uri(self) -> str:
        """With its scheme and without credentials, for messages and manifests."""
        return self.path if self.is_local else self.fs.unstrip_protocol(self.path)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def __truediv__(self, name: str) -> Location:
        return Location(self.fs, posixpath.join(self.path, name))

    def exists(self) -> bool:
        return bool(self.fs.exists(self.path))

    def why(self, error: BaseException) -> str:
        """An error of this store in one line. Stores explain a refused LIST but no refused HEAD, so list it."""
        if first_line(error).endswith(("Forbidden", "Bad Request", "Unauthorized")):
            try:
                next(self.entries(), None)
            except OSError as explained:
                error = explained
        return first_line(error)

    def read(self, start: int | None = None, end: int | None = None) -> bytes:
        """The file, or its bytes [start, end)."""
        return bytes(self.fs.cat_file(self.path, start=start, end=end))

    def open(self) -> Any:
        return self.fs.open(self.path, "rb")

    def put(self, data: bytes) -> None:
        """Write the whole file or nothing: one PUT on object stores; a temporary file, fsync and a rename locally."""
        if not self.is_local:
            self.fs.pipe_file(self.path, data)
            return
        folder = Path(self.path).parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self.name}.{uuid.uuid4().hex}"
        try:
            with temporary.open("wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def put_json(self, value: Any) -> None:
        """Null for what is not `finite`. Raises UnicodeEncodeError for a string that UTF-8 cannot encode."""
        self.put((json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def read_json(self) -> Any:
        """Raises RequestError where the file is not JSON."""
        with expecting(f"{self.uri}: expected JSON", ValueError):
            return loads(self.read())

    def list(self) -> dict[str, int]:
        """Name -> size of the files directly in a folder; empty where it does not exist. Never from a cache."""
        return dict(self.entries())

    def entries(self) -> Iterator[tuple[str, int]]:
        """The entries of `list` one by one; on disk, only a page of them is in memory."""
        try:
            if self.is_local:
                with os.scandir(self.path) as found:
                    yield from ((e.name, e.stat().st_size) for e in found if e.is_file() and e.name[0] != ".")
                return
            self.fs.invalidate_cache(self.path)
            infos = [i for i in self.fs.ls(self.path, detail=True) if i["type"] == "file" and i["name"] != self.path]
        except FileNotFoundError:
            return
        named = ((posixpath.basename(info["name"]), info["size"]) for info in infos)
        yield from ((name, size) for name, size in named if name and name[0] != ".")

    def half_written(self) -> Iterator[Location]:
        """Temporary files of writers killed during a `put` into this local folder; object stores have none."""
        if self.is_local and os.path.isdir(self.path):
            yield from (self / name for name in os.listdir(self.path) if _TEMPORARY.fullmatch(name))

    def remove(self) -> None:
        """Remove the file, or the folder with everything in it, if it exists. Raises OSError where something stays."""
        self.fs.invalidate_cache(self.path)
        if not self.exists():
            return
        if self.is_local or not has_magic(self.path):
            self.fs.rm(self.path, recursive=True)
        else:  # which `rm` would take for a glob
            for name in self.fs.find(self.path):
                self.fs.rm_file(name)
        for wait in SHOWN_LATE:
            if self.is_local or not self.exists():
                return
            time.sleep(wait)
        # S3 answers that all is well and lists what it refused to delete
        raise OSError(f"{self.uri}: expected everything in it removed, got files that stay")


def locate(uri: str) -> Location:
    """The location of a URI or path. Raises RequestError for an unknown scheme, a missing driver, and credentials."""
    if not uri.strip():  # not the current folder
        raise RequestError(f"expected a path or a URI, got {uri!r}")
    if uri.startswith(PACKAGE):
        uri = str(Path(__file__).parent.parent / uri.removeprefix(PACKAGE))
    if any(_has_credentials(*link.split("://", 1)) for link in uri.split("::") if "://" in link):
        raise RequestError(
            f"{uri.partition('://')[0]}://...: expected a URI without credentials, got some in it; they would be "
            "kept in job.json: give them by environment, profile or role"
        )
    if "://" not in uri:
        path = os.path.abspath(Path(uri).expanduser())  # without "..", so that a folder has one name
        return Location(LocalFileSystem(), path.rstrip("/"))
    scheme, _, rest = uri.partition("://")
    if not rest.strip("/") or (scheme in BUCKETS and rest.startswith("/")):
        raise RequestError(f"{uri}: expected a bucket or a path in it, got none")
    if scheme in S3:
        from raycase.io.s3 import file_system  # half a second, which work on local files need not wait for

        return Location(file_system(TIMEOUT), rest.rstrip("/"))
    with expecting(f"{uri}: expected a local path or a URI that fsspec knows", ValueError, ImportError):
        fs, path = fsspec.core.url_to_fs(uri, **({"use_listings_cache": False} if scheme in BUCKETS else {}))
    return Location(fs, path.rstrip("/"))


def _has_credentials(scheme: str, rest: str) -> bool:
    """Whether a URI has what may be a user, a key, a secret with whatever signs, or the query of a web address."""
    host, _, path = rest.partition("/")
    user, _, host = host.rpartition("@")
    return bool(user) or (":" in host and "@" in path) or (scheme in ("http", "https") and "?" in rest)


def json_file(uri: str, flag: str) -> Any:
    """What a JSON file holds that a flag names. Raises RequestError."""
    source = locate(uri)
    with expecting(f"{flag}: expected a JSON file", OSError, why=source.why):
        return source.read_json()


def mark(info: Mapping[str, Any]) -> str:
    """A mark that changes with a file's content, from a listing: ETag, the Hub's name of it, or modification time."""
    keys = ("ETag", "etag", "md5Hash", "blob_id", "xet_hash", "mtime", "LastModified", "last_modified", "created")
    return str(next((info[k] for k in keys if info.get(k)), ""))


def sha256_of_file(path: Path) -> str:
    """sha256 of a file in hex, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """sha256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
