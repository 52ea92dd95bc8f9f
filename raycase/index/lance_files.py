"""An index on disk or object storage: a Lance dataset whose tag `ready` names the version that is searched.

A build writes new versions and moves the tag last; a build that is killed leaves the former index unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, WorkError, expecting, visible
from raycase.index.options import APPROXIMATE, VectorIndexType
from raycase.io.json_values import from_json, loads
from raycase.io.lance_dataset import METADATA_KEY, import_lance, is_index, lance_place, lance_reason
from raycase.io.locks import put_over
from raycase.io.schema import CONDITION, RESERVED_COLUMNS
from raycase.io.storage import Location
from raycase.job.output import ModelFile

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import LanceScanner
    from torch import Tensor

READY = "ready"  # the tag of the version that is searched
READY_FILE = f"_refs/tags/{READY}.json"  # in which Lance keeps it
CUT = "cut"  # in `EmbedderConfig.describe()`: the dimension to which conditional vectors were cut

ON_DISK = {"unconditional": "plain", "with_tokens": "words", "vector_index": "kind"}  # on disk


@dataclass(kw_only=True)
class IndexMetadata:
    """The metadata of an index, stored as JSON in its schema."""

    model: dict[str, Any]  # `EmbedderConfig.describe()`; equal means equal vectors
    name: str  # the model's name when its vectors were written
    dtype: str
    conditions: dict[str, int] = field(default_factory=dict)  # rows under each condition
    text_column: str | None = None  # that was embedded, as the id column: of the input; "" where outputs differ
    id_column: str | None = None
    chunk: list[int] = field(default_factory=list)  # how texts were cut: tokens of a chunk, of its overlap; 1: late
    unconditional: int = 0  # rows without condition
    with_tokens: int = 0  # those of them that have stored tokens
    kept: list[str] = field(default_factory=list)  # conditions whose vectors were pooled from these
    taught: dict[str, str] = field(default_factory=dict)  # condition -> `Taught.to_text`
    sketches: dict[str, str] = field(default_factory=dict)  # hash of a basis -> of the centroids that sketched its rows
    covered: dict[str, list[list[int]]] = field(default_factory=dict)  # input file of a job -> ranges of rows indexed
    vector_index: VectorIndexType = "auto"
    exact_below: int = 100_000  # auto searches conditions with fewer rows exactly
    shards: int = 1  # parts that are searched by a process each, on a cluster

    def as_json(self) -> str:
        """The record in the schema."""
        record = asdict(self)
        if not self.taught:  # as before there were such
            del record["taught"]
        return json.dumps({ON_DISK.get(name, name): value for name, value in record.items()})

    @classmethod
    def of_json(cls, text: bytes) -> IndexMetadata:
        """Read what `as_json` wrote. Raises ValueError."""
        names = {old: new for new, old in ON_DISK.items()}
        return from_json(cls, {names.get(name, name): value for name, value in loads(text).items()})

    @property
    def rows(self) -> int:
        return sum(self.conditions.values()) + self.unconditional

    @property
    def settings(self) -> tuple[object, ...]:
        """What may change while the rows stay."""
        return self.vector_index, self.exact_below, {**self.taught}

    def lacks(self, condition: str | None) -> bool:
        """Whether no row has a vector under a condition: where there are stored tokens, they are pooled from these."""
        return condition is not None and condition not in self.conditions

    def rows_under(self, condition: str | None) -> int:
        """Rows that are stored under a condition; None: without condition."""
        return self.unconditional if condition is None else self.conditions.get(condition, 0)

    def is_approximate(self, rows: int) -> bool:
        """Whether a condition with so many rows is searched approximately: by codes, or pooled in two stages."""
        return self.vector_index in APPROXIMATE or (self.vector_index == "auto" and rows >= self.exact_below)

    @property
    def approximate_index(self) -> str:
        """How conditions are indexed that are searched approximately; auto has the first type."""
        return self.vector_index if self.vector_index in APPROXIMATE else next(iter(APPROXIMATE))


# ----------------------------------------------------------------------------------------------------------- versions


class Version(NamedTuple):
    """A version of an index: where it is, its rows, and what is recorded of them."""

    root: Location
    dataset: LanceDataset
    metadata: IndexMetadata


def open_ready(root: Location, version: int | str = READY) -> Version | None:
    """The finished version, or the one of a number that was; None where no build has finished."""
    dataset = open_newest(root)
    if dataset is None:
        return None
    with lance_errors(root):
        if version == READY and READY not in dataset.tags.list():
            return None
        dataset = dataset.checkout_version(version)
    expected = f"--index: expected an index of `raycase index` at {root.uri}"
    if not is_index(dataset):
        raise RequestError(f"{expected}, got another Lance dataset")
    advice = "; if an earlier version wrote it, embed and index again with --overwrite"
    with expecting(expected, ValueError, advice=advice):
        metadata = IndexMetadata.of_json(dataset.schema.metadata[METADATA_KEY.encode()])
        from_json(ModelFile, metadata.model)
        return Version(root, dataset, metadata)


def open_newest(root: Location) -> LanceDataset | None:
    """The newest version, finished or not; None where there is no dataset."""
    lance = import_lance()
    with lance_errors(root):
        try:
            return lance.dataset(**lance_place(root))
        except ValueError as error:
            if "was not found" in str(error):
                return None
            raise


def write_batches(
    root: Location, dataset: LanceDataset | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows_a_file: int
) -> LanceDataset:
    """Append rows to a dataset, or begin one (None), in a new version; raise what the batches raise."""
    mode = "append" if dataset is not None else "create" if open_newest(root) is None else "overwrite"
    failures: list[Exception] = []

    def remembered() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except (RequestError, WorkError) as error:
            failures.append(error)
            raise

    try:
        return import_lance().write_dataset(
            pa.RecordBatchReader.from_batches(schema, remembered()),
            mode=mode,
            max_rows_per_file=rows_a_file,
            **lance_place(root) | ({} if dataset is None else {"uri": dataset}),
        )
    except Exception as error:
        raise failures[0] if failures else error from None  # Lance wraps them, with their traceback


def publish(root: Location, dataset: LanceDataset, metadata: IndexMetadata, former: str | None) -> None:
    """Store the metadata and tag the newest version as the one that is searched, if the tag still has the former mark.

    The former version stays until the next build, for processes that have it open; older ones are removed.
    """
    dataset.update_schema_metadata({METADATA_KEY: metadata.as_json()})
    rows, tagged = dataset.count_rows(), dataset.tags.list().get(READY)
    manifest = root / "_versions" / f"{2**64 - 1 - dataset.version:020}.manifest"
    tag = {"branch": None, "version": dataset.version, "manifestSize": manifest.fs.size(manifest.path)}
    if rows != metadata.rows or not put_over(root / READY_FILE, json.dumps(tag).encode(), former):
        raise other_build(root)
    old = [v["version"] for v in dataset.versions() if tagged and v["version"] < tagged["version"]]
    if old:
        dataset.cleanup_old_versions(versions=old)


def other_build(root: Location) -> WorkError:
    """The error of a build that another one has come before."""
    return WorkError(f"{root.uri}: another build is at work; build again when it has ended")


def sql_literal(value: str | int) -> str:
    """A value in a filter."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def sql_equals(column: str, value: str | int | None) -> str:
    """The filter for rows with this value; None is null."""
    return f"{column} IS NULL" if value is None else f"{column} = {sql_literal(value)}"


