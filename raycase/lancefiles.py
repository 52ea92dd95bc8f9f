"""An index as it lies on disk or object storage: a Lance dataset whose tag `ready` names the version that counts.

Whoever builds writes new versions and moves the tag last; a build that is killed leaves the former index as it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from raycase.schema import RequestError, first_line
from raycase.storage import Place

if TYPE_CHECKING:
    from lance import LanceDataset

READY = "ready"
META = "raycase"  # key in the schema's metadata
VECTOR, PLAIN = "vector", "plain"  # columns of unit vectors: conditional and unconditional; a row has one of the two
QUERY, ASKED, RANK, SCORE = "query", "asked", "rank", "score"  # columns of an answer
OWN = (VECTOR, PLAIN, QUERY, ASKED, RANK, SCORE)


@dataclass(kw_only=True)
class Meta:
    """What an index says of itself."""

    model: dict[str, Any]  # as `SystemConfig.describe` has it: equal means the same vectors
    name: str  # of the model, where its output was made
    dtype: str
    conditions: dict[str, int] = field(default_factory=dict)  # rows under each
    plain: int = 0  # rows without condition
    covered: dict[str, list[list[int]]] = field(default_factory=dict)  # of each input file of each job: rows indexed
    kind: str = "exact"
    exact_below: int = 0  # rows of a condition; fewer are searched exactly whatever the kind

    @property
    def choices(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction, which an encoder outside of the table does not know by itself."""
        encoder = self.model["encoder"]
        return {"prompt": encoder["prompt"], "pooling": encoder["pooling"][0], "subtract": self.model["subtract"]}

    @property
    def rows(self) -> int:
        return sum(self.conditions.values()) + self.plain


def options(root: Place) -> dict[str, str] | None:
    """Of Lance's own object store, which takes credentials from the environment as others do."""
    plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"allow_http": "true"} if root.is_s3 and plain_http else None


def open_ready(root: Place) -> tuple[LanceDataset, Meta] | None:
    """The version that counts; None where there is no index, or none was finished yet. Raises RequestError."""
    dataset = open_any(root)
    if dataset is None or READY not in dataset.tags.list():
        return None
    dataset = dataset.checkout_version(READY)
    found = (dataset.schema.metadata or {}).get(META.encode())
    if found is None:
        raise RequestError(f"--index: wanted an index of jobs/index.py at {root.uri}, found another Lance dataset")
    return dataset, Meta(**json.loads(found))


def open_any(root: Place) -> LanceDataset | None:
    """The newest version, whether a build finished it or not; None where there is none. Raises RequestError."""
    lance = import_lance()
    with said(root):
        try:
            return lance.dataset(root.uri, storage_options=options(root))
        except ValueError as error:
            if "was not found" in str(error):
                return None
            raise


def publish(dataset: LanceDataset, meta: Meta) -> None:
    """Write down what the index is, then let its newest version be the one that counts."""
    dataset.update_schema_metadata({META: json.dumps(asdict(meta))})
    set_tag = dataset.tags.update if READY in dataset.tags.list() else dataset.tags.create
    set_tag(READY, dataset.version)


def import_lance() -> Any:
    """Lance, whose warnings on standard error are for its own callers. Raises RequestError where it is not there."""
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        import lance
    except ImportError as error:
        raise RequestError(
            "wanted the package pylance for an index, found none; install it with: pip install 'raycase[search]'"
        ) from error
    return lance


def literal(value: str | int | None, operator: str = "") -> str:
    """A value as a filter has it; with the operator `=`, the comparison with it, for null is never equal to null."""
    if value is None:
        return "IS NULL"
    quoted = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return f"{operator} {quoted}".strip()


@contextmanager
def said(root: Place) -> Iterator[None]:
    """What Lance says of a place or a filter, in one line and without its source files, as a RequestError."""
    try:
        yield
    except RequestError:
        raise
    except (ValueError, OSError) as error:
        answer = re.search(r"<Message>(.*?)</Message>", str(error), re.DOTALL)  # of an object store
        words = answer[1] if answer else re.sub(r", [^ ,]*\.rs:\d+:\d+", "", first_line(error))
        words = words.removeprefix("LanceError(IO): ").removeprefix("Invalid user input: ")
        raise RequestError(f"{root.uri}: wanted an index that Lance can read and write, found: {words}") from error
