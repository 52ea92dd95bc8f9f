"""The rows of written outputs, appended to an index: unit vectors, id, condition and the kept columns.

The metadata records which rows of which input file of which job are in the index, so none is appended twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError
from raycase.index.approximate import update_scalar_indices
from raycase.index.lance_files import fragment_rows, open_newest, sql_equals, sql_in, write_batches
from raycase.index.metadata import IndexMetadata
from raycase.index.token_files import Sketcher, make_sketcher
from raycase.io.columns import RESERVED_COLUMNS, check_kept
from raycase.io.lance_dataset import METADATA_KEY
from raycase.io.schema import (
    CONDITION,
    EMBEDDING,
    ID,
    PLAIN,
    VECTOR,
    embedding_array,
    embedding_numbers,
    embedding_type,
)
from raycase.io.storage import Location, fingerprint
from raycase.io.stored_tokens import BASIS, SKETCH, TOKEN_COLUMNS
from raycase.io.vectors import l2_normalize
from raycase.job.listing import UnitFile
from raycase.job.written import Written

if TYPE_CHECKING:
    from lance import LanceDataset


def append_rows(
    dataset: LanceDataset | None, source: Written, metadata: IndexMetadata, root: Location
) -> LanceDataset | None:
    """Append the units of an output that the index lacks, in one version, and count them in the metadata.

    None for the dataset of an index that does not exist yet. Raises RequestError for rows that do not fit.
    """
    source = without_covered(source, metadata)
    for unit in source.units:
        _cover(metadata, _file_key(source, unit), unit)
    if not source.names:
        return dataset
    schema, mode = index_schema(source, metadata), "append"
    sketcher = make_sketcher(source, root, metadata) if source.has_tokens else None
    if dataset is None:
        schema = schema.with_metadata({METADATA_KEY: ""})  # an index of ours, not finished
        mode = "create" if open_newest(root) is None else "overwrite"
    else:
        check_output_columns(dataset, schema, source.output.root)
        _check_new_rows(dataset, source, metadata)
        for field in schema:
            if field.name not in dataset.schema.names:
                dataset.add_columns(field)
        schema = pa.schema([f for f in dataset.schema if f.name in schema.names])  # in the index's order of columns
    most = fragment_rows(source.pairs, metadata.shards, metadata.rows)
    dataset = write_batches(root, schema, _batches(source, schema, sketcher), mode, most)
    _count_rows(source, metadata)
    return dataset


def _batches(source: Written, schema: pa.Schema, sketcher: Sketcher | None) -> Iterator[pa.RecordBatch]:
    """The rows in the index's schema, file by file."""
    column = PLAIN if source.unconditional else VECTOR
    dtype = schema.field(column).type.value_type.to_pandas_dtype()
    for table in source.tables():
        vectors_ND = l2_normalize(embedding_numbers(table[EMBEDDING])).astype(dtype)
        rows = table.append_column(column, embedding_array(vectors_ND))
        if sketcher is not None:
            rows = sketcher.add(rows)
        yield from rows.select(schema.names).cast(schema).to_batches()


