"""Build an index from written vectors, or add to it: vectors are scaled to length 1 and streamed into a Lance dataset.

A dot product of two vectors of an index is therefore their cosine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from raycase.corpus.manifest import read_manifest
from raycase.corpus.ray_flag import RayFlag
from raycase.corpus.tasks import OpenTasks
from raycase.corpus.written import Written, open_written
from raycase.data.fetch import model_folder
from raycase.data.lance_dataset import import_lance, is_index
from raycase.data.places import INDEX, Folder, check_paths
from raycase.data.schema import VECTOR
from raycase.data.storage import Location, fingerprint, locate
from raycase.data.stored_words import WORDS
from raycase.errors import STALL_TIMEOUT, RequestError, at_least, check_ranges, minutes_range, note
from raycase.search.build_parts import BUILD, Parts, PartSizes, RowsFile
from raycase.search.column_indices import MOST_BITS, create_index, update_indices
from raycase.search.fragments import write_in_shards
from raycase.search.index_rows import append_rows, write_rows
from raycase.search.kept import keep_conditions
from raycase.search.lance_files import lance_errors, open_newest, open_ready, publish
from raycase.search.metadata import AUTO, CUT, MOST_SHARDS, READY, IndexMetadata
from raycase.search.row_changes import compact, delete_matching, delete_same_ids
from raycase.search.word_files import check_files, remove_unused, sketches_of

if TYPE_CHECKING:
    from lance import LanceDataset

Kind = Literal["auto", "exact", "ivf-pq", "ivf-rq", "hnsw"]


@dataclass(frozen=True, kw_only=True)
class IndexJob(RayFlag):
    """Index the vectors that `raycase embed` wrote, for `raycase search`.

    Run again, or with another output of the same model, it adds the rows that the index lacks.
    """

    embeddings: tuple[str, ...] = ()
    """Outputs of `raycase embed`, all of one model: under conditions, and unconditional ones beside them."""
    output: str
    """The index: a Lance dataset, local or on object storage."""
    kind: Kind | None = None
    """exact: a search compares every vector under the condition; ivf-rq (hnsw where 8 does not divide the dimensions),
    hnsw (nine times the size, and built far slower), ivf-pq: approximate; auto: exact, and ivf-rq for conditions with
    --exact-below rows or more. Default: the index's kind, auto for a new one."""
    exact_below: int | None = None
    """Conditions with fewer rows are searched exactly by auto. Default: the index's value, 100,000 for a new one."""
    partitions: int | None = None
    """Partitions of an approximate index. Default: one per million vectors (hnsw) or per 4,096 (ivf-pq, ivf-rq)."""
    sub_vectors: int | None = None
    """Bytes that ivf-pq stores of a vector. Default: one per 4 dimensions."""
    bits: int | None = None
    """Bits that ivf-rq stores of a dimension, 1 to 9. Default: 1."""
    shards: int | None = None
    """Parts of about as many rows, each of which a search on a cluster gives to a process of its own. Default: the
    index's number, 1 for a new one. With --reindex the rows of an index are cut anew."""
    reindex: bool = False
    """Train the approximate index again, on all vectors; without it, new vectors are encoded by the index as it was
    trained."""
    delete: str | None = None
    """A filter in SQL on id and the kept columns, such as "year < 2010": the rows that it matches are deleted, under
    all conditions and without one. Indexing their output again does not bring them back."""
    replace: bool = False
    """Delete all rows of the ids that new --embeddings have, under all conditions and without one, then add the new
    rows. Give all outputs of the changed texts at once."""
    keep_condition: tuple[str, ...] = ()
    """Conditions to pool from stored words and keep: they are searched like those embedded in advance, and pooled again
    when rows with words are added."""
    model: str | None = None
    """Folder of the index's model, if it has moved; for --keep-condition."""
    overwrite: bool = False
    """Build from scratch; the former index is searched until the new one is finished."""
    workers: int = 0
    """Number of processes on Ray, of one CPU each, among which the work is divided, for outputs of millions of vectors;
    0: this process does it, or with --ray as many as there are CPUs. A build on Ray that was stopped resumes when the
    same command is run again."""
    stall_timeout: float = STALL_TIMEOUT
    """Minutes without progress after which a build by tasks gives up, as when no machine is available."""


