"""Lance datasets: how Lance opens what is at a place, and one version of a dataset as an input."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from raycase.errors import first_line, needs_package
from raycase.io import storage
from raycase.io.schema import Columns, check_columns
from raycase.io.source import ERRORS, InputFile, Source, Span, SpanRows, readable
from raycase.io.storage import BUCKETS, Location, fingerprint, locate

if TYPE_CHECKING:
    from lance import LanceDataset

TRYING_S = 60  # after which a request that failed is not made again
RETRIES = 10  # of a request: for some ten seconds; of a listing Lance itself makes six such requests
METADATA_KEY = "raycase"  # in the metadata of an index's schema
SPAN_ROWS = 4096


def import_lance() -> Any:
    """The package lance, without its log on standard error. Raises RequestError where it is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")
    with needs_package("pylance", "search"):
        import lance
    return lance


def lance_place(root: Location) -> dict[str, Any]:
    """How Lance finds what is kept at a place: the arguments `uri` and `storage_options` of its functions.

    In a URI of a store, unlike a local path, `#`, `?` and `%20` need encoding; credentials come from the environment.
    """
    if root.is_local:
        return {"uri": root.path}
    scheme, _, rest = root.uri.partition("://")
    bucket, slash, key = rest.partition("/")
    is_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    options = {
        **({"allow_http": "true"} if is_http else {}),
        "timeout": f"{1000 * storage.TIMEOUT:.0f}ms",
        "client_max_retries": str(RETRIES),
        "client_retry_timeout": str(TRYING_S),
    }
    return {"uri": f"{scheme.replace('abfs', 'az')}://{bucket}{slash}{quote(key)}", "storage_options": options}


def lance_reason(error: BaseException) -> str:
    """An error of Lance in one line, without its source files."""
    answer = re.search(r"<Message>(.*?)</Message>", str(error), re.DOTALL)  # of an object store
    reason = answer[1] if answer else re.sub(r", [^ ,]*\.rs:\d+:\d+", "", first_line(error))
    return reason.removeprefix("LanceError(IO): ").removeprefix("Invalid user input: ")


def is_index(dataset: LanceDataset) -> bool:
    """Whether a build of raycase wrote the dataset, finished or not."""
    return METADATA_KEY.encode() in (dataset.schema.metadata or {})


class Lance(Source):
    """A version of a Lance dataset: a span is some rows, whatever fragments they are in."""

    MARK = re.compile(r"lance version (\d+) [0-9a-f]{16}")  # a version, and its fragments

    @staticmethod
    def find(root: Location, others: Sequence[str]) -> InputFile | None:
        """The newest version of the dataset at a place with these other files, or None; what is open is forgotten."""
        _at_version.cache_clear()
        if not (root.is_local or root.uri.partition("://")[0] in BUCKETS):
            return None
        if not any(name.startswith("data/") and name.endswith(".lance") for name in others):
            return None
        try:
            dataset = import_lance().dataset(**lance_place(root))
            size = sum(file.file_size_bytes or 0 for part in dataset.get_fragments() for file in part.metadata.files)
            mark = _mark(dataset)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(lance_reason(error)) from error
        if is_index(dataset):
            raise ValueError("an index of `raycase index`; pass what it was made of")
        return InputFile(uri=root.uri, size=size, mark=mark)

    @property
    def schema(self) -> pa.Schema:
        return _at_version(self.file).schema

    def splits(self, columns: Columns, *, unit_rows: int, span_bytes: int, most_rows: float = inf) -> Iterator[Span]:
        check_columns(self.schema, columns, self.file.uri)
        rows, step = _at_version(self.file).count_rows(), max(unit_rows, SPAN_ROWS)
        for at in range(0, rows, step):
            count = min(step, rows - at)
            yield self.span(at, count, at, count, self.file.size * count // rows)

    def read(self, names: Sequence[str], span: Span | None = None) -> Iterator[SpanRows]:
        part = {"offset": span.at, "limit": span.length} if span else {}  # deleted rows count for no offset
        scanner = _at_version(self.file).scanner(columns=list(names), scan_in_order=True, **part)
        yield self.planned(scanner.to_table(), span)

    def reading(self) -> AbstractContextManager[Location]:
        expected = f"{self.file.mark.rpartition(' ')[0]} that can be read"
        return readable(self.location, expected, (*ERRORS, RuntimeError), lance_reason)


@lru_cache(maxsize=4)
def _at_version(file: InputFile) -> LanceDataset:
    """A dataset at the version of its mark, opened once in a process."""
    version = Lance.MARK.fullmatch(file.mark)
    assert version
    dataset = import_lance().dataset(version=int(version[1]), **lance_place(locate(file.uri)))
    if _mark(dataset) != file.mark:
        raise ValueError(f"another dataset's version {version[1]} than the one that was listed")
    return dataset


def _mark(dataset: LanceDataset) -> str:
    """By the names of the files that hold its rows, which Lance draws at random and never writes again."""
    parts = [
        [part.fragment_id, [file.path for file in part.metadata.files], part.metadata.num_deletions]
        for part in dataset.get_fragments()
    ]
    return f"lance version {dataset.version} {fingerprint(parts)[:16]}"
