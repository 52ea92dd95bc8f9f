"""Vectors where the rows are: columns of the Lance dataset that a job reads, one for each condition.

Beside a column of vectors stands one of fingerprints, the hashes of the texts that the vectors are of. Rows whose text
has another, or none, are staged in a hidden folder beside the dataset; a job embeds them there; and by fingerprint the
rows of the newest version get the vectors of their texts, whatever was appended, deleted, updated or compacted
meanwhile.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import compress
from random import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import MOST, MOST_LABEL, RequestError, WorkError, check_problems, note, visible
from raycase.io.inputs import list_input, peek
from raycase.io.lance_dataset import METADATA_KEY, import_lance, is_index, lance_place, lance_reason
from raycase.io.locks import held
from raycase.io.schema import (
    CONDITION,
    EMBEDDING,
    ID,
    OF_LANCE,
    TEXT,
    embedding_array,
    embedding_numbers,
    embedding_type,
    find_columns,
    parquet_bytes,
    parquet_table,
)
from raycase.io.source import InputFile
from raycase.io.storage import Location, fingerprint, locate
from raycase.job.manifest import read_manifest
from raycase.job.output import Output
from raycase.job.plan import difference
from raycase.job.request import Request
from raycase.job.run import COUNTS, UnfitError, run
from raycase.job.runner import Runner
from raycase.job.verify import read_rows

if TYPE_CHECKING:
    from lance import LanceDataset

OF_TEXT = "_fingerprint"  # behind the name of a column of vectors: the name of that of fingerprints
FINGERPRINT, KEY = "fingerprint", "key"  # columns of staged rows; key: the id of the row in the dataset
BYTES = 16  # of a fingerprint
NULL = blake2b(person=b"null", digest_size=BYTES).digest()  # of no text
OF_ROWS = "text_column id_column types keep_columns condition_column conditions unconditional taught".split()  # noqa: SIM905
STAGED_ROWS, COMMIT_ROWS = 2**16, 2**20  # of a file, and of a commit, unless a fragment has more
CONFLICTS = 30  # commits in a row that others came before


@dataclass(frozen=True, kw_only=True)
class Target:
    """A Lance dataset, and what a request, whose files do not count, writes into columns of these names."""

    root: Location
    request: Request
    names: tuple[str, ...]
    text: str
    id: str | None

    @staticmethod
    def folder_of(root: Location) -> Location:
        """The folder of the jobs, which listings of inputs leave out."""
        folder, name = posixpath.split(root.path)
        return Location(root.fs, f"{folder}/.{name}.raycase")

    @cached_property
    def columns(self) -> dict[str, dict[str, Any]]:
        """What decides the vectors of each column."""
        conditions, config = self.request.encoding.pairs.conditions or (None,), self.request.config
        names, got = [*self.names, *(name + OF_TEXT for name in self.names)], f"got {', '.join(self.names)}"
        odd = any(not name or {*name} & {*".`\0"} or name in OF_LANCE for name in names)
        expected = f"--into: expected a column for each condition, {len(conditions)}, {got}"
        free = f"--into: expected names without dots and backticks, none twice or with {OF_TEXT} of another, {got}"
        check_problems({expected: len(self.names) != len(conditions), free: odd or len({*names}) < len(names)})
        of = {name: value for name, value in config.items() if name not in OF_ROWS} | {"text_column": self.text}
        taught = config.get("taught", {})
        each = [of | {CONDITION: one} | ({"taught": taught[one]} if one in taught else {}) for one in conditions]
        return dict(zip(self.names, json.loads(json.dumps(each, default=str)), strict=True))

    def open(self) -> LanceDataset:
        """The newest version."""
        dataset = import_lance().dataset(**lance_place(self.root))
        if is_index(dataset):
            raise RequestError(f"--into: expected rows, got the index {self.root.uri}; pass what it was made of")
        return dataset

    def key(self, dataset: LanceDataset) -> list[str]:
        """The column of the ids, by which people know rejected rows; nothing else needs them."""
        return [name for name in [self.id or ID] if name in dataset.schema.names]


def embed_into(target: Target, runner: Callable[[], Runner]) -> dict[str, Any]:
    """Finish what a killed run has staged, then stage and embed the rows that lack vectors of their texts; returns the
    counts of this run."""
    began, rejected, folder = time.time(), list[str](), target.folder_of(target.root)
    counts = Counter(dict.fromkeys((*COUNTS, "rows_written"), 0))
    with held(folder, "lock", WorkError(f"{target.root.uri}: another run fills its columns; run again when it ended")):
        with _lance_errors(target.root):
            _retried(target, partial(_add_columns, target))
        for staged in (_left_behind, _stage):
            with _lance_errors(target.root):
                records = staged(target, folder)
            for record in records:
                counts.update(_finish(target, record, runner(), rejected))
        with _lance_errors(target.root):
            dataset = target.open()
            left = sum(int(lacks_NC.any(1).sum()) for *_, lacks_NC in _scan(dataset, target, target.names))
    if left:
        note(f"{left:,} rows are new, changed or beyond --limit: the same command embeds them")
    ends = {"rows_left": left, "version": dataset.version, "seconds": round(time.time() - began, 3)}
    return {**counts, **ends, "into": target.root.uri, "columns": [*target.names], "rejected": rejected}


@contextmanager
def _lance_errors(root: Location) -> Iterator[None]:
    """Raise errors of Lance in one line: RequestError for what it refuses, WorkError for a store that fails."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, (RequestError, WorkError)):
            raise
        refused = isinstance(error, ValueError) or "Not supported" in str(error)
        expected = f"--into: expected a Lance dataset that takes columns at {root.uri}"
        advice = "; embed to an --output instead" if refused else "; run the same command again"
        raise (RequestError if refused else WorkError)(f"{expected}, got: {lance_reason(error)}{advice}") from error


