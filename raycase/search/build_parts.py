"""An index built by many: parts of its rows and of its indices, which tasks make apart, and what is already made.

Knows no Ray: what runs the tasks is an argument. A task puts the record of its part, in one atomic put,
once the part is whole; a build that is run again makes the missing parts alone. Lance knows nothing of parts before the
driver commits them, so what a killed task leaves behind is in no index.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from raycase.corpus.job_record import read_job
from raycase.corpus.listing import UnitFile
from raycase.corpus.output import output_at
from raycase.corpus.resume import run_files
from raycase.corpus.tasks import Tasks
from raycase.corpus.written import Written
from raycase.data.json_values import from_json
from raycase.data.lance_dataset import import_lance, lance_uri, storage_options
from raycase.data.schema import CONDITION, PLAIN, VECTOR
from raycase.data.storage import Location, fingerprint, locate
from raycase.search.column_indices import HNSW, IndexSpec, create_index
from raycase.search.fragments import MOST_FRAGMENT_ROWS
from raycase.search.index_rows import RowFormat, write_rows
from raycase.search.join_parts import cut_files, cut_finer
from raycase.search.metadata import IndexMetadata

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset
    from lance.dataset import Index as Segment

T = TypeVar("T")
BUILD = "_build"  # folder in the index while it is built; Lance leaves it alone
RECORD, ROWS = "record.json", "rows.json"
SAMPLE, VALUES = "sample.safetensors", "values"
CODES = 256  # of a product quantizer's byte
SAMPLE_RATE = 256  # vectors for each centroid that is trained, as Lance takes by default


@dataclass(frozen=True, kw_only=True)
class PartSizes:
    """How a build is cut."""

    part_rows: int = 2**17  # most rows of a part
    parts_a_worker: int = 4  # least
    graph_rows: int = 2**20  # most rows of a graph of HNSW; a search goes through all graphs
    vectors_apart: int = 2**16  # from so many vectors on, an approximate index is built by many
    values_apart: int = 2**22  # from so many rows on, a scalar index is


class RecordFile(TypedDict):
    """What decides the parts of a build."""

    fingerprint: str
    workers: int


class RowsFile(TypedDict):
    """What the rows of a build are, once all are in the dataset of this version."""

    added: int
    deleted: int
    retrain: bool
    metadata: IndexMetadata
    version: int


def _read(kind: type[T], file: Location) -> T | None:
    """A record of a build; None where it is missing or nonsense, as if nothing were made."""
    try:
        return from_json(kind, file.read_json()) if file.exists() else None
    except ValueError:
        return None


class Parts:
    """The parts of one build. The folder `_build` of the index keeps them until it is published."""

    def __init__(
        self, root: Location, print_: str, workers: int, open_tasks: Callable[[], Tasks], sizes: PartSizes
    ) -> None:
        """print_: fingerprint of what decides the parts; another build's are removed when the first is made.

        open_tasks: called where there is a part to make."""
        self.root, self.folder, self.open_tasks, self.sizes = root, root / BUILD, open_tasks, sizes
        self.record: RecordFile = {"fingerprint": print_, "workers": workers}
        earlier = _read(RecordFile, self.folder / RECORD)
        self.is_begun = earlier is not None and earlier["fingerprint"] == print_
        if earlier and self.is_begun:
            self.record = earlier

    @property
    def workers(self) -> int:
        """Tasks at a time when the build began: they decide how it is cut."""
        return int(self.record["workers"])

    def finished_rows(self) -> RowsFile | None:
        """What an earlier run recorded once all rows were in the dataset."""
        return _read(RowsFile, self.folder / ROWS) if self.is_begun else None

    def finish_rows(self, rows: RowsFile) -> None:
        """Record that all rows are in the dataset."""
        self._begin()
        (self.folder / ROWS).put_json(rows | {"metadata": asdict(rows["metadata"])})

    def write(self, source: Written, form: RowFormat) -> list[FragmentMetadata]:
        """`write_rows`, by many."""
        files = cut_finer(cut_files(source, self.sizes.part_rows), self.sizes.parts_a_worker * self.workers)
        decides = [source.job.fingerprint, files, str(form.schema), form.max_field_id, form.sketch]
        decides += [] if form.fragment_rows == MOST_FRAGMENT_ROWS else [form.fragment_rows]
        place = f"rows-{fingerprint(decides)[:16]}"
        work = partial(write_part, form=form, output=source.output.root.uri, place=place)
        tasks = [{"part": part, "files": source.summed(names)} for part, names in enumerate(files)]
        from_json = import_lance().FragmentMetadata.from_json
        return [from_json(json.dumps(one)) for part in self._made(place, work, tasks, "written") for one in part]

    def create_index(self, dataset: LanceDataset, spec: IndexSpec) -> None:
        """`create_index`, by many: segments of a group of fragments each. Graphs stay apart, for Lance would build a
        merged one anew; scalar ones are merged. Of IVF_PQ the model is trained by many, and the vectors are coded here:
        segments of a part of the fragments found fewer neighbours with the same model."""
        least = self.sizes.vectors_apart if spec.partitions else self.sizes.values_apart
        rows = _rows_by_fragment(dataset, spec.column)
        count = max(-(-spec.rows // self.sizes.graph_rows), self.workers)
        groups = _groups(rows, count if spec.type == HNSW else self.sizes.parts_a_worker * count)
        alone = spec.type == "IVF_RQ"  # its codes are not trained: one process is done in no time
        if alone or spec.rows < least or len(groups) < 2 or not _can_sample(spec):
            create_index(dataset, spec)
            return
        files = [file.path for fragment in dataset.get_fragments() for file in fragment.data_files()]
        place = f"index-{fingerprint([files, asdict(spec), groups])[:16]}"
        if spec.type == HNSW:
            spec = replace(spec, partitions=1)  # of each graph
        if spec.type == "IVF_PQ":
            create_index(dataset, spec, self._trained(dataset, spec, place))
            return
        work = partial(index_part, index=self.root.uri, version=dataset.version, spec=spec, place=place)
        tasks = [{"part": part, "fragments": fragments} for part, fragments in enumerate(groups)]
        made = self._made(place, work, tasks, f"indexed {spec.column}:")
        segments = [_segment(values) for values in made]
        if spec.type != HNSW:
            segments = [dataset.merge_existing_index_segments(segments)]
        dataset.commit_existing_index_segments(spec.name, spec.column, segments)

    def _trained(self, dataset: LanceDataset, spec: IndexSpec, place: str) -> dict[str, pa.Array]:
        """The model of IVF_PQ: its partitions are trained here, and the codes of the product quantizer, which take
        longest, by many: those of a sub-vector depend on no other."""
        centroids = self.folder / place / "centroids.safetensors"
        if not centroids.exists():
            (self.folder / place / SAMPLE).put(_bytes(_sample(dataset, spec)))
            rate = min(SAMPLE_RATE, spec.rows // spec.partitions)
            trained = _builder(dataset, spec.column).train_ivf(spec.partitions, distance_type="dot", sample_rate=rate)
            centroids.put(_bytes(_rows_of(trained.centroids)))
        assert spec.sub_vectors is not None
        slices = np.array_split(np.arange(spec.sub_vectors), min(spec.sub_vectors, 2 * self.workers))
        work = partial(code_part, index=self.root.uri, sub_vectors=spec.sub_vectors, place=place)
        tasks = [{"part": part, "first": int(s[0]), "count": len(s)} for part, s in enumerate(slices)]
        codes = self.folder / place / "codes.safetensors"
        if not codes.exists():
            self._made(f"{place}-codes", work, tasks, "trained")
            made = [
                _array((self.folder / f"{place}-codes" / f"{part:06d}.safetensors").read())
                for part in range(len(tasks))
            ]
            codes.put(_bytes(np.concatenate(made)))
        codes_ED = _array(codes.read()).reshape(CODES, -1)
        return {"ivf_centroids": _vectors(_array(centroids.read())), "pq_codebook": _vectors(codes_ED)}

    def _made(
        self, place: str, work: Callable[..., None], tasks: Sequence[dict[str, Any]], progress: str
    ) -> list[dict[str, Any]]:
        """The records of all parts, in order, after those that are missing were made."""
        self._begin()
        by_name = {index_part_name(task["part"]): task for task in tasks}
        folder = self.folder / place

        def run(missing: list[dict[str, Any]]) -> None:
            self.open_tasks().run(work, missing, progress)

        run_files(folder, by_name, run, lambda: None, self.root, "parts")  # who holds the index, Lance says at a commit
        return [(folder / name).read_json() for name in by_name]

    def _begin(self) -> None:
        if not self.is_begun:
            self.folder.remove()
            (self.folder / RECORD).put_json(self.record)
            self.is_begun = True


# ----------------------------------------------------------------------------------------------------------- tasks


def index_part_name(part: int) -> str:
    """The name of a part's record."""
    return f"{part:06d}.json"


