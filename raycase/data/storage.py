"""URIs, the atomic put, listings in pages, fingerprints.

Everything here works on any fsspec file system; paths are URIs (`s3://bucket/out`, `file:///data/out`, `/data/out`).
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import fsspec
from botocore.exceptions import BotoCoreError, ClientError
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from raycase.errors import RequestError, first_line

STORE_ERRORS = (OSError, BotoCoreError, ClientError)  # s3fs makes most of botocore's errors OSErrors, not all
PACKAGE = "package:raycase/"  # files that ship with raycase, wherever it is installed
# A cached listing would hide what other processes wrote. s3fs itself retries SlowDown only; botocore's standard mode
# retries 5xx, throttling, timeouts and broken connections with backoff, for about a minute.
PAGE = 1000  # names in a page of a listing, the most that S3 gives
S3_TIMEOUT = float(os.environ.get("RAYCASE_S3_TIMEOUT", "30"))  # seconds without an answer
S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    "config_kwargs": {
        "retries": {"mode": "standard", "max_attempts": 10},
        "connect_timeout": min(10.0, S3_TIMEOUT),
        "read_timeout": S3_TIMEOUT,
    },
}


@dataclass(frozen=True)
class Location:
    """A file or folder on a file system."""

    fs: AbstractFileSystem
    path: str

    @property
    def uri(self) -> str:
        """For people and manifests: with its scheme, without credentials."""
        return self.path if self.is_local else self.fs.unstrip_protocol(self.path)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_s3(self) -> bool:
        return "s3" in self.fs.protocol  # its module takes a second to import, which others need not wait for

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def __truediv__(self, name: str) -> Location:
        return Location(self.fs, posixpath.join(self.path, name))

    def exists(self) -> bool:
        return bool(self.fs.exists(self.path))

    def why(self, error: BaseException) -> str:
        """What the store says of an error met here, in one line; a HEAD is answered without words, a LIST with them."""
        if self.is_s3 and first_line(error).endswith(("Forbidden", "Bad Request")):
            try:
                next(self._entries(), None)
            except STORE_ERRORS as fuller:
                error = fuller
        return first_line(error)

    def read(self) -> bytes:
        return bytes(self.fs.cat_file(self.path))

    def put(self, data: bytes) -> None:
        """Write the whole file or nothing: one PUT on object stores, a temporary name and a rename locally."""
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
        self.put((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self) -> Any:
        """Raises RequestError where the file is no JSON."""
        try:
            return json.loads(self.read())
        except ValueError as error:
            raise RequestError(f"{self.uri}: expected JSON, got: {error}") from error

    def list(self) -> dict[str, int]:
        """Name -> size of the files directly inside; empty where the folder is not there. Never from a cache."""
        return dict(self.entries())

    def entries(self) -> Iterator[tuple[str, int]]:
        """What `list` gives, one by one: of a folder with millions of files on S3 or on disk a page is held."""
        try:
            for name, size in self._entries():
                if name and not name.startswith("."):
                    yield name, size
        except FileNotFoundError:
            return

    def _entries(self) -> Iterator[tuple[str, int]]:
        if self.is_local:
            with os.scandir(self.path) as found:
                yield from ((e.name, e.stat().st_size) for e in found if e.is_file())
        elif self.is_s3:
            bucket, key, _ = self.fs.split_path(self.path)
            asked: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/"}
            asked["MaxKeys"] = PAGE
            while True:
                page = self._page(asked)
                yield from ((posixpath.basename(key), size) for key, size in page[_ENTRIES])
                if not page.get("IsTruncated"):
                    return
                asked["ContinuationToken"] = page["NextContinuationToken"]
        else:
            self.fs.invalidate_cache(self.path)
            found = self.fs.ls(self.path, detail=True)
            yield from ((posixpath.basename(e["name"]), e["size"]) for e in found if e["type"] == "file")

    def _page(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One page of a listing on S3, with its entries taken out of it."""
        events = self.fs.s3.meta.events
        events.register("before-parse.s3.ListObjectsV2", _take_entries)
        try:
            return dict(self.fs.call_s3("list_objects_v2", **asked))
        finally:
            events.unregister("before-parse.s3.ListObjectsV2", _take_entries)

    def half_written(self) -> Iterator[Location]:
        """What writers that were killed in the middle of a `put` left in a local folder; object stores keep no such."""
        if self.is_local and os.path.isdir(self.path):
            yield from (self / name for name in os.listdir(self.path) if _TEMPORARY.fullmatch(name))

    def remove(self) -> None:
        """Remove the file or the folder with all that is in it; nothing where it is not there."""
        self.fs.invalidate_cache(self.path)
        if self.fs.exists(self.path):
            self.fs.rm(self.path, recursive=True)


_ENTRIES = "raycase.entries"
_ENTRY = re.compile(rb"<Contents>(.*?)</Contents>", re.DOTALL)
_KEY, _SIZE = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL), re.compile(rb"<Size>(\d+)</Size>")


def _take_entries(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Take keys and sizes out of a page of a listing before botocore parses it, which takes 170 ms a page."""
    body: bytes = response_dict["body"]
    if response_dict["status_code"] == 200:
        found = [(_KEY.search(entry), _SIZE.search(entry)) for entry in _ENTRY.findall(body)]
        decode = unquote_plus if b"<EncodingType>url<" in body else str
        entries = [(decode(html.unescape(key[1].decode())), int(size[1])) for key, size in found if key and size]
        customized_response_dict.setdefault(_ENTRIES, entries)  # where two threads list at once, this runs twice
        response_dict["body"] = _ENTRY.sub(b"", body)


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # as `put` names them


def locate(uri: str) -> Location:
    """Find the file system of a URI. Raises RequestError for an unknown scheme, a missing driver, credentials in it."""
    if uri.startswith(PACKAGE):
        uri = str(Path(__file__).parent.parent / uri.removeprefix(PACKAGE))
    options = S3_OPTIONS if uri.startswith(("s3://", "s3a://")) else {}
    if re.search(r"://[^/@]*:[^/@]*@", uri) or re.search(r"^https?://.*\?", uri):
        raise RequestError(
            f"{without_credentials(uri)}: expected a URI without credentials, got some in it; they would be kept in "
            "job.json: give them by environment, profile or role"
        )
    if "://" not in uri:
        uri = os.path.abspath(Path(uri).expanduser())  # without "..": one folder has one name
    try:
        fs, path = fsspec.core.url_to_fs(uri, **options)
    except (ValueError, ImportError) as error:
        raise RequestError(
            f"{without_credentials(uri)}: expected a local path or a URI that fsspec knows; {error}"
        ) from error
    return Location(fs, path.rstrip("/"))


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Raise RequestError for a relative path (by its flag) in a submitted job: its folder is Ray's, and temporary."""
    for flag, uri in paths.items():
        relative = uri is not None and "://" not in uri and not uri.startswith((PACKAGE, "/", "~"))
        if relative and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
            raise RequestError(
                f"{flag}: expected an absolute path or a URI, got {uri!r}: "
                "a submitted job runs in a folder that Ray removes"
            )


def without_credentials(uri: str) -> str:
    """`scheme://user:password@host/path?token` -> `scheme://host/path`."""
    return re.sub(r"(?<=://)[^/@]*@", "", uri).split("?")[0] if "://" in uri else uri


def mark(info: Mapping[str, Any]) -> str:
    """What changes when a file's content does, from a file system's own words on it: ETag or modification time."""
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
    return str(next((info[k] for k in keys if info.get(k)), ""))


def sha256_of_file(path: Path) -> str:
    """In hex, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
