"""Build an index from written vectors, or add to it: vectors are scaled to length 1 and streamed into a Lance dataset.

A dot product of two vectors of an index is therefore their cosine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raycase.errors import RequestError, WorkError, note
from raycase.index.approximate import searched_by, update_indices
from raycase.index.index_rows import (
    append_rows,
    check_output_columns,
    delete_matching,
    delete_same_ids,
    keep_conditions,
)
from raycase.index.lance_files import (
    CUT,
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
from raycase.index.vector_index import VectorIndexType
from raycase.io.lance_dataset import import_lance, is_index
from raycase.io.locks import held, mark_of
from raycase.io.schema import CODES, CONDITION, ID, VECTOR
from raycase.io.storage import Location, fingerprint, locate
from raycase.job.finished_output import FinishedOutput, open_written
from raycase.job.manifest import read_manifest
from raycase.job.results import CHUNKED
from raycase.names import Language

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.job.request import Request


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
) -> dict[str, Any]:
    """Build the index or add to it, and return its counts; until all is done the former index is the one that opens.
    The arguments are those of `raycase index`.

    Raises RequestError, and WorkError, also where another build of the index is at work.
    """
    began = time.time()
    import_lance()
    root = locate(output)
    sources = [open_written(uri, "--embeddings") for uri in embeddings]
    with lance_errors(root), held(root, "_building.lock", other_build(root)):
        former = mark_of(root / READY_FILE)
        ready = _open_ready(root, overwrite=overwrite)
        if ready is None:
            for flag in ["--delete"] * (delete is not None) + ["--replace"] * replace:
                raise RequestError(
                    f"{flag}: expected a finished index at {root.uri} and no --overwrite beside it, got "
                    f"{'both' if overwrite else 'none'}; build it with --embeddings alone"
                )
        elif shards not in (None, ready[1].shards):
            raise RequestError(
                f"--shards: expected {ready[1].shards}, as {root.uri} has, or --overwrite beside another number, got "
                f"{shards}"
            )
        dataset, metadata = ready or (None, _new_metadata(sources))
        if dataset is not None and (not root.is_local or dataset.version != dataset.latest_version):
            dataset.restore()  # behind it may be what a killed build wrote; Lance refuses commits of others from now on
        rows, settings = metadata.rows, (metadata.vector_index, metadata.exact_below)
        metadata.vector_index = vector_index or metadata.vector_index
        metadata.exact_below, metadata.shards = exact_below or metadata.exact_below, shards or metadata.shards
        _check_sources(sources, dataset, metadata, root)
        deleted = delete_matching(dataset, metadata, delete, root) if delete is not None else 0
        deleted += delete_same_ids(dataset, metadata, sources) if replace else 0
        for source in sources:
            dataset = append_rows(dataset, source, metadata, root)
        if dataset is None:
            raise RequestError(f"--embeddings: expected vectors in {', '.join(embeddings)}, got none")
        dataset = keep_conditions(dataset, metadata, keep_condition, root, model)
        added = metadata.rows - rows + deleted
        has_new_words = bool(text_index or text_language) and update_text_index(
            dataset, text_language, metadata.text_column
        )
        if added or deleted or has_new_words or settings != (metadata.vector_index, metadata.exact_below):
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
        "vector_index": searched_by(dataset, metadata),
        "shards": metadata.shards,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _open_ready(root: Location, *, overwrite: bool) -> tuple[LanceDataset, IndexMetadata] | None:
    """The index to add to and its metadata; None for a new one. Raises RequestError where the folder has something
    else."""
    there = os.listdir(root.path) if root.is_local and root.exists() else []
    if others := [name for name in there if name != "data" and not name.startswith("_")]:
        raise RequestError(f"--output: expected an index or a new folder, got {others[0]} in {root.uri}")
    newest = open_newest(root)
    if newest is not None and not is_index(newest):
        raise RequestError(
            f"--output: expected an index of `raycase index` or a new folder, got a Lance dataset in {root.uri}"
        )
    return None if overwrite else open_ready(root)


def _new_metadata(sources: Sequence[FinishedOutput]) -> IndexMetadata:
    """The metadata of a new index. Raises RequestError without an output."""
    if not sources:
        raise RequestError("--embeddings: expected an output of `raycase embed` for a new index, got none")
    config = sources[0].job_file.config
    name = read_manifest(sources[0].output)["model"]["name"]
    return IndexMetadata(model=config["model"], name=name, dtype=config["dtype"], chunk=config.get(CHUNKED, []))


def _check_sources(
    sources: Sequence[FinishedOutput], dataset: LanceDataset | None, metadata: IndexMetadata, root: Location
) -> None:
    """Raise RequestError for an output of another model, or cut otherwise: the same id would be another chunk. The
    first conditional vectors or tokens give the dimension to which all are cut."""
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
        return str(build(index, [output])["output"])
    except (RequestError, WorkError) as error:
        message = str(error).replace("--output:", "--index:").replace("--embeddings:", "--output:")
        raise type(error)(f"{message}; the output is complete but not indexed: {output}") from error
