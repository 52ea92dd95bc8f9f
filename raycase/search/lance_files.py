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

from raycase.data.storage import Location
from raycase.errors import RequestError, WorkError, first_line

if TYPE_CHECKING:
    from lance import LanceDataset

READY = "ready"
META = "raycase"  # key in the schema's metadata
VECTOR, PLAIN = "vector", "plain"  # columns of unit vectors: conditional and unconditional; a row has one of the two
QUERY, ASKED, RANK, SCORE = "query", "asked", "rank", "score"  # columns of an answer
EXACT_BELOW = 100_000
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
    kind: str = "auto"  # as it was asked for: auto, exact, ivf-pq or hnsw
    exact_below: int = EXACT_BELOW  # rows of a condition; of auto, fewer are searched exactly

    @property
    def choices(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction, which an encoder outside of the table does not know by itself; a fine-tuned
        one does."""
        if self.model["system"] != "case":
            return {}
        encoder = self.model["encoder"]
        return {"prompt": encoder["prompt"], "pooling": encoder["pooling"][0], "subtract": self.model["subtract"]}

    @property
    def rows(self) -> int:
        return sum(self.conditions.values()) + self.plain

    def largest(self, column: str) -> int:
        """Rows under the condition that has most; of the plain vectors all."""
        return self.plain if column == PLAIN else max(self.conditions.values(), default=0)

    def is_approximate(self, rows: int) -> bool:
        """How a condition with so many rows is searched."""
        return self.kind in ("ivf-pq", "hnsw") or (self.kind == "auto" and rows >= self.exact_below)

    @property
    def trained(self) -> str:
        """The kind of approximate index, where there is one."""
        return "ivf-pq" if self.kind == "ivf-pq" else "hnsw"

    @property
    def how(self) -> str:
        """For people: how the largest condition is searched."""
        return self.trained if self.is_approximate(max(map(self.largest, (VECTOR, PLAIN)))) else "exact"


def is_ours(dataset: LanceDataset) -> bool:
    """Whether a build of ours wrote it, finished or not."""
    return META.encode() in (dataset.schema.metadata or {})


def options(root: Location) -> dict[str, str] | None:
    """Of Lance's own object store, which takes credentials from the environment as others do."""
    plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"allow_http": "true"} if root.is_s3 and plain_http else None


def open_ready(root: Location) -> tuple[LanceDataset, Meta] | None:
    """The version that counts; None where there is no index, or none was finished yet. Raises RequestError."""
    dataset = open_any(root)
    if dataset is None or READY not in dataset.tags.list():
        return None
    dataset = dataset.checkout_version(READY)
    if not is_ours(dataset):
        raise RequestError(f"--index: expected an index of jobs/index.py at {root.uri}, got another Lance dataset")
    return dataset, Meta(**json.loads(dataset.schema.metadata[META.encode()]))


def open_any(root: Location) -> LanceDataset | None:
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
    """Write down what the index is, then let its newest version be the one that counts.

    What was replaced before the last time is removed; who has the former version open reads on. Raises WorkError where
    the rows are not those that were counted.
    """
    dataset.update_schema_metadata({META: json.dumps(asdict(meta))})
    if dataset.count_rows() != meta.rows:
        found = dataset.count_rows()
        raise WorkError(f"{dataset.uri}: expected {meta.rows} rows, got {found}: another build is at work; build again")
    former = dataset.tags.list().get(READY)
    set_tag = dataset.tags.update if former else dataset.tags.create
    set_tag(READY, dataset.version)
    if former:
        old = [v["version"] for v in dataset.versions() if v["version"] < former["version"]]
        if old:
            dataset.cleanup_old_versions(versions=old)


def import_lance() -> Any:
    """Lance, whose warnings on standard error are for its own callers. Raises RequestError where it is not there."""
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        import lance
    except ImportError as error:
        raise RequestError(
            "expected the package pylance for an index, got none; install it with: pip install 'raycase[search]'"
        ) from error
    return lance


def literal(value: str | int | None, operator: str = "") -> str:
    """A value as a filter has it; with the operator `=`, the comparison with it, for null is never equal to null."""
    if value is None:
        return "IS NULL"
    quoted = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return f"{operator} {quoted}".strip()


@contextmanager
def said(root: Location) -> Iterator[None]:
    """What Lance says, in one line and without its source files: as a RequestError of a place or a filter that does
    not fit, as a WorkError of a store that fails."""
    try:
        yield
    except (RequestError, WorkError):
        raise
    except (ValueError, OSError) as error:
        answer = re.search(r"<Message>(.*?)</Message>", str(error), re.DOTALL)  # of an object store
        words = answer[1] if answer else re.sub(r", [^ ,]*\.rs:\d+:\d+", "", first_line(error))
        words = words.removeprefix("LanceError(IO): ").removeprefix("Invalid user input: ")
        fits = isinstance(error, ValueError) or _REFUSED.search(str(error))
        kind = RequestError if fits else WorkError
        raise kind(f"{root.uri}: expected an index that Lance can read and write, got: {words}") from error


_REFUSED = re.compile(r"denied|forbidden|not permitted|read-only|No ?Such ?Bucket|not found", re.IGNORECASE)