def _retried(target: Target, commit: Callable[[], bool]) -> None:
    """Call until it gives False: at once where there is more to commit, and a little later after a conflict."""
    from lance.commit import CommitConflictError

    tries = 0
    while tries < CONFLICTS:
        try:
            if not commit():
                return
            tries = 0
        except CommitConflictError:
            tries += 1
            time.sleep(random() * min(2.0, 0.02 * 2**tries))
    raise WorkError(f"{target.root.uri}: expected a commit, got {CONFLICTS} conflicts in a row; run the command again")


def _add_columns(target: Target) -> bool:
    """Add those that are not there, of nulls; with --overwrite, drop them first. Raises RequestError for others'."""
    of, dataset = target.request.encoding, target.open()
    find_columns(dataset.schema, target.root.uri, text=target.text, id=target.id, condition=None, keep=())
    fields, new, old = {field.name: field for field in dataset.schema}, list[pa.Field](), list[str]()
    written = embedding_type(of.dim, of.result.config["dtype"])
    again = "; choose another name, or pass --overwrite to drop the column and embed all rows"
    for name, identity in target.columns.items():
        types = {name: pa.list_(written.value_type, written.list_size), name + OF_TEXT: pa.binary(BYTES)}
        marks = {each: _mark(fields[each]) for each in types if each in fields}
        for each, known in marks.items():
            fits = known and (target.request.overwrite or fields[each].type == types[each])
            wanted = f"--into: expected no column {each!r}, or {types[each]} that raycase wrote"
            got = f"got {fields[each].type}{'' if known else ' of others'}"
            check_problems({f"{wanted}, {got}; choose another name or drop the column": not fits})
        if target.request.overwrite or not marks:
            old += marks
            new += [pa.field(each, types[each], metadata={METADATA_KEY: json.dumps(identity)}) for each in types]
        elif len(marks) == 1:
            raise RequestError(f"--into: expected {' and '.join(types)}, got {next(iter(marks))} alone{again}")
        elif marks[name] != identity:
            got = visible(difference(marks[name], identity), MOST_LABEL)
            raise RequestError(f"--into: expected vectors of this model and condition in {name!r}, got {got}{again}")
    if old:
        dataset.drop_columns(old)
    if new:
        dataset.add_columns(pa.schema(new))
    return False


