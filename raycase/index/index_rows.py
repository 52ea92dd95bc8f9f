"""The rows of an index: appended from written outputs, pooled for conditions that are kept, and deleted.

The metadata counts them, and records which rows of which input file of which job are in the index, so none is appended
twice. Lance marks deleted rows in a new version, so a reader of the former one keeps them; offsets count the rows left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, expecting, note
from raycase.index.approximate import update_scalar_indices
from raycase.index.filters import Filter, checked_filter
from raycase.index.lance_files import (
    IndexMetadata,
    condition_counts,
    fragment_rows,
    returned_columns,
    sql_equals,
    sql_in,
    write_batches,
)
from raycase.index.token_files import make_sketcher
from raycase.io.lance_dataset import METADATA_KEY
from raycase.io.reader import distinct_words
from raycase.io.schema import (
    BASIS,
    CONDITION,
    DOCUMENT,
    EMBEDDING,
    ID,
    RESERVED_COLUMNS,
    SKETCH,
    UNCONDITIONAL,
    VECTOR,
    embedding_array,
    embedding_numbers,
    embedding_type,
)
from raycase.io.storage import Location, fingerprint
from raycase.io.vectors import l2_normalize
from raycase.job.finished_output import FinishedOutput
from raycase.job.unit_files import UnitFile

if TYPE_CHECKING:
    from lance import LanceDataset

IDS = 10_000  # ids in one filter


def append_rows(
    dataset: LanceDataset | None, source: FinishedOutput, metadata: IndexMetadata, root: Location
) -> LanceDataset | None:
    """Append the units of an output that the index lacks, in one version, and count them in the metadata.

    None for the dataset of an index that does not exist yet. Raises RequestError for rows that do not fit.
    """
    source = without_covered(source, metadata)
    for unit in source.units:
        _cover(metadata, _file_key(source, unit), unit)
    if not source.names:
        return dataset
    schema = _schema(source, metadata)
    sketched = make_sketcher(source, root, metadata) if source.has_tokens else None
    if dataset is None:
        schema = schema.with_metadata({METADATA_KEY: ""})  # an index of ours, not finished
    else:
        check_output_columns(dataset, schema, source.output.root)
        _check_new_rows(dataset, source, metadata)
        for field in schema:
            if field.name not in dataset.schema.names:
                dataset.add_columns(field)
        schema = pa.schema([f for f in dataset.schema if f.name in schema.names])  # in the index's order of columns
    column, counts = UNCONDITIONAL if source.unconditional else VECTOR, Counter[Any]()
    dtype = schema.field(column).type.value_type.to_pandas_dtype()

    def batches() -> Iterator[pa.RecordBatch]:
        for table in source.tables():
            counts.update(condition_counts(table))
            vectors_ND = l2_normalize(embedding_numbers(table[EMBEDDING])).astype(dtype)
            rows = table.append_column(column, embedding_array(vectors_ND))
            rows = sketched(rows) if sketched else rows
            yield from rows.select(schema.names).cast(schema).to_batches()

    most = fragment_rows(source.pairs, metadata.shards, metadata.rows)
    dataset = write_batches(root, dataset, schema, batches(), most)
    for clash in counts.keys() & {*metadata.kept}:
        raise RequestError(
            f"--embeddings: expected no vectors under {clash!r}, which {root.uri} keeps from its stored tokens, got "
            "some; choose another index, or pass --overwrite"
        )
    unconditional = counts.pop(None, 0)
    metadata.unconditional += unconditional
    metadata.with_tokens += unconditional if source.has_tokens else 0
    metadata.conditions = dict(Counter(metadata.conditions) + counts)
    return dataset


def _schema(source: FinishedOutput, metadata: IndexMetadata) -> pa.Schema:
    """Id, condition, the kept columns, and unit vectors in the index's number format."""
    fields = [pa.field(f.name, f.type) for f in source.schema if f.name != EMBEDDING]
    dim = source.schema.field(EMBEDDING).type.list_size
    column = UNCONDITIONAL if source.unconditional else VECTOR
    fields.append(pa.field(column, embedding_type(dim, metadata.dtype)))
    if source.has_tokens:
        fields += [pa.field(BASIS, pa.string()), pa.field(SKETCH, pa.large_binary())]
    return pa.schema(fields)