def write_part(*, form: RowFormat, output: str, place: str, part: int, files: Mapping[str, str]) -> None:
    """Write the rows of some files of an output, by name with their sha256, as fragments."""
    units = tuple(unit[1] for unit in map(UnitFile.parse, files) if unit)
    fragments = write_rows(replace(_opened(output), units=units, sums=files), form)
    (locate(form.index) / BUILD / place / index_part_name(part)).put_json([one.to_json() for one in fragments])


def code_part(*, index: str, sub_vectors: int, place: str, part: int, first: int, count: int) -> None:
    """Train the codes of some sub-vectors, on the sample: (count * CODES * dimensions of a sub-vector,)."""
    folder = locate(index) / BUILD
    sample_ND = _array((folder / place / SAMPLE).read())
    width = sample_ND.shape[1] // sub_vectors
    slice_ND = np.ascontiguousarray(sample_ND[:, first * width : (first + count) * width])
    table = pa.table({VECTOR: _vectors(slice_ND)})
    builder = _builder(import_lance().write_dataset(table, "memory://codes", mode="overwrite"), VECTOR)
    # The trainer always subtracts the nearest centroid, an index with a dot product never does: hence one of zeros.
    origin = import_lance().indices.IvfModel(_vectors(np.zeros_like(slice_ND[:1])), "dot")
    rate = min(SAMPLE_RATE, len(slice_ND) // CODES)
    codebook = builder.train_pq(origin, count, sample_rate=rate).codebook
    (folder / f"{place}-codes" / f"{part:06d}.safetensors").put(_bytes(codebook.flatten().to_numpy()))
    (folder / f"{place}-codes" / index_part_name(part)).put_json({"sub_vectors": count})


def index_part(*, index: str, version: int, spec: IndexSpec, place: str, part: int, fragments: Sequence[int]) -> None:
    """Build the index of some fragments' rows, as a segment that is not committed."""
    root = locate(index)
    folder = root / BUILD / place
    options: dict[str, Any] = {}
    if spec.partitions:
        options = {"metric": "dot", "num_partitions": spec.partitions, "replace": True}
    dataset = import_lance().dataset(lance_uri(root), version=version, storage_options=storage_options(root))
    segment = dataset.create_index_uncommitted(
        spec.column, spec.type, name=spec.name, fragment_ids=list(fragments), **options
    )
    (folder / index_part_name(part)).put_json(_segment_values(segment))


@cache
def _opened(output: str) -> Written:
    """An output without its units: a task is told which it takes."""
    place = output_at(output)
    return Written(output=place, job=read_job(place), units=(), sums={})


# --------------------------------------------------------------------------------------------------------- cutting


def _rows_by_fragment(dataset: LanceDataset, column: str) -> dict[int, int]:
    """Rows of each fragment that have a value in the column."""
    having = {VECTOR: f"{CONDITION} IS NOT NULL", PLAIN: f"{CONDITION} IS NULL"}.get(column)
    fragments = dataset.get_fragments()
    if having is None:
        return {one.fragment_id: one.metadata.num_rows for one in fragments}
    return {one.fragment_id: dataset.scanner(fragments=[one], filter=having).count_rows() for one in fragments}


def _groups(rows: dict[int, int], most: int) -> list[list[int]]:
    """Fragments in order, in at most so many groups of about as many rows each; no group is without rows."""
    ends = np.cumsum(list(rows.values()))
    middle = ends - np.array(list(rows.values())) / 2
    group = np.minimum((middle * most / max(1, ends[-1])).astype(int), most - 1)
    groups = {number: [one for one, of in zip(rows, group, strict=True) if of == number] for number in np.unique(group)}
    filled: list[list[int]] = []
    waiting: list[int] = []
    for fragments in groups.values():
        waiting += fragments
        if any(rows[one] for one in waiting):
            filled.append(waiting)
            waiting = []
    if filled:
        filled[-1] += waiting
    return filled


# -------------------------------------------------------------------------------------------------------- training


def _can_sample(spec: IndexSpec) -> bool:
    """Whether there are two vectors for each centroid, the least that Lance's trainer takes."""
    return spec.type != "IVF_PQ" or spec.rows >= 2 * max(CODES, spec.partitions)


def _sample(dataset: LanceDataset, spec: IndexSpec) -> np.ndarray:
    """Vectors by which codes are trained: (N, D)."""
    rows = dataset.count_rows()
    wanted = min(spec.rows, CODES * SAMPLE_RATE)
    drawn = dataset.sample(min(rows, -(-wanted * rows * 21 // (20 * spec.rows))), columns=[spec.column])
    return _rows_of(drawn[spec.column].combine_chunks().drop_null())[:wanted]


def _builder(dataset: LanceDataset, column: str) -> Any:
    import_lance()
    from lance.indices import IndicesBuilder

    return IndicesBuilder(dataset, column)


def _rows_of(vectors: pa.FixedSizeListArray) -> np.ndarray:
    return vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)


def _vectors(rows_ND: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows_ND.reshape(-1)), rows_ND.shape[1])


def _bytes(values: np.ndarray) -> bytes:
    return save({VALUES: np.ascontiguousarray(values)})


def _array(data: bytes) -> np.ndarray:
    return load(data)[VALUES]


# ------------------------------------------------------------------------------------------------ segments as JSON


def _segment_values(segment: Segment) -> dict[str, Any]:
    """What Lance says of a segment that is not committed, as JSON."""
    assert segment.index_details is not None
    return {
        "uuid": segment.uuid,
        "name": segment.name,
        "fields": list(segment.fields),
        "dataset_version": segment.dataset_version,
        "fragment_ids": list(segment.fragment_ids),
        "index_version": segment.index_version,
        "files": [[file.path, file.size_bytes] for file in segment.files or ()],
        "index_details": [segment.index_details[0], base64.b64encode(segment.index_details[1]).decode()],
    }


def _segment(values: dict[str, Any]) -> Segment:
    """The segment again."""
    import_lance()
    from lance.dataset import Index, IndexFile

    kind, details = values["index_details"]
    return Index(
        **values
        | {
            "files": [IndexFile(path, size) for path, size in values["files"]],
            "index_details": (kind, base64.b64decode(details)),
        }
    )
