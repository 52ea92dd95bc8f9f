"""Build an index from written vectors, or add to it: vectors are scaled to length 1, so that a dot product is a cosine,
and streamed into a Lance dataset; rows are appended, pooled for conditions that are kept, and deleted.

The metadata counts them, and records which rows of which input file of which job are in the index, so none is appended
twice. Lance marks deleted rows in a new version, so a reader of the former one keeps them; offsets count the rows left.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, WorkError, check_problems, expecting, note
from raycase.index.approximate import searched_by, update_indices, update_scalar_indices
from raycase.index.filters import Filter, checked_filter
from raycase.index.lance_files import (
    CUT,
    READY_FILE,
    IndexMetadata,
    Version,
    condition_counts,
    fragment_rows,
    lance_errors,
    open_newest,
    open_ready,
    other_build,
    publish,
    returned_columns,
    sql_equals,
    sql_in,
    write_batches,
)
from raycase.index.options import VectorIndexType
from raycase.index.text_index import update_text_index
from raycase.index.token_files import check_there, make_sketcher, remove_unused
from raycase.io.lance_dataset import METADATA_KEY, import_lance, is_index
from raycase.io.locks import held, mark_of
from raycase.io.reader import distinct_words
from raycase.io.schema import (
    BASIS,
    CODES,
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
from raycase.io.storage import Location, fingerprint, locate
from raycase.io.vectors import l2_normalize
from raycase.job.output import UnitFile
from raycase.job.results import CHUNKED
from raycase.job.verify import FinishedOutput, open_written
from raycase.models.taught import Taught, model_hash
from raycase.names import Language

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.job.request import Request

IDS = 10_000  # ids in one filter
NONE: Mapping[str, Any] = MappingProxyType({})


def build(
    output: str,
    embeddings: Sequence[str] = (),
    *,
    vector_index: VectorIndexType | None = None,
    exact_below: int | None = None,
    shards: int | None = None,
    delete: str | None = None,
    replace: bool = False,
    text_index: bool = False,
    text_language: Language | None = None,
    keep_condition: Sequence[str] = (),
    model: str | None = None,
    overwrite: bool = False,
    taught: Mapping[str, Taught | None] = NONE,
) -> dict[str, Any]:
    """Build the index or add to it by the arguments of `raycase index`, and return its counts. taught: what
    conditions were taught, in place of what the index had of these; None: it takes them by their words.

    Until all is done the former index is the one that opens. Raises RequestError, and WorkError, also where another
    build is at work.
    """
    began, root = time.time(), locate(output)
    import_lance()
    sources = [open_written(uri, "--embeddings") for uri in embeddings]
    with lance_errors(root), held(root, "_building.lock", other_build(root)):
        former = mark_of(root / READY_FILE)
        ready = _open_ready(root, shards, overwrite=overwrite)
        if ready is None:
            must = f"expected a finished index at {root.uri} and no --overwrite beside it, got "
            must += f"{'both' if overwrite else 'none'}; build it with --embeddings alone"
            none = "--embeddings: expected an output of `raycase embed` for a new index, got none"
            check_problems({f"--delete: {must}": delete is not None, f"--replace: {must}": replace, none: not sources})
        dataset, metadata = ready[1:] if ready else (None, _new_metadata(sources[0]))
        rows, settings = metadata.rows, metadata.settings
        metadata.vector_index = vector_index or metadata.vector_index
        metadata.exact_below, metadata.shards = exact_below or metadata.exact_below, shards or metadata.shards
        _check_sources(sources, dataset, metadata, root)
        deleted = delete_matching(dataset, metadata, delete, root) if delete is not None else 0
        deleted += delete_same_ids(dataset, metadata, sources) if replace else 0
        for source in sources:
            dataset = append_rows(dataset, source, metadata, root)
        if dataset is None:
            raise RequestError(f"--embeddings: expected vectors in {', '.join(embeddings)}, got none")
        _teach(dataset, metadata, taught, root)
        dataset = keep_conditions(dataset, metadata, keep_condition, root, model)
        added = metadata.rows - rows + deleted
        words = bool(text_index or text_language) and update_text_index(dataset, text_language, metadata.text_column)
        if added or deleted or words or settings != metadata.settings:
            _finish(root, dataset, metadata, former)
        else:
            note(f"{root.uri}: already has all rows")
    return {
        "rows": metadata.rows,
        "rows_added": added,
        "rows_deleted": deleted,
        "conditions": len(metadata.conditions),
        "unconditional_rows": metadata.unconditional,
        "rows_with_tokens": metadata.with_tokens,
        "vector_index": searched_by(dataset, metadata),
        "shards": metadata.shards,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _finish(root: Location, dataset: LanceDataset, metadata: IndexMetadata, former: str | None) -> None:
    """Bring the indices up to date with the rows, and have this version open from now on."""
    if dataset.stats.dataset_stats()["num_deleted_rows"] > dataset.count_rows():  # it must not grow for ever
        most = fragment_rows(metadata.rows, metadata.shards)
        dataset.optimize.compact_files(target_rows_per_fragment=most if metadata.shards == 1 else -(-most // 2))
    update_indices(dataset, metadata)
    check_there(root, metadata)
    publish(root, dataset, metadata, former)
    remove_unused(root, dataset)


def _open_ready(root: Location, shards: int | None, *, overwrite: bool) -> Version | None:
    """The index to add to; None for a new one."""
    there = os.listdir(root.path) if root.is_local and root.exists() else []
    got = [name for name in there if name != "data" and not name.startswith("_")]
    if not got and (newest := open_newest(root)) is not None and not is_index(newest):
        got = ["a Lance dataset"]
    if got:
        raise RequestError(
            f"--output: expected an index of `raycase index` or a new folder, got {got[0]} in {root.uri}"
        )
    ready = None if overwrite else open_ready(root)
    if ready and shards not in (None, ready.metadata.shards):
        had = f"expected {ready.metadata.shards}, as {root.uri} has, or --overwrite beside another number"
        raise RequestError(f"--shards: {had}, got {shards}")
    if ready and (not root.is_local or ready.dataset.version != ready.dataset.latest_version):
        ready.dataset.restore()  # behind it may be what a killed build wrote; Lance refuses others' commits from now on
    return ready


def _new_metadata(source: FinishedOutput) -> IndexMetadata:
    """The metadata of a new index that begins with an output."""
    config, name = source.job_file.config, source.manifest["model"]["name"]
    return IndexMetadata(model=config["model"], name=name, dtype=config["dtype"], chunk=config.get(CHUNKED, []))


def _check_sources(
    sources: Sequence[FinishedOutput], dataset: LanceDataset | None, metadata: IndexMetadata, root: Location
) -> None:
    """Raise RequestError for an output of another model, or of other chunks. The first conditional vectors or tokens
    give the dimension to which all are cut."""
    first = [source.job_file.config["model"] for source in sources if not source.unconditional or source.has_tokens]
    had = () if dataset is None else dataset.schema.names
    if first and CUT in first[0] and VECTOR not in had and CODES not in had:
        metadata.model = metadata.model | {CUT: first[0][CUT]}
    for source in sources:
        config, place = source.job_file.config, source.output.root.uri
        model, chunk = config["model"], config.get(CHUNKED, [])
        if source.unconditional and not source.has_tokens and CUT in metadata.model:
            model = model | {CUT: metadata.model[CUT]}
        cut, own_cut = (" ".join(map(str, each)) or "none" for each in (metadata.chunk, chunk))
        of, own = (fingerprint(each)[:8] for each in (metadata.model, model))
        other = f"in {place}; choose another index than {root.uri}, or pass --overwrite"
        chunks = f"--chunk, --overlap and --late-chunking ({cut}), got others ({own_cut})"
        models = f"--embeddings: expected vectors of the index's model, {metadata.name} ({of}), got another's ({own})"
        problems = {
            f"--embeddings: expected the index's {chunks} {other}": cut != own_cut,
            f"{models} {other}": of != own,
        }
        check_problems(problems)
        check_taught(metadata, config["conditions"] or (), config.get("taught", {}), place)
        metadata.taught |= config.get("taught", {})
        for name in ("text_column", "id_column"):
            of_index, of_source = getattr(metadata, name), config[name]
            setattr(metadata, name, of_source if of_index in (None, of_source) else "")


def check_taught(
    metadata: IndexMetadata,
    conditions: Sequence[str],
    taught: Mapping[str, str],
    place: str,
    flag: str = "--embeddings",
) -> None:
    """Raise RequestError for vectors under a condition that the index has as it was taught otherwise, or not at all."""
    for name in conditions:
        known = name in metadata.taught or name in metadata.conditions
        if known and metadata.taught.get(name) != taught.get(name):
            raise RequestError(
                f"{flag}: expected {name!r} as the index has it, taught by the same answers or by none, got another in "
                f"{place}; embed it again by the same file, or choose another index"
            )


# ------------------------------------------------------------------------------------------ for `raycase embed --index`


def check_index(index: str, request: Request) -> None:
    """Raise RequestError where there is an index that has other columns than a job will write."""
    if ready := open_ready(locate(index)):
        id_type, kept = request.encoding.pairs.written_columns
        written = pa.schema({ID: id_type, CONDITION: pa.string(), **kept})
        check_output_columns(ready.dataset, written, request.output.root)
        of = request.encoding
        check_taught(ready.metadata, of.pairs.conditions or (), of.model.teachings, request.output.root.uri, "--index")


def index_output(index: str, output: str) -> str:
    """Index an output that is complete; returns where."""
    try:
        return str(build(index, [output])["output"])
    except (RequestError, WorkError) as error:
        message = str(error).replace("--output:", "--index:").replace("--embeddings:", "--output:")
        raise type(error)(f"{message}; the output is complete but not indexed: {output}") from error


# ------------------------------------------------------------------------------------------------------- appended rows


def append_rows(
    dataset: LanceDataset | None, source: FinishedOutput, metadata: IndexMetadata, root: Location
) -> LanceDataset | None:
    """Append the units of an output that the index (None: a new one) lacks, in one version, and count them."""
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

    most = fragment_rows(sum(source.pairs_of[name] for name in source.names), metadata.shards, metadata.rows)
    dataset = write_batches(root, dataset, schema, batches(), most)
    for clash in counts.keys() & {*metadata.kept}:
        raise RequestError(
            f"--embeddings: expected no vectors under {clash!r}, which {root.uri} keeps from its stored tokens, got "
            "some; choose another index, or pass --overwrite"
        )
    of_source = source.job_file.config.get("taught", {})
    check_taught(metadata, sorted({*metadata.taught} & {*counts}), of_source, source.output.root.uri)  # one in a column
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
    schemas = dataset.schema, written
    columns, written_columns = ({f.name: f.type for f in of if f.name not in RESERVED_COLUMNS} for of in schemas)
    if columns != written_columns:  # as types: Parquet renames what is in a list
        expected, got = (", ".join(f"{name}: {of[name]}" for name in of) for of in (columns, written_columns))
        raise RequestError(
            f"{dataset.uri}: expected the index's columns ({expected}), got ({got}) in "
            f"{output.uri}; embed it with the same --id-column and --keep-columns, or without --index, and build anew: "
            f"`raycase index --embeddings {output.uri} --output {dataset.uri} --overwrite`"
        )


def _check_new_rows(dataset: LanceDataset, source: FinishedOutput, metadata: IndexMetadata) -> None:
    """Raise RequestError where the index has a row's id, or its document, under the same condition from another job."""
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
                found = rows[ID][0].as_py()
                places = "; such ids are places in files without a column of ids: embed again with --id-column"
                raise RequestError(
                    f"--embeddings: expected rows that are new to the index, got id {found!r} under "
                    f"{condition!r} in {source.output.root.uri}, which the index has from another job; pass --replace "
                    "to replace it, --overwrite to build from scratch, or only one of the outputs"
                    f"{places if re.fullmatch('[0-9]+:[0-9]+', str(found)) else ''}"
                )