def _count_rows(source: Written, metadata: IndexMetadata) -> None:
    """Add the rows under each condition; a job with listed conditions has every row under each."""
    counts: Counter[str] = Counter(metadata.conditions)
    if source.unconditional:
        metadata.plain += source.pairs
        metadata.words += source.pairs if source.has_tokens else 0
    elif listed := source.job.config["conditions"]:
        counts.update(dict.fromkeys(listed, source.pairs // len(listed)))
    else:
        for table in source.tables([CONDITION]):
            counts.update({row["values"]: row["counts"] for row in table[CONDITION].value_counts().to_pylist()})
    metadata.conditions = dict(counts)


# --------------------------------------------------------------------------------------------------- covered rows


def without_covered(source: Written, metadata: IndexMetadata) -> Written:
    """An output with only those units that the index lacks."""
    missing = (
        unit
        for unit in source.units
        for covered in [metadata.covered.get(_file_key(source, unit), ())]
        if not any(start <= unit.start and unit.end <= end for start, end in covered)
    )
    return replace(source, units=tuple(missing))


def _file_key(source: Written, unit: UnitFile) -> str:
    """The key in `covered` of the unit's input file under its job, wherever the output is stored.

    Where small files share units, a unit has rows of the files behind it too, so that the key is of one output alone.
    """
    file, sharing = source.job.files[unit.file], source.job.sharing
    key = [source.job.fingerprint, file.uri, file.size, file.mark]
    return fingerprint([*key, sharing.id])[:16]


def _cover(metadata: IndexMetadata, key: str, unit: UnitFile) -> None:
    """Add a unit to the row intervals of its file; adjacent intervals are merged."""
    intervals = sorted([*metadata.covered.get(key, []), [unit.start, unit.end]])
    merged = intervals[:1]
    for start, end in intervals[1:]:
        if start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    metadata.covered[key] = merged


# --------------------------------------------------------------------------------------------------------- schema


def index_schema(source: Written, metadata: IndexMetadata) -> pa.Schema:
    """Id, condition, the kept columns, and unit vectors in the index's number format."""
    written = source.schema
    of_output = (ID, CONDITION, EMBEDDING, *(TOKEN_COLUMNS if source.has_tokens else ()))
    for kept in (f for f in written if f.name not in of_output):
        check_kept(kept, f"--embeddings: {source.output.root.uri}")
    dim = written.field(EMBEDDING).type.list_size
    vectors = pa.field(PLAIN if source.unconditional else VECTOR, embedding_type(dim, metadata.dtype))
    own_columns = [pa.field(BASIS, pa.string()), pa.field(SKETCH, pa.large_binary())] if source.has_tokens else []
    return pa.schema([pa.field(f.name, f.type) for f in written if f.name != EMBEDDING] + [vectors, *own_columns])


def check_output_columns(dataset: LanceDataset, written: pa.Schema, output: Location) -> None:
    """Raise RequestError where the output has other columns than the index."""
    expected = {f.name: str(f.type) for f in dataset.schema if f.name not in RESERVED_COLUMNS}
    got = {f.name: str(f.type) for f in written if f.name not in RESERVED_COLUMNS}
    if expected != got:
        raise RequestError(
            f"{dataset.uri}: expected the index's columns ({', '.join(f'{n}: {t}' for n, t in expected.items())}), got "
            f"({', '.join(f'{n}: {t}' for n, t in got.items())}) in {output.uri}; embed it with the same --id-column "
            f"and --keep-columns, or without --index, and build anew: raycase index --embeddings {output.uri} --output "
            f"{dataset.uri} --overwrite"
        )


def _check_new_rows(dataset: LanceDataset, source: Written, metadata: IndexMetadata) -> None:
    """Raise RequestError where the index has a row's id under the same condition, from another job."""
    common: set[str | None] = {None} if metadata.plain else set()
    if not source.unconditional:
        common = set[str | None](metadata.conditions).intersection(
            source.job.config["conditions"] or metadata.conditions
        )
    if not common:
        return
    update_scalar_indices(dataset, metadata)  # else each lookup scans all rows
    for table in source.tables([ID, CONDITION]):
        for condition in common.intersection(table[CONDITION].unique().to_pylist()):
            ids = table[ID].filter(pc.equal(pc.fill_null(table[CONDITION], ""), condition or "")).to_pylist()
            same = f"{sql_equals(CONDITION, condition)} AND {sql_in(ID, ids)}"
            rows = dataset.to_table(columns=[ID], filter=same, limit=1)
            if len(rows):
                raise RequestError(
                    f"--embeddings: expected rows that are new to the index, got id {rows[ID][0].as_py()!r} under "
                    f"{condition!r} in {source.output.root.uri}, which the index has from another job; pass --replace "
                    "to replace it, --overwrite to build from scratch, or only one of the outputs"
                )
