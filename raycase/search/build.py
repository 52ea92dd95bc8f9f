"""Written vectors -> an index: streamed into a Lance dataset, with what is needed to search it.

Vectors are scaled to length 1 on the way in, so a dot product of two is their cosine.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raycase.corpus.listing import UnitFile
from raycase.corpus.written import Written, open_written
from raycase.data.schema import CONDITION, EMBEDDING, ID, embedding_array, embedding_type
from raycase.data.storage import Location, check_paths, fingerprint, locate
from raycase.errors import RequestError
from raycase.search.lance_files import (
    import_lance,
    is_index,
    lance_errors,
    open_newest,
    open_ready,
    publish,
    sql_equals,
    sql_literal,
    storage_options,
)
from raycase.search.metadata import METADATA_KEY, PLAIN, RESERVED_COLUMNS, VECTOR, IndexMetadata
from raycase.search.topk import l2_normalize

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_TO_TRAIN = 256  # vectors, of which a product quantizer learns its codes
FEW_CONDITIONS = 1000  # up to so many a bitmap each, above a tree
Kind = Literal["auto", "exact", "ivf-pq", "hnsw"]


@dataclass(frozen=True, kw_only=True)
class IndexJob:
    """Index the vectors that jobs/embed.py wrote, for jobs/search.py.

    Given again, or with another output of the same model, it adds what the index has not got.
    """

    embeddings: tuple[str, ...] = ()
    """Outputs of jobs/embed.py, of one model: under conditions, or --unconditional beside them."""
    output: str
    """The index: a Lance dataset, local or on object storage."""
    kind: Kind | None = None
    """exact: every search looks at every vector under the condition; hnsw, ivf-pq (a quarter of the memory):
    approximate; auto: exact, and hnsw for a condition with --exact-below rows or more. Default: as the index is, auto
    for a new one."""
    exact_below: int | None = None
    """Rows of a condition below which auto searches exactly. Default: as the index has it, 100,000 for a new one."""
    partitions: int | None = None
    """Of an approximate index. Default: one for a million vectors (hnsw) or 4,096 (ivf-pq)."""
    sub_vectors: int | None = None
    """Bytes that ivf-pq keeps of a vector. Default: one for 4 dimensions."""
    reindex: bool = False
    """Train the approximate index anew, over all vectors; what is added later is fitted into what was learned."""
    overwrite: bool = False
    """Begin anew; the former index stays until the new one is there."""


def build(job: IndexJob) -> dict[str, Any]:
    """Build the index, or add to it; until all is done the former one is what opens. Raises RequestError, WorkError."""
    began = time.time()
    import_lance()
    root = locate(job.output)
    _check(job, root)
    sources = [open_written(uri, "--embeddings") for uri in job.embeddings]
    with lance_errors(root):
        dataset, metadata = _begin(job, sources, root)
        rows, before = metadata.rows, (metadata.approximate_kind, metadata.kind, metadata.exact_below)
        metadata.kind, metadata.exact_below = job.kind or metadata.kind, job.exact_below or metadata.exact_below
        for source in sources:
            _check_source(source, metadata, job, root)
        for source in sources:
            dataset = _add(dataset, source, metadata, root)
        if dataset is None:
            raise RequestError(f"--embeddings: expected vectors in {', '.join(job.embeddings)}, got none")
        if metadata.rows > rows or job.reindex or before[1:] != (metadata.kind, metadata.exact_below):
            _make_indices(dataset, metadata, job, anew=job.reindex or before[0] != metadata.approximate_kind)
            publish(dataset, metadata)
        else:
            print(f"{root.uri}: has all of it; nothing to do", file=sys.stderr)
    return {
        "rows": metadata.rows,
        "rows_added": metadata.rows - rows,
        "conditions": len(metadata.conditions),
        "unconditional_rows": metadata.plain,
        "kind": metadata.search_kind,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _begin(job: IndexJob, sources: Sequence[Written], root: Location) -> tuple[LanceDataset | None, IndexMetadata]:
    """The index to add to, or none and what is to be said of a new one."""
    there = open_newest(root)
    if there is not None and not is_index(there):
        raise RequestError(
            f"--output: expected an index of jobs/index.py or a new folder, got a Lance dataset in {root.uri}"
        )
    ready = None if job.overwrite else open_ready(root)
    if ready is None:
        if not sources:
            raise RequestError("--embeddings: expected an output of jobs/embed.py for a new index, got none")
        config = sources[0].job.config
        name = sources[0].output.manifest.read_json()["model"]["name"]
        return None, IndexMetadata(model=config["model"], name=name, dtype=config["dtype"])
    if not job.reindex and (job.partitions or job.sub_vectors):
        raise RequestError(f"--reindex: expected it beside --partitions and --sub-vectors, for {root.uri} is trained")
    dataset, metadata = ready
    if dataset.version != dataset.latest_version:  # a build was killed: what it added is left behind
        dataset.restore()
        dataset = open_newest(root)
    return dataset, metadata


def _check(job: IndexJob, root: Location) -> None:
    check_paths({"--output": job.output})
    for uri in job.embeddings:
        check_paths({"--embeddings": uri})
    for flag in ("partitions", "sub_vectors", "exact_below"):
        value = getattr(job, flag)
        if value is not None and value < 1:
            raise RequestError(f"--{flag.replace('_', '-')}: expected at least 1, got {value}")
    if root.is_local and root.exists():
        if not root.fs.isdir(root.path):
            raise RequestError(f"--output: expected a folder for the index, got the file {root.uri}")
        others = [name for name in os.listdir(root.path) if name != "data" and not name.startswith("_")]
        if others:
            raise RequestError(f"--output: expected an index or a new folder, got {others[0]} in {root.uri}")


# ---------------------------------------------------------------------------------------------------------- sources


def _column(source: Written) -> str:
    """Where its vectors go."""
    return PLAIN if source.unconditional else VECTOR


def _key(source: Written, unit: UnitFile) -> str:
    """Names the unit's input file and what was made of it, wherever the output is."""
    file = source.job.files[unit.file]
    return fingerprint([source.job.fingerprint, file.uri, file.size, file.mark])[:16]