# --------------------------------------------------------------------------------------------------- covered rows


def without_covered(source: FinishedOutput, metadata: IndexMetadata) -> FinishedOutput:
    """An output with only those units that the index lacks."""
    covered = ((unit, metadata.covered.get(_file_key(source, unit), ())) for unit in source.units)
    missing = (unit for unit, of in covered if not any(start <= unit.start and unit.end <= end for start, end in of))
    return replace(source, units=tuple(missing))


def _file_key(source: FinishedOutput, unit: UnitFile) -> str:
    """The key in `covered` of the unit's input file under its job, wherever the output is stored."""
    file, sharing = source.job_file.files[unit.file], source.job_file.sharing  # a unit may have rows of other files
    return fingerprint([source.job_file.fingerprint, file.uri, file.size, file.mark, sharing.id])[:16]


def _cover(metadata: IndexMetadata, key: str, unit: UnitFile) -> None:
    """Add a unit to the ranges of rows of its file; adjacent ones are merged."""
    merged: list[list[int]] = []
    for start, end in sorted([*metadata.covered.get(key, []), [unit.start, unit.end]]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    metadata.covered[key] = merged


# ------------------------------------------------------------------------------------------ taught and kept conditions


def _teach(dataset: LanceDataset, metadata: IndexMetadata, taught: Mapping[str, Taught | None], root: Location) -> None:
    """Take conditions as they were taught, or no longer; the vectors of those that are kept go, to be pooled anew."""
    for name, each in taught.items():
        if each is not None and each.model != model_hash(metadata.model):  # while it was taught
            raise other_build(root)
        before = metadata.taught.pop(name, None)
        metadata.taught |= {} if each is None else {name: each.to_text()}
        if name in metadata.conditions and before != metadata.taught.get(name):
            check_poolable(metadata, name, root)
            _delete(dataset, metadata, Filter(sql_equals(CONDITION, name)))


def check_poolable(metadata: IndexMetadata, condition: str, root: Location) -> None:
    """Raise RequestError for a condition that is not pooled from stored tokens."""
    got = f"got {condition!r} with vectors of its own in {root.uri}; embed with --any-condition, or use another index"
    none = f"--index: expected stored tokens, got none in {root.uri}; see `raycase embed --any-condition`"
    stored = condition in metadata.conditions and condition not in metadata.kept
    pooled = f"--condition: expected one that the index pools from its stored tokens, {got}"
    check_problems({none: not metadata.with_tokens, pooled: stored})


def keep_conditions(
    dataset: LanceDataset, metadata: IndexMetadata, conditions: Sequence[str], root: Location, model: str | None
) -> LanceDataset:
    """Pool new conditions, and again those that were kept before rows with tokens came; add them in new versions."""
    conditions = distinct_words(conditions, "--keep-condition")
    known = [name for name in conditions if name in metadata.conditions and name not in metadata.kept]
    none = f"--keep-condition: expected stored tokens in {root.uri}, got none; see `raycase embed --any-condition`"
    new = "--keep-condition: expected a condition that is new to the index, got"
    check_problems({f"{new} {name!r}": True for name in known} | {none: conditions and not metadata.with_tokens})
    metadata.kept = list(dict.fromkeys([*metadata.kept, *conditions])) if metadata.with_tokens else []
    stale = [name for name in metadata.kept if metadata.conditions.get(name) != metadata.with_tokens]
    if not stale:
        return dataset
    from raycase.index.query_encoder import QueryEncoder
    from raycase.index.rows import TokenVectors  # imports torch, as the next

    queries = QueryEncoder(metadata, model or metadata.name, root.uri)
    for condition in stale:
        with expecting(f"--keep-condition {condition!r}: expected a condition that the model can embed", RequestError):
            queries.ask(str(queries.condition_for(condition)))  # before anything is deleted
        if metadata.conditions.pop(condition, 0):
            dataset.delete(sql_equals(CONDITION, condition))
        if VECTOR not in dataset.schema.names:
            dataset.add_columns(pa.field(VECTOR, embedding_type(queries.encoder.dim, metadata.dtype)))
        blocks = TokenVectors(Version(root, dataset, metadata), queries.ask, memory_bytes=0).blocks(condition)
        names = [*returned_columns(dataset), CONDITION, VECTOR]
        schema = pa.schema([field for field in dataset.schema if field.name in names])
        rows = (batch for block in blocks for batch in _pooled_rows(dataset, schema, condition, *block).to_batches())
        dataset = write_batches(root, dataset, schema, rows, fragment_rows(metadata.with_tokens, metadata.shards))
        metadata.conditions[condition] = metadata.with_tokens
    return dataset


def _pooled_rows(dataset: LanceDataset, schema: pa.Schema, condition: str, offsets_B: Any, vectors_BD: Any) -> pa.Table:
    """The rows at these offsets under a condition."""
    kept = dataset.take(offsets_B, columns=[name for name in schema.names if name not in (CONDITION, VECTOR)])
    vectors = embedding_array(vectors_BD.numpy().astype(schema.field(VECTOR).type.value_type.to_pandas_dtype()))
    rows = kept.append_column(CONDITION, pa.array([condition] * len(kept), pa.string())).append_column(VECTOR, vectors)
    return rows.select(schema.names).cast(schema)


# ----------------------------------------------------------------------------------------------------- deleted rows


def delete_matching(dataset: LanceDataset, metadata: IndexMetadata, where: str, root: Location) -> int:
    """Delete the rows that a filter matches, and return how many."""
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
    """Delete all rows of the ids, or of the documents of chunks, in units that the index lacks; return how many."""
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