def _mark(field: pa.Field) -> Any:
    """What decides the vectors of a column that this module wrote, else None."""
    return json.loads((field.metadata or {}).get(METADATA_KEY.encode(), b"null"))


def _scan(
    dataset: LanceDataset, target: Target, names: Iterable[str], **options: Any
) -> Iterator[tuple[pa.RecordBatch, pa.Array, np.ndarray]]:
    """Batches of rows, the fingerprints of their texts, and which of these columns are of others: (N, C) bool."""
    of = [name + OF_TEXT for name in names]
    columns = dict.fromkeys([target.text, *target.key(dataset), *of])
    for batch in dataset.scanner(columns=[*columns], with_row_id=True, **options).to_batches():
        texts = batch[target.text].cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        prints = [NULL if text is None else blake2b(text, digest_size=BYTES).digest() for text in texts]
        found = pa.array(prints, pa.binary(BYTES))
        yield batch, found, np.stack([_hashes(batch[name]) != _hashes(found) for name in of], 1)


def _hashes(prints: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Fingerprints as numbers are, compared and sorted: (N,). Null is like no other."""
    return np.array([each or b"" for each in prints.to_pylist()], f"S{BYTES}")


# ------------------------------------------------------------------------------------------------------- staged rows


def _of(record: Location, name: str) -> Location:
    """The folder of staged rows, or of their job's output; "": that of both."""
    return Location(record.fs, posixpath.join(record.path.removesuffix(".json"), name).rstrip("/"))


def _left_behind(target: Target, folder: Location) -> list[Location]:
    """The records of rows that an earlier run staged for these columns; those not staged to the end are removed."""
    found = []
    for record in (folder / name for name in sorted(folder.list()) if name.endswith(".json")):
        values = record.read_json()
        if values["columns"].keys() & target.columns.keys() and (target.request.overwrite or not values["rows"]):
            _of(record, "").remove()
            record.remove()
        elif values["columns"].items() <= target.columns.items():
            found.append(record)
    return found


def _stage(target: Target, folder: Location) -> list[Location]:
    """Stage the rows of the newest version that lack vectors, apart by the columns that they lack; their records."""
    dataset, left = target.open(), target.request.limit or MOST
    records: dict[Location, dict[str, Any]] = {}
    waiting: dict[Location, list[pa.Table]] = {}

    def put(record: Location, least: int) -> None:
        tables, values = waiting[record], records[record]
        if sum(map(len, tables)) >= least:  # none, where the last rows filled a file
            rows = pa.concat_tables(tables)
            ids = pa.array(np.arange(values["rows"], values["rows"] + len(rows)))
            file = _of(record, "rows") / f"{values['rows']:012d}.parquet"
            file.put(parquet_bytes(rows.append_column(ID, ids)))
            values["rows"] += len(rows)
            waiting[record] = []

    for batch, found, lacks_NC in _scan(dataset, target, target.names):
        for lacks_C in np.unique(lacks_NC[lacks_NC.any(1)], axis=0):
            at = np.flatnonzero((lacks_NC == lacks_C).all(1))[:left]
            left -= len(at)
            columns = dict(compress(target.columns.items(), lacks_C))
            record = folder / f"{fingerprint([columns, dataset.version])[:16]}.json"
            if record not in records:
                _of(record, "").remove()
                records[record] = {"columns": columns, "rows": 0}
                record.put_json(records[record])
            table = {TEXT: batch[target.text].cast(pa.string()), FINGERPRINT: found}
            table.update((KEY, batch[name]) for name in target.key(dataset))
            waiting.setdefault(record, []).append(pa.table(table).take(at))
            put(record, STAGED_ROWS)
    for record, values in records.items():
        put(record, 1)
        record.put_json(values)
    return [record for record, values in records.items() if values["rows"]]


# ------------------------------------------------------------------------------------------------- vectors into rows


def _finish(target: Target, record: Location, runner: Runner, rejected: list[str]) -> dict[str, int]:
    """Run or resume the job of staged rows, and write its vectors into the dataset; what it rejected stays here."""
    staged, of, output = record.read_json(), target.request.encoding, Output(_of(record, "out").uri)
    names = [*staged["columns"]]
    files = list_input(_of(record, "rows").uri).files
    schema = peek(files[0])
    keep = [name for name in (FINGERPRINT, KEY) if name in schema.names]
    columns = find_columns(schema, files[0].uri, text=TEXT, id=ID, condition=None, keep=keep)
    conditions = of.pairs.conditions and tuple(target.columns[name][CONDITION] for name in names)
    encoding = replace(of, pairs=replace(of.pairs, columns=columns, conditions=conditions))
    job = replace(target.request, encoding=encoding, files=files, output=output)
    result = run(replace(job, limit=None, overwrite=False, max_rejected=1.0), runner)
    counts = {name: result[name] for name in COUNTS}
    with _lance_errors(target.root):
        vectors = _Vectors(output, dict(zip(names, conditions or (None,), strict=True)), files)
        dataset, rejects = target.open(), counts["rows_rejected"]
        if rejects > (most := target.request.max_rejected) * (rows := dataset.count_rows()):
            # of a run before, perhaps: those that were changed or deleted since do not count
            scan = _scan(dataset, target, names)
            rejects = sum(vectors.rejected(found.filter(pa.array(lacks_NC.any(1)))) for _, found, lacks_NC in scan)
        if rejects > most * rows:
            raise UnfitError(
                f"--into: expected at most {most:.2%} of {rows:,} rows rejected, got {rejects:,}, and "
                f"no vectors were written; see {output.rejected.uri}, or pass --max-rejected",
                result,
            )
        counts["rows_written"] = 0
        _retried(target, partial(_write, target, vectors, counts, set()))
    record.put_json(staged | {"rows": 0})  # killed here, it is removed as if it had never been staged to the end
    for place in (_of(record, "rows"), output.units if counts["rows_rejected"] else _of(record, ""), record):
        place.remove()
    rejected += [output.rejected.uri] * bool(counts["rows_rejected"])
    return counts


def _write(target: Target, vectors: _Vectors, counts: dict[str, int], done: set[int]) -> bool:
    """Commit columns of fragments that are not done, of about `COMMIT_ROWS` rows; whether there are more.

    Lance lets appends pass, and refuses the commit where one of these fragments has changed since it was read.
    """
    lance, dataset = import_lance(), target.open()
    fields = {field.name: field for field in dataset.schema}
    for name in vectors.under:
        pair = [name in fields and _mark(fields[name]) for name in (name, name + OF_TEXT)]
        if target.text not in fields or pair != [target.columns[name]] * 2:
            got = "got it dropped, renamed or begun anew meanwhile; run the same command again"
            raise WorkError(f"{target.root.uri}: expected the column {name!r} beside {target.text!r}, {got}")
    todo = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id not in done]
    sizes = np.cumsum([fragment.metadata.num_rows for fragment in todo])
    some = todo[: 1 + int(np.searchsorted(sizes, COMMIT_ROWS))]
    updated, changed, offsets, rows = [], set[int](), {}, 0
    for fragment in some:
        found, ids = [pa.array([], pa.binary(BYTES))], [pa.array([], pa.uint64())]
        for batch, prints, lacks_NC in _scan(dataset, target, vectors.under, fragments=[fragment]):
            lacks = pa.array(lacks_NC.any(1))
            found.append(prints.filter(lacks))
            ids.append(batch["_rowid"].filter(lacks))
        if len(columns := vectors.of(pa.concat_arrays(found), pa.concat_arrays(ids), dataset.schema)):
            metadata, modified, offsets[fragment.fragment_id] = fragment.update_columns(columns, with_offsets=True)
            updated.append(metadata)
            changed.update(modified)
            rows += len(columns)
    if updated:
        operation = lance.LanceOperation.Update(
            updated_fragments=updated,
            fields_modified=sorted(changed),
            update_mode="rewrite_columns",
            updated_fragment_offsets=offsets,
        )
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    done.update(fragment.fragment_id for fragment in some)
    counts["rows_written"] += rows
    return len(some) < len(todo)


