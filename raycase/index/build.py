"""Build an index from written vectors, or add to it: vectors are scaled to length 1 and streamed into a Lance dataset.

A dot product of two vectors of an index is therefore their cosine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raycase.commands.flags import Advanced
from raycase.errors import RequestError, WorkError, at_least, check_ranges, note
from raycase.index.approximate import search_kind, update_indices
from raycase.index.index_rows import (
    append_rows,
    check_output_columns,
    delete_matching,
    delete_same_ids,
    keep_conditions,
)
from raycase.index.lance_files import (
    CUT,
    MOST_SHARDS,
    READY_FILE,
    IndexMetadata,
    fragment_rows,
    lance_errors,
    open_newest,
    open_ready,
    other_build,
    publish,
)
from raycase.index.text_index import update_text_index
from raycase.index.token_files import check_there, remove_unused
from raycase.io.lance_dataset import import_lance, is_index
from raycase.io.locks import held, mark_of
from raycase.io.model_files import model_folder
from raycase.io.places import OF_INDEX, Folder, check_paths
from raycase.io.schema import CODES, CONDITION, ID, VECTOR
from raycase.io.storage import Location, fingerprint, locate
from raycase.job.finished_output import FinishedOutput, open_written
from raycase.job.manifest import read_manifest
from raycase.job.results import CHUNKED
from raycase.names import Language, VectorIndexType

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.job.request import Request


@dataclass(frozen=True, kw_only=True)
class IndexFlags:
    """Index the vectors that `raycase embed` wrote, for `raycase search`.

    Run again, or with another output of the same model, it adds the rows that the index lacks.
    """

    embeddings: tuple[str, ...] = ()
    """Outputs of `raycase embed`, all of one model: under conditions, and unconditional ones beside them."""
    output: str
    """The index: a Lance dataset, local or on object storage."""
    kind: VectorIndexType | None = None
    """exact: compare every vector under the condition. ivf-rq: use an approximate index. auto: ivf-rq for conditions
    with --exact-below rows or more. Default: the kind of the index, auto for a new one."""
    exact_below: Advanced[int | None] = None
    """Conditions with fewer rows are searched exactly by auto. Default: the index's value, 100,000 for a new one."""
    shards: Advanced[int | None] = None
    """Number of shards of about equal size; on a cluster, a search gives each its own process. Default: the index's
    number, 1 for a new one. To change it, use --overwrite."""
    delete: str | None = None
    """Delete the rows that match this SQL filter on id and the kept columns, such as "year < 2010". Indexing their
    output again does not bring them back."""
    replace: bool = False
    """First delete all rows with the ids of the new --embeddings. Give all outputs of the changed texts at once."""
    text_index: bool = False
    """Index the words of the kept texts too, for `raycase search --match` and --hybrid. Rows that are added later are
    indexed as well."""
    text_language: Advanced[Language | None] = None
    """Language in which --text-index stems words, so that "bicycles" is "bicycle", or none. Default: the index's,
    English for a new one."""
    keep_condition: tuple[str, ...] = ()
    """Conditions to pool from stored tokens and keep, like conditions embedded in advance; new rows are pooled too."""
    model: Advanced[str | None] = None
    """Folder of the index's model, if it has moved; for --keep-condition."""
    overwrite: bool = False
    """Build from scratch; searches use the former index until the new one is finished."""