def check_output_columns(dataset: LanceDataset, written: pa.Schema, output: Location) -> None:
    """Raise RequestError where the output has other columns than the index."""
    expected = {f.name: str(f.type) for f in dataset.schema if f.name not in RESERVED_COLUMNS}
    got = {f.name: str(f.type) for f in written if f.name not in RESERVED_COLUMNS}
    if expected != got:
        raise RequestError(
            f"{dataset.uri}: expected the index's columns ({', '.join(f'{n}: {t}' for n, t in expected.items())}), got "
            f"({', '.join(f'{n}: {t}' for n, t in got.items())}) in {output.uri}; embed it with the same --id-column "
            f"and --keep-columns, or without --index, and build anew: `raycase index --embeddings {output.uri} "
            f"--output {dataset.uri} --overwrite`"
        )


def _check_new_rows(dataset: LanceDataset, source: FinishedOutput, metadata: IndexMetadata) -> None:
    """Raise RequestError where the index has a row's id, or any chunk of its document, under the same condition, from
    another job."""
    there: set[str | None] = {*metadata.conditions, *([None] if metadata.unconditional else [])}
    common = there & {*([None] if source.unconditional else source.job_file.config["conditions"] or there)}
    if not common:
        return
    update_scalar_indices(dataset, metadata)  # else each lookup scans all rows
    is_cut = metadata.chunk and "words" not in source.job_file.config  # of a pooled output, units may cut documents
    of = DOCUMENT if is_cut else ID
    for table in source.tables([of, CONDITION]):
        for condition in common.intersection(table[CONDITION].unique().to_pylist()):
            ids = table[of].filter(pc.equal(pc.fill_null(table[CONDITION], ""), condition or "")).unique().to_pylist()
            same = f"{sql_equals(CONDITION, condition)} AND {sql_in(of, ids)}"
            rows = dataset.to_table(columns=[ID], filter=same, limit=1)
            if len(rows):
                raise RequestError(
                    f"--embeddings: expected rows that are new to the index, got id {rows[ID][0].as_py()!r} under "
                    f"{condition!r} in {source.output.root.uri}, which the index has from another job; pass --replace "
                    "to replace it, --overwrite to build from scratch, or only one of the outputs"
                )


# --------------------------------------------------------------------------------------------------- covered rows


def without_covered(source: FinishedOutput, metadata: IndexMetadata) -> FinishedOutput:
    """An output with only those units that the index lacks."""
    missing = (
        unit
        for unit in source.units
        for covered in [metadata.covered.get(_file_key(source, unit), ())]
        if not any(start <= unit.start and unit.end <= end for start, end in covered)
    )
    return replace(source, units=tuple(missing))


def _file_key(source: FinishedOutput, unit: UnitFile) -> str:
    """The key in `covered` of the unit's input file under its job, wherever the output is stored.

    Where small files share units, a unit has rows of the files behind it too, so that the key is of one output alone.
    """
    file, sharing = source.job_file.files[unit.file], source.job_file.sharing
    key = [source.job_file.fingerprint, file.uri, file.size, file.mark]
    return fingerprint([*key, sharing.id])[:16]


