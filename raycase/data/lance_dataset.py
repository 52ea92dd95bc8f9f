"""Lance datasets: how Lance opens what is at a place, and one version of a dataset as an input."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from raycase.data import storage
from raycase.data.storage import BUCKETS, Location, fingerprint, locate
from raycase.errors import RequestError, first_line, lacks_package

if TYPE_CHECKING:
    from lance import LanceDataset

TRYING_S = 60  # after which a request that failed is not made again
RETRIES = 10  # of a request: for some ten seconds; of a listing Lance itself makes six such requests
METADATA_KEY = "raycase"  # in the metadata of an index's schema
VERSION = re.compile(r"lance version (\d+) [0-9a-f]{16}")  # the mark of a dataset: its version, and its fragments
SPAN_ROWS = 4096


@cache
def _lance_process() -> int:
    """The process in which Lance was first used; a forked child remembers its parent's."""
    return os.getpid()


def import_lance() -> Any:
    """The package lance, without its warnings on standard error. Raises RequestError where it is not installed, and in
    a process that was forked after it was used: its threads are not there, and it would wait for them without end."""
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        import lance
    except ImportError as error:
        raise lacks_package("pylance", "search") from error
    if _lance_process() != os.getpid():
        raise RequestError(
            "expected a process of its own for an index, got one that was forked after its parent had used Lance; "
            "start it by multiprocessing's 'spawn'"
        )
    return lance


def storage_options(root: Location) -> dict[str, str] | None:
    """Options of Lance's own object store, which reads credentials from the usual environment variables."""
    if root.is_local:
        return None
    plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {
        **({"allow_http": "true"} if plain_http else {}),
        "timeout": f"{1000 * storage.TIMEOUT:.0f}ms",
        "client_max_retries": str(RETRIES),
        "client_retry_timeout": str(TRYING_S),
    }


def lance_uri(root: Location) -> str:
    """The URI by which Lance finds what is kept at this place: of an object store it takes an encoded one, without
    which `#` and `?` end a key and `%20` is a blank; a local path it encodes itself."""
    if root.is_local:
        return root.path
    scheme, _, rest = root.uri.partition("://")
    bucket, slash, key = rest.partition("/")
    return f"{scheme.replace('abfs', 'az')}://{bucket}{slash}{quote(key)}"


def lance_reason(error: BaseException) -> str:
    """An error of Lance in one line, without its source files."""
    answer = re.search(r"<Message>(.*?)</Message>", str(error), re.DOTALL)  # of an object store
    reason = answer[1] if answer else re.sub(r", [^ ,]*\.rs:\d+:\d+", "", first_line(error))
    return reason.removeprefix("LanceError(IO): ").removeprefix("Invalid user input: ")


def is_index(dataset: LanceDataset) -> bool:
    """Whether a build of raycase wrote the dataset, finished or not."""
    return METADATA_KEY.encode() in (dataset.schema.metadata or {})


# --------------------------------------------------------------------------------------------------------- as input


def is_dataset(root: Location, others: list[str]) -> bool:
    """Whether these paths, which are no files of an input, are those of a Lance dataset that is here or in an object
    store."""
    if not (root.is_local or root.uri.partition("://")[0] in BUCKETS):
        return False
    files = any(path.startswith(f"{root.path}/data/") and path.endswith(".lance") for path in others)
    return files and any(name.endswith(".manifest") for name, _ in (root / "_versions").entries())


def newest_version(root: Location) -> tuple[int, str]:
    """The bytes of the newest version of a dataset, and its mark. Raises ValueError for an index of raycase, and errors
    of Lance."""
    dataset = import_lance().dataset(lance_uri(root), storage_options=storage_options(root))
    if is_index(dataset):
        raise ValueError("an index of `raycase index`; pass what it was made of")
    size = sum(file.file_size_bytes or 0 for part in dataset.get_fragments() for file in part.metadata.files)
    return size, _mark(dataset)


@lru_cache(maxsize=4)
def at_version(uri: str, mark: str) -> LanceDataset:
    """`open_version`, once in a process."""
    return open_version(uri, mark)


def open_version(uri: str, mark: str) -> LanceDataset:
    """A dataset at the version of a mark. Raises ValueError where this version is gone or another, and errors of
    Lance."""
    root, version = locate(uri), VERSION.fullmatch(mark)
    assert version
    number = int(version[1])
    dataset = import_lance().dataset(lance_uri(root), version=number, storage_options=storage_options(root))
    if _mark(dataset) != mark:
        raise ValueError(f"another dataset's version {number} than the one that was listed")
    return dataset


def _mark(dataset: LanceDataset) -> str:
    """By the names of the files that hold its rows, which Lance draws at random and never writes again."""
    parts = [
        [part.fragment_id, [file.path for file in part.metadata.files], part.metadata.num_deletions]
        for part in dataset.get_fragments()
    ]
    return f"lance version {dataset.version} {fingerprint(parts)[:16]}"