def build(flags: IndexFlags) -> dict[str, Any]:
    """Build the index or add to it, and return its counts; until all is done the former index is the one that opens.

    Raises RequestError, and WorkError, also where another build of the index is at work.
    """
    began = time.time()
    import_lance()
    root = locate(flags.output)
    check_paths(
        opens={"--embeddings": flags.embeddings, "--model": model_folder(flags.model)},
        writes={"--output": Folder(flags.output, OF_INDEX)},
    )
    check_ranges(flags, at_least(1, flags, "exact_below") | at_least(1, flags, "shards", most=MOST_SHARDS))
    sources = [open_written(uri, "--embeddings") for uri in flags.embeddings]
    with lance_errors(root), held(root, "_building.lock", other_build(root)):
        former = mark_of(root / READY_FILE)
        dataset, metadata = _open_or_begin(flags, sources, root)
        rows, settings = metadata.rows, (metadata.kind, metadata.exact_below)
        metadata.kind, metadata.exact_below = flags.kind or metadata.kind, flags.exact_below or metadata.exact_below
        metadata.shards = flags.shards or metadata.shards
        _check_sources(sources, dataset, metadata, root)
        deleted = delete_matching(dataset, metadata, flags.delete, root) if flags.delete is not None else 0
        deleted += delete_same_ids(dataset, metadata, sources) if flags.replace else 0
        for source in sources:
            dataset = append_rows(dataset, source, metadata, root)
        if dataset is None:
            raise RequestError(f"--embeddings: expected vectors in {', '.join(flags.embeddings)}, got none")
        dataset = keep_conditions(dataset, metadata, flags.keep_condition, root, flags.model)
        added = metadata.rows - rows + deleted
        has_new_words = bool(flags.text_index or flags.text_language) and update_text_index(
            dataset, flags.text_language, metadata.text_column
        )
        if added or deleted or has_new_words or settings != (metadata.kind, metadata.exact_below):
            if dataset.stats.dataset_stats()["num_deleted_rows"] > dataset.count_rows():  # it must not grow for ever
                most = fragment_rows(metadata.rows, metadata.shards)
                dataset.optimize.compact_files(target_rows_per_fragment=most if metadata.shards == 1 else -(-most // 2))
            update_indices(dataset, metadata)
            check_there(root, metadata)
            publish(root, dataset, metadata, former)
            remove_unused(root, dataset)
        else:
            note(f"{root.uri}: already has all rows")
    return {
        "rows": metadata.rows,
        "rows_added": added,
        "rows_deleted": deleted,
        "conditions": len(metadata.conditions),
        "unconditional_rows": metadata.unconditional,
        "rows_with_tokens": metadata.with_tokens,
        "kind": search_kind(dataset, metadata),
        "shards": metadata.shards,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _open_or_begin(
    flags: IndexFlags, sources: Sequence[FinishedOutput], root: Location
) -> tuple[LanceDataset | None, IndexMetadata]:
    """The index to add to and its metadata; None and fresh metadata for a new index. Raises RequestError where the
    folder has something else."""
    there = os.listdir(root.path) if root.is_local and root.exists() else []
    if others := [name for name in there if name != "data" and not name.startswith("_")]:
        raise RequestError(f"--output: expected an index or a new folder, got {others[0]} in {root.uri}")
    newest = open_newest(root)
    if newest is not None and not is_index(newest):
        raise RequestError(
            f"--output: expected an index of `raycase index` or a new folder, got a Lance dataset in {root.uri}"
        )
    ready = None if flags.overwrite else open_ready(root)
    if ready is None:
        for flag in ["--delete"] * (flags.delete is not None) + ["--replace"] * flags.replace:
            raise RequestError(
                f"{flag}: expected a finished index at {root.uri} and no --overwrite beside it, got "
                f"{'both' if flags.overwrite else 'none'}; build it with --embeddings alone"
            )
        if not sources:
            raise RequestError("--embeddings: expected an output of `raycase embed` for a new index, got none")
        config = sources[0].job_file.config
        name = read_manifest(sources[0].output)["model"]["name"]
        chunk = config.get(CHUNKED, [])
        return None, IndexMetadata(model=config["model"], name=name, dtype=config["dtype"], chunk=chunk)
    dataset, metadata = ready
    if flags.shards not in (None, metadata.shards):
        raise RequestError(
            f"--shards: expected {metadata.shards}, as {root.uri} has, or --overwrite beside another number, got "
            f"{flags.shards}"
        )
    if not root.is_local or dataset.version != dataset.latest_version:  # behind it may be what a killed build wrote
        dataset.restore()  # Lance refuses commits of any build that opened the index before
    return dataset, metadata


def _check_sources(
    sources: Sequence[FinishedOutput], dataset: LanceDataset | None, metadata: IndexMetadata, root: Location
) -> None:
    """Raise RequestError for an output of another model, or cut otherwise: the same id would be another chunk. The
    first conditional vectors or tokens say to which dimension all are cut."""
    models = [source.job_file.config["model"] for source in sources if not source.unconditional or source.has_tokens]
    had = () if dataset is None else dataset.schema.names
    if models and CUT in models[0] and VECTOR not in had and CODES not in had:
        metadata.model = metadata.model | {CUT: models[0][CUT]}
    for source in sources:
        other = f"in {source.output.root.uri}; choose another index than {root.uri}, or pass --overwrite"
        if (chunk := source.job_file.config.get(CHUNKED, [])) != metadata.chunk:
            wanted, got = (" ".join(map(str, each)) or "none" for each in (metadata.chunk, chunk))
            raise RequestError(
                f"--embeddings: expected the index's --chunk, --overlap and --late-chunking ({wanted}), got others "
                f"({got}) {other}"
            )
        for name in ("text_column", "id_column"):
            of_index, of_source = getattr(metadata, name), source.job_file.config[name]
            setattr(metadata, name, of_source if of_index in (None, of_source) else "")
        model = source.job_file.config["model"]
        if source.unconditional and not source.has_tokens and CUT in metadata.model:
            model = model | {CUT: metadata.model[CUT]}
        expected, got = fingerprint(metadata.model)[:8], fingerprint(model)[:8]
        if expected != got:
            raise RequestError(
                f"--embeddings: expected vectors of the index's model, {metadata.name} ({expected}), got another's "
                f"({got}) {other}"
            )


# ------------------------------------------------------------------------------------------ for `raycase embed --index`


def check_index(index: str, request: Request) -> None:
    """Raise RequestError where there is an index that has other columns than a job will write."""
    if ready := open_ready(locate(index)):
        id_type, kept = request.encoding.pairs.written_columns
        written = pa.schema({ID: id_type, CONDITION: pa.string(), **kept})
        check_output_columns(ready[0], written, request.output.root)


def index_output(index: str, output: str) -> str:
    """Index an output that is complete; returns where. Raises RequestError and WorkError."""
    try:
        return str(build(IndexFlags(embeddings=(output,), output=index))["output"])
    except (RequestError, WorkError) as error:
        said = str(error).replace("--output:", "--index:").replace("--embeddings:", "--output:")
        raise type(error)(f"{said}; the output is complete but not indexed: {output}") from error