def build(job: IndexJob, many: OpenTasks | None = None, sizes: PartSizes = PartSizes()) -> dict[str, Any]:  # noqa: B008
    """Build the index or add to it, and return its counts; until all is done the former index is the one that opens.

    many: opens what runs tasks, `job.workers` at a time; without, this process does all. Raises RequestError and
    WorkError.
    """
    began = time.time()
    import_lance()
    root = locate(job.output)
    _check_job(job, root)
    sources = [open_written(uri, "--embeddings") for uri in job.embeddings]
    with lance_errors(root):
        parts = None
        if many:
            places = [("--output", root), *(("--embeddings", source.output.root) for source in sources)]
            parts = Parts(root, _fingerprint(job, sources, root), job.workers, partial(many, places), sizes)
        dataset, done, is_new = _changed(root, parts) or _change(job, sources, root, parts)
        metadata = done["metadata"]
        if is_new:
            update_indices(
                dataset,
                metadata,
                retrain=done["retrain"],
                partitions=job.partitions,
                sub_vectors=job.sub_vectors,
                bits=job.bits,
                create=parts.create_index if parts else create_index,
            )
            check_files(root, metadata)
            publish(dataset, metadata)
            remove_unused(root, dataset)
        else:
            note(f"{root.uri}: has all rows; nothing to do")
        (root / BUILD).remove()
    return {
        "rows": metadata.rows,
        "rows_added": done["added"],
        "rows_deleted": done["deleted"],
        "conditions": len(metadata.conditions),
        "unconditional_rows": metadata.plain,
        "rows_with_words": metadata.words,
        "kind": metadata.search_kind,
        "shards": metadata.shards,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _change(
    job: IndexJob, sources: Sequence[Written], root: Location, parts: Parts | None
) -> tuple[LanceDataset, RowsFile, bool]:
    """Delete and append rows, and record it where the build is one of parts: the dataset, whose indices are yet to be
    brought up to date, the record, and whether anything changed."""
    dataset, metadata = _open_or_begin(job, sources, root)
    rows, trained, settings = metadata.rows, metadata.approximate_kind, _settings(metadata)
    cut = job.shards not in (None, metadata.shards)
    metadata.kind, metadata.exact_below = job.kind or metadata.kind, job.exact_below or metadata.exact_below
    metadata.shards = job.shards or metadata.shards
    _take_cut(sources, dataset, metadata)
    for source in sources:
        _check_source(source, metadata, job, root)
    deleted = _delete_rows(job, dataset, metadata, sources, root)
    kept = {name: metadata.conditions.get(name) for name in metadata.kept}
    for source in sources:
        dataset = append_rows(dataset, source, metadata, root, parts.write if parts else write_rows)
    clash = next((name for name, count in kept.items() if metadata.conditions.get(name) != count), None)
    if clash is not None:
        raise RequestError(
            f"--embeddings: expected no vectors under {clash!r}, which {root.uri} keeps from its stored words, got "
            "some; choose another index, or pass --overwrite"
        )
    if dataset is None:
        raise RequestError(f"--embeddings: expected vectors in {', '.join(job.embeddings)}, got none")
    dataset = keep_conditions(dataset, metadata, job.keep_condition, root, job.model)
    added = metadata.rows - rows + deleted
    is_new = bool(added or deleted or job.reindex or settings != _settings(metadata))
    if is_new:
        compact(dataset, metadata)
    if rows and cut:
        dataset = write_in_shards(dataset, metadata, root)
    done: RowsFile = {
        "added": added,
        "deleted": deleted,
        "retrain": job.reindex or trained != metadata.approximate_kind,
        "metadata": metadata,
        "version": dataset.version,
    }
    if is_new and parts:
        parts.finish_rows(done)
    return dataset, done, is_new


def _settings(metadata: IndexMetadata) -> tuple[Any, ...]:
    """What flags change of an index beside its rows."""
    return metadata.kind, metadata.exact_below, metadata.shards


def _changed(root: Location, parts: Parts | None) -> tuple[LanceDataset, RowsFile, bool] | None:
    """`_change` as an earlier run of the same build left it; None where rows are missing."""
    done = parts.finished_rows() if parts else None
    newest = open_newest(root) if done else None
    if done is None or newest is None:
        return None
    dataset = newest.checkout_version(done["version"])
    if dataset.version != newest.version:  # indices that were committed are built again from their parts
        dataset.restore()
    return open_newest(root), done, True


def _fingerprint(job: IndexJob, sources: Sequence[Written], root: Location) -> str:
    """Of all that decides what a build makes: the published index, the outputs, the flags."""
    newest = open_newest(root)
    ready = newest.tags.list().get(READY) if newest is not None else None
    without = ["ray", "workers", "stall_timeout", "model", "output", *(["shards"] if job.shards is None else [])]
    flags = {k: v for k, v in asdict(job).items() if k not in without}
    manifests = [source.output.manifest.read_json()["manifest_files_sha256"] for source in sources]
    return fingerprint([ready and ready["version"], manifests, flags])


def _open_or_begin(
    job: IndexJob, sources: Sequence[Written], root: Location
) -> tuple[LanceDataset | None, IndexMetadata]:
    """The index to add to and its metadata; None and fresh metadata for a new index."""
    newest = open_newest(root)
    if newest is not None and not is_index(newest):
        raise RequestError(
            f"--output: expected an index of `raycase index` or a new folder, got a Lance dataset in {root.uri}"
        )
    ready = None if job.overwrite else open_ready(root)
    if ready is None:
        for flag in _deleting_flags(job):
            raise RequestError(
                f"{flag}: expected a finished index at {root.uri}, got none; build it with --embeddings alone"
            )
        if not sources:
            raise RequestError("--embeddings: expected an output of `raycase embed` for a new index, got none")
        config = sources[0].job.config
        name = read_manifest(sources[0].output)["model"]["name"]
        return None, IndexMetadata(model=config["model"], name=name, dtype=config["dtype"], sketches={}, auto=AUTO)
    if not job.reindex and (job.partitions or job.sub_vectors or job.bits):
        raise RequestError(
            f"--reindex: expected it beside --partitions, --sub-vectors and --bits, for {root.uri} is trained"
        )
    dataset, metadata = ready
    if job.shards not in (None, metadata.shards) and not job.reindex:
        raise RequestError(
            f"--shards: expected {metadata.shards}, as {root.uri} has, or --reindex beside another number, got "
            f"{job.shards}"
        )
    if dataset.version != dataset.latest_version:  # a killed build appended rows that were not published
        dataset.restore()
        dataset = open_newest(root)
    if metadata.sketches is None:
        metadata.sketches = sketches_of(dataset, metadata)
    return dataset, metadata


def _deleting_flags(job: IndexJob) -> list[str]:
    """The flags given that delete rows."""
    return ["--delete"] * (job.delete is not None) + ["--replace"] * job.replace


def _delete_rows(
    job: IndexJob, dataset: LanceDataset | None, metadata: IndexMetadata, sources: Sequence[Written], root: Location
) -> int:
    """Delete what --delete matches and what --replace replaces, before anything is appended; returns how many rows."""
    if dataset is None:
        return 0
    deleted = 0 if job.delete is None else delete_matching(dataset, metadata, job.delete, root)
    deleted += delete_same_ids(dataset, metadata, sources) if job.replace else 0
    if deleted:
        metadata.sketches = sketches_of(dataset, metadata)
    return deleted


def _check_job(job: IndexJob, root: Location) -> None:
    check_paths(
        opens={"--embeddings": job.embeddings, "--model": model_folder(job.model)},
        writes={"--output": Folder(job.output, ("data", INDEX), mark=INDEX)},
    )
    if job.replace and not job.embeddings:
        raise RequestError("--replace: expected --embeddings beside it, got none; name the outputs of the new rows")
    for flag in _deleting_flags(job):
        if job.overwrite:
            raise RequestError(f"{flag}: expected no --overwrite beside it, got both; choose one")
    ranges = {"workers": (job.workers >= 0, "at least 0"), "stall_timeout": minutes_range(job.stall_timeout)}
    check_ranges(job, ranges | at_least(1, job, "partitions", "sub_vectors", "exact_below"))
    check_ranges(job, at_least(1, job, "shards", most=MOST_SHARDS) | at_least(1, job, "bits", most=MOST_BITS))
    if root.is_local and root.exists():
        if not root.fs.isdir(root.path):
            raise RequestError(f"--output: expected a folder for the index, got the file {root.uri}")
        others = [name for name in os.listdir(root.path) if name != "data" and not name.startswith("_")]
        if others:
            raise RequestError(f"--output: expected an index or a new folder, got {others[0]} in {root.uri}")


def _take_cut(sources: Sequence[Written], dataset: LanceDataset | None, metadata: IndexMetadata) -> None:
    """An index that never had conditional vectors or words takes the cut of the first that come."""
    cut = [source.job.config["model"] for source in sources if not source.unconditional or source.has_words]
    had = () if dataset is None else dataset.schema.names
    if cut and CUT in cut[0] and VECTOR not in had and WORDS not in had:
        metadata.model = metadata.model | {CUT: cut[0][CUT]}


def _check_source(source: Written, metadata: IndexMetadata, job: IndexJob, root: Location) -> None:
    """Raise RequestError for an output of another model, or vectors that --sub-vectors does not divide."""
    model = source.job.config["model"]
    if source.unconditional and not source.has_words and CUT in metadata.model:
        model = model | {CUT: metadata.model[CUT]}
    expected, got = fingerprint(metadata.model)[:8], fingerprint(model)[:8]
    if expected != got:
        raise RequestError(
            f"--embeddings: expected vectors of the index's model, {metadata.name} ({expected}), got another's ({got}) "
            f"in {source.output.root.uri}; choose another index than {root.uri}, or pass --overwrite"
        )
    dim = read_manifest(source.output)["model"]["dim"]
    if job.sub_vectors and dim % job.sub_vectors:
        raise RequestError(f"--sub-vectors: expected a divisor of {dim} dimensions, got {job.sub_vectors}")
