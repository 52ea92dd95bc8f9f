"""URIs, the atomic put, the names of units, and the listing that is the checkpoint.

Everything here works on any fsspec file system; paths are URIs (`s3://bucket/out`, `file:///data/out`, `/data/out`).
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError, ClientError
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from raycase.schema import RequestError

STORE_ERRORS = (OSError, BotoCoreError, ClientError)  # s3fs makes most of botocore's errors OSErrors, not all
PACKAGE = "package:raycase/"  # files that ship with raycase, wherever it is installed
# A cached listing would hide what other processes wrote. s3fs itself retries SlowDown only; botocore's standard mode
# retries 5xx, throttling and broken connections with backoff.
S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    "config_kwargs": {"retries": {"mode": "standard", "max_attempts": 10}},
}


@dataclass(frozen=True)
class Place:
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
    def name(self) -> str:
        return posixpath.basename(self.path)

    def __truediv__(self, name: str) -> Place:
        return Place(self.fs, posixpath.join(self.path, name))

    def exists(self) -> bool:
        return bool(self.fs.exists(self.path))

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
            raise RequestError(f"{self.uri}: wanted JSON, found: {error}") from error

    def list(self) -> dict[str, int]:
        """Name -> size of the files directly inside; empty where the folder is not there. Never from a cache."""
        self.fs.invalidate_cache(self.path)
        try:
            entries = self.fs.ls(self.path, detail=True)
        except FileNotFoundError:
            return {}
        files = ((posixpath.basename(e["name"]), e["size"]) for e in entries if e["type"] == "file")
        return {name: size for name, size in files if name and not name.startswith(".")}

    def remove(self) -> None:
        """Remove the file or the folder with all that is in it; nothing where it is not there."""
        self.fs.invalidate_cache(self.path)
        if self.fs.exists(self.path):
            self.fs.rm(self.path, recursive=True)


def place(uri: str) -> Place:
    """Find the file system of a URI. Raises RequestError for an unknown scheme, a missing driver, credentials in it."""
    if uri.startswith(PACKAGE):
        uri = str(Path(__file__).parent / uri.removeprefix(PACKAGE))
    options = S3_OPTIONS if uri.startswith(("s3://", "s3a://")) else {}
    if re.search(r"://[^/@]*:[^/@]*@", uri) or re.search(r"^https?://.*\?", uri):
        raise RequestError(
            f"{without_credentials(uri)}: wanted a URI without credentials, found some in it; they would be kept in "
            "job.json: give them by environment, profile or role"
        )
    if "://" not in uri:
        uri = os.path.abspath(Path(uri).expanduser())  # without "..": one folder has one name
    try:
        fs, path = fsspec.core.url_to_fs(uri, **options)
    except (ValueError, ImportError) as error:
        raise RequestError(
            f"{without_credentials(uri)}: wanted a local path or a URI that fsspec knows; {error}"
        ) from error
    return Place(fs, path.rstrip("/"))


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Raise RequestError for a relative path (by its flag) in a submitted job: its folder is Ray's, and temporary."""
    for flag, uri in paths.items():
        relative = uri is not None and "://" not in uri and not uri.startswith((PACKAGE, "/", "~"))
        if relative and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
            raise RequestError(
                f"{flag}: wanted an absolute path or a URI, found {uri!r}: "
                "a submitted job runs in a folder that Ray removes"
            )


def without_credentials(uri: str) -> str:
    """`scheme://user:password@host/path?token` -> `scheme://host/path`."""
    return re.sub(r"(?<=://)[^/@]*@", "", uri).split("?")[0] if "://" in uri else uri


def sha256_of_file(path: Path) -> str:
    """In hex, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, order=True)
class UnitFile:
    """A finished unit: rows [start, start + rows) of an input file, all accounted for. Its name says so."""

    file: int
    start: int
    rows_out: int
    rows_rejected: int

    @property
    def rows(self) -> int:
        return self.rows_out + self.rows_rejected

    @property
    def end(self) -> int:
        return self.start + self.rows

    def name(self, print8: str) -> str:
        return f"{print8}-{self.file:05d}-{self.start:012d}-{self.rows_out}-{self.rows_rejected}.parquet"

    @staticmethod
    def parse(name: str) -> tuple[str, UnitFile] | None:
        """Fingerprint (8 hex digits) and unit of a file name; None for any other name."""
        found = _UNIT_NAME.fullmatch(name)
        return found and (found[1], UnitFile(*(int(g) for g in found.groups()[1:])))


_UNIT_NAME = re.compile(r"([0-9a-f]{8})-(\d{5,})-(\d{12,})-(\d+)-(\d+)\.parquet")


def units_in(names: Iterable[str], print8: str) -> list[UnitFile]:
    """Finished units of the job with this fingerprint, in the order of the input."""
    parsed = (UnitFile.parse(name) for name in names)
    return sorted(unit for p, unit in filter(None, parsed) if p == print8)


def without_overlap(units: Iterable[UnitFile]) -> list[UnitFile]:
    """Sorted units that share no row, the longest of those that begin together.

    Units overlap where a late writer of a stopped run finished a unit that was cut otherwise since (another limit).
    """
    kept: list[UnitFile] = []
    for unit in sorted(units, key=lambda u: (u.file, u.start, -u.rows)):
        if not kept or kept[-1].file != unit.file or unit.start >= kept[-1].end:
            kept.append(unit)
    return kept


def gaps(start: int, end: int, done: Iterable[UnitFile]) -> Iterator[tuple[int, int]]:
    """Parts of [start, end) that no unit of `done` (one file's, sorted) covers."""
    for unit in done:
        if unit.end <= start:
            continue
        if unit.start >= end:
            break
        if unit.start > start:
            yield start, unit.start
        start = max(start, unit.end)
    if start < end:
        yield start, end