def _check_source(source: Written, metadata: IndexMetadata, job: IndexJob, root: Location) -> None:
    """Raise RequestError for the output of another model, and for vectors that cannot be cut as asked."""
    wanted, found = fingerprint(metadata.model)[:8], fingerprint(source.job.config["model"])[:8]
    if wanted != found:
        raise RequestError(
            f"--embeddings: expected vectors of the index's model, {metadata.name} ({wanted}), got another's ({found}) "
            f"in {source.output.root.uri}; choose another index than {root.uri}, or pass --overwrite"
        )
    dim = source.output.manifest.read_json()["model"]["dim"]
    if job.sub_vectors and dim % job.sub_vectors:
        raise RequestError(f"--sub-vectors: expected a divisor of {dim} dimensions, got {job.sub_vectors}")


# ------------------------------------------------------------------------------------------------------------- rows


def _add(dataset: LanceDataset | None, source: Written, metadata: IndexMetadata, root: Location) -> LanceDataset | None:
    """Append the units that the index has not got, in one version, and count them in `metadata`."""
    lance = import_lance()
    source = replace(source, units=tuple(u for u in source.units if not _is_covered(metadata, _key(source, u), u)))
    for unit_file in source.units:
        _cover(metadata, _key(source, unit_file), unit_file)
    if not source.names:
        return dataset
    schema = _schema(source.schema(), source, metadata)
    if dataset is not None:
        _check_columns(dataset.schema, schema, source)
        _check_new(dataset, source, metadata)
        if _column(source) not in dataset.schema.names:
            dataset.add_columns(schema.field(_column(source)))
        # the order of the columns is the index's, and what it lacks is not written
        schema = pa.schema([f for f in dataset.schema if f.name in schema.names])
    else:
        schema = schema.with_metadata({METADATA_KEY: ""})  # ours, and not finished
    reader = pa.RecordBatchReader.from_batches(schema, _batches(source, schema))
    mode = "append" if dataset is not None else "create" if open_newest(root) is None else "overwrite"
    dataset = lance.write_dataset(reader, root.uri, mode=mode, storage_options=storage_options(root))
    _count(source, metadata)
    return dataset


def _is_covered(metadata: IndexMetadata, key: str, unit: UnitFile) -> bool:
    return any(start <= unit.start and unit.end <= end for start, end in metadata.covered.get(key, ()))


def _cover(metadata: IndexMetadata, key: str, unit: UnitFile) -> None:
    """Add a unit to the row intervals of its file; neighbours become one."""
    spans = sorted([*metadata.covered.get(key, []), [unit.start, unit.end]])
    joined = spans[:1]
    for start, end in spans[1:]:
        if start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    metadata.covered[key] = joined


def _schema(found: pa.Schema, source: Written, metadata: IndexMetadata) -> pa.Schema:
    """id, condition, the kept columns, and unit vectors in the index's number format."""
    clash = next((name for name in found.names if name in RESERVED_COLUMNS), None)
    if clash:
        raise RequestError(
            f"--embeddings: expected no kept column named {clash!r}, which is the index's own, got one in "
            f"{source.output.root.uri}; leave it out of --keep-columns, or rename it"
        )
    vectors = pa.field(_column(source), embedding_type(found.field(EMBEDDING).type.list_size, metadata.dtype))
    return pa.schema([pa.field(f.name, f.type) for f in found if f.name != EMBEDDING] + [vectors])