def _cover(metadata: IndexMetadata, key: str, unit: UnitFile) -> None:
    """Add a unit to the ranges of rows of its file; adjacent ones are merged."""
    merged: list[list[int]] = []
    for start, end in sorted([*metadata.covered.get(key, []), [unit.start, unit.end]]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    metadata.covered[key] = merged


# -------------------------------------------------------------------------------------------------- kept conditions


def keep_conditions(
    dataset: LanceDataset, metadata: IndexMetadata, conditions: Sequence[str], root: Location, model: str | None
) -> LanceDataset:
    """Pool new conditions, and again those that were kept before rows with tokens came; add them in new versions.

    Raises RequestError for an index without stored tokens, and for conditions that it has otherwise.
    """
    conditions = distinct_words(conditions, "--keep-condition")
    for condition in conditions:
        if condition in metadata.conditions and condition not in metadata.kept:
            raise RequestError(f"--keep-condition: expected a condition that is new to the index, got {condition!r}")
    if conditions and not metadata.with_tokens:
        raise RequestError(
            f"--keep-condition: expected stored tokens in {root.uri}, got none; see `raycase embed --any-condition`"
        )
    metadata.kept = list(dict.fromkeys([*metadata.kept, *conditions])) if metadata.with_tokens else []
    stale = [name for name in metadata.kept if metadata.conditions.get(name) != metadata.with_tokens]
    if not stale:
        return dataset
    from raycase.index.condition_vectors import TokenVectors  # imports torch, as the next
    from raycase.index.query_encoder import QueryEncoder

    queries = QueryEncoder(metadata, model, root.uri)
    for condition in stale:
        with expecting(f"--keep-condition {condition!r}: expected a condition that the model can embed", RequestError):
            queries.ask(str(queries.condition_for(condition)))  # before anything is deleted
        if metadata.conditions.pop(condition, 0):
            dataset.delete(sql_equals(CONDITION, condition))
        if VECTOR not in dataset.schema.names:
            dataset.add_columns(pa.field(VECTOR, embedding_type(queries.encoder.dim, metadata.dtype)))
        blocks = TokenVectors(dataset, root, metadata, queries.ask, memory_bytes=0).blocks(condition)
        names = [*returned_columns(dataset), CONDITION, VECTOR]
        schema = pa.schema([field for field in dataset.schema if field.name in names])
        rows = (batch for block in blocks for batch in _pooled_rows(dataset, schema, condition, *block).to_batches())
        dataset = write_batches(root, dataset, schema, rows, fragment_rows(metadata.with_tokens, metadata.shards))
        metadata.conditions[condition] = metadata.with_tokens
    return dataset


def _pooled_rows(dataset: LanceDataset, schema: pa.Schema, condition: str, offsets_B: Any, vectors_BD: Any) -> pa.Table:
    """The rows at these offsets under a condition."""
    kept = dataset.take(offsets_B, columns=[name for name in schema.names if name not in (CONDITION, VECTOR)])
    dtype = schema.field(VECTOR).type.value_type.to_pandas_dtype()
    rows = kept.append_column(CONDITION, pa.array([condition] * len(kept), pa.string()))
    return (
        rows.append_column(VECTOR, embedding_array(vectors_BD.numpy().astype(dtype))).select(schema.names).cast(schema)
    )


# ----------------------------------------------------------------------------------------------------- deleted rows


def delete_matching(dataset: LanceDataset, metadata: IndexMetadata, where: str, root: Location) -> int:
    """Delete the rows that a filter matches, and return how many. Raises RequestError for one that leaves no row."""
    matching = checked_filter(dataset, root, where, "--delete")  # a text goes under all conditions or none
    rows = dataset.count_rows(matching)
    if rows == metadata.rows:
        raise RequestError(
            f"--delete: expected a filter that leaves rows, got {where!r}, which matches all {rows:,} of {root.uri}; "
            "build from another output with --overwrite, or remove the folder"
        )
    if not rows:
        note(f"{root.uri}: no row matches --delete {where!r}; 0 rows deleted")
    return _delete(dataset, metadata, matching)


def delete_same_ids(dataset: LanceDataset, metadata: IndexMetadata, sources: Sequence[FinishedOutput]) -> int:
    """Delete the rows, with and without conditions, of all ids in units that the index lacks, and return how many: all
    chunks of their documents, which may have had more, where the outputs have chunks.

    Raises RequestError for an output with other columns.
    """
    new = [source for source in (without_covered(source, metadata) for source in sources) if source.names]
    for source in new:
        check_output_columns(dataset, _schema(source, metadata), source.output.root)
    of = DOCUMENT if metadata.chunk else ID
    tables = (table for source in new for table in source.tables([of]))
    ids = (one for table in tables for one in table[of].unique().to_pylist())  # of several files, several times
    deleted = 0
    while batch := list(islice(ids, IDS)):
        deleted += _delete(dataset, metadata, Filter(f"({sql_in(of, batch)})"))
    return deleted


def _delete(dataset: LanceDataset, metadata: IndexMetadata, where: Filter) -> int:
    """Delete the rows that a filter matches, and take them off the metadata's counts."""
    gone = Counter[str | None]()
    for rows in dataset.to_batches(columns=[CONDITION], filter=where):
        gone.update(condition_counts(rows))
    if gone:  # else Lance writes a version all the same
        if metadata.with_tokens:
            metadata.with_tokens -= dataset.count_rows(f"{where} AND {BASIS} IS NOT NULL")
        dataset.delete(where)
    metadata.unconditional -= gone[None]
    metadata.conditions = {name: rows - gone[name] for name, rows in metadata.conditions.items() if rows > gone[name]}
    return gone.total()