def sql_in(column: str, values: Iterable[str | int]) -> str:
    """The filter for rows with one of these values."""
    return f"{column} IN ({', '.join(map(sql_literal, values)) or 'NULL'})"


def sql_and(*filters: str | None) -> str:
    """The filter for rows that pass all of these; None is passed by each."""
    return " AND ".join(filter(None, filters))


@contextmanager
def lance_errors(root: Location) -> Iterator[None]:
    """Raise errors of Lance in one line: RequestError for a wrong path or filter, WorkError for a store that fails."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        is_ours = isinstance(error, (RequestError, WorkError))
        if is_ours or (isinstance(error, RuntimeError) and "LanceError" not in str(error)):
            raise
        if _OF_OTHER_BUILD.search(str(error)):
            raise other_build(root) from error
        reason = lance_reason(error)
        if "applying filter" in str(error):  # as where a time is out of range
            got = visible(reason.rpartition(" error: ")[2], MOST_LABEL)
            raise RequestError(f"where: expected a filter, true or false for each row, got {got}") from error
        lost = re.search(r"not found", str(error), re.IGNORECASE) and _OF_A_VERSION.search(str(error))
        is_request = not lost and (isinstance(error, ValueError) or _REFUSED.search(str(error)))
        advice = "; run the same command again" if not is_request and _OF_A_STORE.search(reason) else ""
        raised = RequestError if is_request else WorkError
        raise raised(f"{root.uri}: expected an index that Lance can read and write, got: {reason}{advice}") from error


_OF_A_VERSION = re.compile(r"/(data|_deletions|_indices|_transactions|_versions)/")  # a file that was there
_OF_OTHER_BUILD = re.compile(
    "^(Incompatible transaction|Retryable commit|Commit conflict|Dataset already exists)|write contention"
)
_OF_A_STORE = re.compile(r"^Generic \w+ error")
_REFUSED = re.compile(r"denied|forbidden|not permitted|read-only|No ?Such ?Bucket|not found", re.IGNORECASE)


# ---------------------------------------------------------------------------------------------------- rows as arrays

OFFSET = "_rowoffset"  # Lance's name for the position of a row in the dataset


def returned_columns(dataset: LanceDataset) -> list[str]:
    """Id and the kept columns."""
    return [name for name in dataset.schema.names if name not in (CONDITION, *RESERVED_COLUMNS)]


def scan(dataset: LanceDataset, fragments: Sequence[int] | None, **options: Any) -> LanceScanner:
    """Scan the rows of some fragments, or of all (None); offsets are those in the dataset."""
    if fragments is None:
        return dataset.scanner(**options)
    assert fragments, "Lance would scan all of them"
    chosen = [one for one in dataset.get_fragments() if one.fragment_id in set(fragments)]
    return dataset.scanner(fragments=chosen, **options)


def condition_counts(rows: pa.Table | pa.RecordBatch) -> Counter[str | None]:
    """How many of the rows are under each condition; None: without."""
    return Counter({each["values"]: each["counts"] for each in rows[CONDITION].value_counts().to_pylist()})


def offsets_of(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """The offsets of rows in the dataset: (N,) int64."""
    return table[OFFSET].to_numpy().astype(np.int64)


def vectors_of(column: pa.ChunkedArray | pa.Array) -> Tensor:
    """A column of vectors, of length 1 though they were rounded: (N, D) float32."""
    import torch  # takes seconds, and building an index needs none

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.flatten().to_numpy(zero_copy_only=False).copy()  # torch takes no read-only array
    vectors_ND = torch.from_numpy(values).float().reshape(-1, array.type.list_size)  # ten times as fast as NumPy's cast
    norms_N = np.sqrt(np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64))
    if array.null_count or not np.isfinite(norms_N).all():
        raise WorkError("the index holds a vector that is not finite; build it again with `raycase index --overwrite`")
    return vectors_ND.div_(torch.from_numpy(np.where(norms_N == 0, 1, norms_N)).float()[:, None])


# ------------------------------------------------------------------------------------------------ fragments and shards

FRAGMENTS_A_SHARD, MOST_FRAGMENT_ROWS = 4, 2**20  # of the rows of an output; the latter is Lance's default, too
SMALL = 10  # rows that are added are in one fragment while they are less than such a part of a shard's


def shard_fragments(dataset: LanceDataset, shards: int) -> list[list[int]]:
    """The fragments of each shard: every one goes, in order, to the shard with the fewest rows, so that those of an
    output, which stand together, are in all."""
    of: list[list[int]] = [[] for _ in range(shards)]
    rows = [0] * shards
    for fragment in dataset.get_fragments():
        least = min(range(shards), key=rows.__getitem__)
        of[least].append(fragment.fragment_id)
        rows[least] += fragment.metadata.num_rows
    return of


def fragment_rows(rows: int, shards: int, others: int = 0) -> int:
    """The most rows of a fragment, of some that come to others: several fragments a shard, but one for a few rows."""
    if shards == 1 or rows * shards * SMALL < others:
        return MOST_FRAGMENT_ROWS
    fragments = shards * max(FRAGMENTS_A_SHARD, -(-rows // (shards * MOST_FRAGMENT_ROWS)))
    return max(1, -(-rows // fragments))