def _check_columns(index: pa.Schema, found: pa.Schema, source: Written) -> None:
    """Raise RequestError where the output has other columns than the index."""
    wanted = {f.name: str(f.type) for f in index if f.name not in RESERVED_COLUMNS}
    here = {f.name: str(f.type) for f in found if f.name not in RESERVED_COLUMNS}
    if wanted != here:
        raise RequestError(
            f"--embeddings: expected the index's columns ({', '.join(f'{n}: {t}' for n, t in wanted.items())}), got "
            f"({', '.join(f'{n}: {t}' for n, t in here.items())}) in {source.output.root.uri}; embed it with the same "
            "--id-column and --keep-columns"
        )


def _check_new(dataset: LanceDataset, source: Written, metadata: IndexMetadata) -> None:
    """Raise RequestError where a row is in the index under the same condition, from another job."""
    asked = source.job.config["conditions"]
    known = {None} if _column(source) == PLAIN and metadata.plain else set(metadata.conditions)
    if not known.intersection([None] if _column(source) == PLAIN else asked or known):
        return
    _make_scalar(dataset, metadata)  # else each look is a scan
    for rows in source.tables([ID, CONDITION]):
        for condition in known.intersection(rows[CONDITION].unique().to_pylist()):
            ids = rows[ID].filter(pc.equal(pc.fill_null(rows[CONDITION], ""), condition or "")).to_pylist()
            again = f"{sql_equals(CONDITION, condition)} AND {ID} IN ({', '.join(map(sql_literal, ids))})"
            both = dataset.to_table(columns=[ID], filter=again, limit=1)
            if len(both):
                raise RequestError(
                    f"--embeddings: expected rows that the index has not got, got id {both[ID][0].as_py()!r} under "
                    f"{condition!r} in both, from another job than {source.output.root.uri}; pass --overwrite"
                )


def _batches(source: Written, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as the index has them, a file at a time."""
    column = _column(source)
    dtype = schema.field(column).type.value_type.to_pandas_dtype()
    for table in source.tables():
        vectors = table[EMBEDDING].combine_chunks()
        vectors_ND = vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)
        rows = table.append_column(column, embedding_array(l2_normalize(vectors_ND).astype(dtype)))
        yield from rows.select(schema.names).cast(schema).to_batches()


def _count(source: Written, metadata: IndexMetadata) -> None:
    """Add the rows of each condition to the index's; a job with listed conditions has every row under each."""
    rows_out = sum(u.rows_out for u in source.units)
    counts: Counter[str] = Counter(metadata.conditions)
    if _column(source) == PLAIN:
        metadata.plain += rows_out
    elif listed := source.job.config["conditions"]:
        counts.update(dict.fromkeys(listed, rows_out))
    else:
        for rows in source.tables([CONDITION]):
            counts.update({found["values"]: found["counts"] for found in rows[CONDITION].value_counts().to_pylist()})
    metadata.conditions = dict(counts)


# ---------------------------------------------------------------------------------------------------------- indices


def _make_scalar(dataset: LanceDataset, metadata: IndexMetadata) -> None:
    """Indices of id and condition, over all rows that are there."""
    there = {found.field_names[0] for found in dataset.describe_indices()}
    if there:
        dataset.optimize.optimize_indices()  # approximate ones, too, take in what is new
    for column in {ID, CONDITION} - there:
        few = column == CONDITION and len(metadata.conditions) <= FEW_CONDITIONS
        dataset.create_scalar_index(column, "BITMAP" if few else "BTREE")


def _make_indices(dataset: LanceDataset, metadata: IndexMetadata, job: IndexJob, *, anew: bool) -> None:
    """Bring all indices to the rows that are there: scalar ones, and approximate ones where they are wanted."""
    _make_scalar(dataset, metadata)
    there = {found.field_names[0] for found in dataset.describe_indices()}
    for column, rows in ((VECTOR, sum(metadata.conditions.values())), (PLAIN, metadata.plain)):
        # without an index of the column, Lance searches exactly
        wanted = rows >= LEAST_TO_TRAIN and metadata.is_approximate(metadata.most_rows(column))
        if wanted and (anew or column not in there):
            _train(dataset, column, rows, metadata, job)
        elif column in there and not wanted:
            dataset.drop_index(f"{column}_idx")


def _train(dataset: LanceDataset, column: str, rows: int, metadata: IndexMetadata, job: IndexJob) -> None:
    """Train an approximate index of a column."""
    dim = dataset.schema.field(column).type.list_size
    sub_vectors: int | None = None
    if metadata.approximate_kind == "ivf-pq":
        sub_vectors = job.sub_vectors or next(n for n in range(max(1, dim // 4), 0, -1) if dim % n == 0)
        lance_kind, partitions = "IVF_PQ", rows // 4096
    else:
        lance_kind, partitions = "IVF_HNSW_SQ", rows // 2**20
    partitions = min(rows, job.partitions or max(1, partitions))
    dataset.create_index(
        column, lance_kind, metric="dot", replace=True, num_partitions=partitions, num_sub_vectors=sub_vectors
    )
