"""Files and folders of any store: atomic writes, listings in pages, fingerprints.

Everything works on any fsspec file system; paths are URIs (`s3://bucket/out`, `file:///data/out`, `/data/out`).
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

STORE_ERRORS = (OSError, BotoCoreError, ClientError)  # s3fs turns most of botocore's errors into OSError, not all
PACKAGE = "package:raycase/"  # files that ship with raycase, wherever it is installed
PAGE = 1000  # names in a page of a listing, the most that S3 allows
S3_TIMEOUT = float(os.environ.get("RAYCASE_S3_TIMEOUT", "30"))  # seconds without an answer
# A cached listing would hide what other processes wrote. s3fs itself retries SlowDown only; botocore's standard mode
# retries 5xx, throttling, timeouts and broken connections with backoff, for about a minute.
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
        """With its scheme and without credentials, for messages and manifests."""
        return self.path if self.is_local else self.fs.unstrip_protocol(self.path)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_s3(self) -> bool:
        return "s3" in self.fs.protocol  # isinstance would import s3fs, which takes a second

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def __truediv__(self, name: str) -> Location:
        return Location(self.fs, posixpath.join(self.path, name))

    def exists(self) -> bool:
        return bool(self.fs.exists(self.path))

    def why(self, error: BaseException) -> str:
        """An error of this store in one line. S3 explains a refused LIST but no refused HEAD, so list it."""
        if self.is_s3 and first_line(error).endswith(("Forbidden", "Bad Request")):
            try:
                next(self._entries(), None)
            except STORE_ERRORS as explained:
                error = explained
        return first_line(error)

    def read(self) -> bytes:
        return bytes(self.fs.cat_file(self.path))

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
        self.put(json_bytes(value))

    def read_json(self) -> Any:
        """Raises RequestError where the file is not JSON."""
        try:
            return json.loads(self.read())
        except ValueError as error:
            raise RequestError(f"{self.uri}: expected JSON, got: {error}") from error

    def list(self) -> dict[str, int]:
        """Name -> size of the files directly in a folder; empty where it does not exist. Never from a cache."""
        return dict(self.entries())

    def entries(self, *, page: int = PAGE) -> Iterator[tuple[str, int]]:
        """The entries of `list` one by one; on S3 and on disk, only a page of them is in memory."""
        try:
            for name, size in self._entries(page):
                if name and not name.startswith("."):
                    yield name, size
        except FileNotFoundError:
            return

    def _entries(self, page: int = PAGE) -> Iterator[tuple[str, int]]:
        if self.is_local:
            with os.scandir(self.path) as entries:
                yield from ((e.name, e.stat().st_size) for e in entries if e.is_file())
        elif self.is_s3:
            bucket, key, _ = self.fs.split_path(self.path)
            query: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/"}
            query["MaxKeys"] = page
            while True:
                answer = self._s3_page(query)
                yield from ((posixpath.basename(key), size) for key, size in answer[_ENTRIES])
                if not answer.get("IsTruncated"):
                    return
                query["ContinuationToken"] = answer["NextContinuationToken"]
        else:
            self.fs.invalidate_cache(self.path)
            infos = self.fs.ls(self.path, detail=True)
            yield from ((posixpath.basename(info["name"]), info["size"]) for info in infos if info["type"] == "file")

    def _s3_page(self, query: dict[str, Any]) -> dict[str, Any]:
        """One page of a listing on S3, its entries parsed by `_take_entries`."""
        events = self.fs.s3.meta.events
        events.register("before-parse.s3.ListObjectsV2", _take_entries)
        try:
            return dict(self.fs.call_s3("list_objects_v2", **query))
        finally:
            events.unregister("before-parse.s3.ListObjectsV2", _take_entries)

    def half_written(self) -> Iterator[Location]:
        """Temporary files of writers killed during a `put` into this local folder; object stores have none."""
        if self.is_local and os.path.isdir(self.path):
            yield from (self / name for name in os.listdir(self.path) if _TEMPORARY.fullmatch(name))

    def remove(self) -> None:
        """Remove the file, or the folder with everything in it, if it exists."""
        self.fs.invalidate_cache(self.path)
        if self.fs.exists(self.path):
            self.fs.rm(self.path, recursive=True)


_ENTRIES = "raycase.entries"
_ENTRY = re.compile(rb"<Contents>(.*?)</Contents>", re.DOTALL)
_KEY, _SIZE = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL), re.compile(rb"<Size>(\d+)</Size>")


def _take_entries(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse keys and sizes of a page, and remove them before botocore parses the page, which would take 170 ms."""
    body: bytes = response_dict["body"]
    if response_dict["status_code"] == 200:
        matches = [(_KEY.search(entry), _SIZE.search(entry)) for entry in _ENTRY.findall(body)]
        decode = unquote_plus if b"<EncodingType>url<" in body else str
        entries = [(decode(html.unescape(key[1].decode())), int(size[1])) for key, size in matches if key and size]
        customized_response_dict.setdefault(_ENTRIES, entries)  # runs twice where two threads list at once
        response_dict["body"] = _ENTRY.sub(b"", body)


AZURE = ("abfs", "abfss", "az", "adl")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # the temporary names of `put`


def locate(uri: str) -> Location:
    """The location of a URI or path. Raises RequestError for an unknown scheme, a missing driver, and credentials."""
    if uri.startswith(PACKAGE):
        uri = str(Path(__file__).parent.parent / uri.removeprefix(PACKAGE))
    options = S3_OPTIONS if uri.startswith(("s3://", "s3a://")) else {}
    if any(_has_credentials(*link.split("://", 1)) for link in uri.split("::") if "://" in link):
        raise RequestError(
            f"{uri.partition('://')[0]}://...: expected a URI without credentials, got some in it; they would be "
            "kept in job.json: give them by environment, profile or role"
        )
    if "://" not in uri:
        uri = os.path.abspath(Path(uri).expanduser())  # without "..", so that a folder has one name
    try:
        fs, path = fsspec.core.url_to_fs(uri, **options)
    except (ValueError, ImportError) as error:
        raise RequestError(f"{uri}: expected a local path or a URI that fsspec knows; {error}") from error
    return Location(fs, path.rstrip("/"))


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Raise RequestError for a relative path (by its flag) in a job submitted to Ray, whose folder is temporary."""
    for flag, uri in paths.items():
        relative = uri is not None and "://" not in uri and not uri.startswith((PACKAGE, "/", "~"))
        if relative and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
            raise RequestError(
                f"{flag}: expected an absolute path or a URI, got {uri!r}: "
                "a submitted job runs in a folder that Ray removes"
            )


def _has_credentials(scheme: str, rest: str) -> bool:
    """Whether a URI has what may be a user, a key or a token: `user@`, `key:secret@` whatever signs the secret has, the
    query of a web address."""
    host, _, path = rest.partition("/")
    user, _, host = host.rpartition("@")
    if user and (scheme not in AZURE or ":" in user):  # there it is the container: abfs://container@account/
        return True
    return (":" in host and "@" in path) or (scheme in ("http", "https") and "?" in rest)


def json_bytes(value: Any) -> bytes:
    """A JSON file. Raises UnicodeEncodeError for a string that UTF-8 cannot encode."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def mark(info: Mapping[str, Any]) -> str:
    """A mark that changes with a file's content, from its entry in a listing: ETag or modification time."""
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
    return str(next((info[k] for k in keys if info.get(k)), ""))


def sha256_of_file(path: Path) -> str:
    """sha256 of a file in hex, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """sha256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