class _Vectors:
    """What a job made of staged texts, found by fingerprint: 32 bytes a row are in memory, vectors where they are used.

    under: the condition of each column.
    """

    def __init__(self, output: Output, under: dict[str, str | None], staged: Sequence[InputFile]) -> None:
        _, lines = read_manifest(output)
        self.under, self.folder = under, output.units
        self.files = [(line["name"], line["sha256"]) for line in lines.to_pylist() if line["rows_out"]]
        first = next(iter(under.values()))
        tables = [self._rows(unit, first, FINGERPRINT) for unit in range(len(self.files))]
        tables += [parquet_table(locate(file.uri).read(), [FINGERPRINT])[FINGERPRINT] for file in staged]
        found = [_hashes(column) for column in tables]
        units = [*range(len(self.files)), *[-1] * len(staged)]  # -1: rejected, unless a unit before has it
        order = np.argsort(np.concatenate(found), kind="stable")
        self.hash_R = np.concatenate(found)[order]
        self.unit_R = np.repeat(units, [*map(len, found)])[order]
        self.row_R = np.concatenate([np.arange(len(each)) for each in found])[order]

    def _rows(self, unit: int, condition: str | None, column: str) -> pa.ChunkedArray:
        """A column of the rows of a unit under a condition."""
        name, sha256 = self.files[unit]
        rows = read_rows(self.folder / name, sha256, [column, CONDITION])
        return (rows if condition is None else rows.filter(pc.equal(rows[CONDITION], condition)))[column]

    def _find(self, prints: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Which of these fingerprints the job knows, (N,) bool, and where these are: (K,)."""
        hash_N = _hashes(prints)
        at_N = np.minimum(np.searchsorted(self.hash_R, hash_N), len(self.hash_R) - 1)
        is_known = self.hash_R[at_N] == hash_N
        return is_known, at_N[is_known]

    def rejected(self, prints: pa.Array) -> int:
        """How many of these fingerprints are of texts that the job rejected."""
        return int((self.unit_R[self._find(prints)[1]] < 0).sum())

    def of(self, prints: pa.Array, ids: pa.Array, schema: pa.Schema) -> pa.Table:
        """The columns of the rows with these fingerprints that the job knows, null where it rejected them."""
        is_known, at = self._find(prints)
        columns: dict[str, Any] = {"_rowid": ids.filter(pa.array(is_known))}
        for name, condition in self.under.items():
            type_ = schema.field(name).type
            vectors_KD = np.zeros((len(at), type_.list_size), type_.value_type.to_pandas_dtype())
            for unit in np.unique(self.unit_R[at]).tolist():
                if unit >= 0:
                    mine = self.unit_R[at] == unit
                    rows_UD = embedding_numbers(self._rows(unit, condition, EMBEDDING))
                    vectors_KD[mine] = rows_UD[self.row_R[at][mine]]
            columns[name] = embedding_array(vectors_KD, self.unit_R[at] < 0).cast(type_)
            columns[name + OF_TEXT] = prints.filter(pa.array(is_known))
        return pa.table(columns)
