"""The three steps of a unit: read, encode, write. They know nothing of what runs them.

Between steps a unit travels as ONE row of an Arrow table, its own tables inside as Arrow bytes: Ray Data splits large
blocks by rows and calls nothing for empty ones, so a unit of many rows could arrive in parts or not at all.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.corpus.output import output_at
from raycase.corpus.unit_files import ROW_OF_PAIR, write_unit
from raycase.data.columns import Columns
from raycase.data.inputs import InputFile
from raycase.data.reader import CONDITIONS, KEEP, ROW, TEXT, read_span, rejection
from raycase.data.schema import (
    CONDITION,
    EMBEDDING,
    ID,
    Reason,
    Rejection,
    embedding_array,
    output_schema,
    rejected_table,
)
from raycase.data.spans import Span
from raycase.encoder.prepared import Prepared
from raycase.encoder.rates import Work
from raycase.errors import RequestError, WorkError, first_line

if TYPE_CHECKING:
    from raycase.systems.contracts import Encoder, SystemConfig


CARRIED = (*(f.name for f in fields(Work)), "began", "seconds", "rate", "host", "read_pid", "encode_pid")
COMPILE_REPAID = 90.0  # seconds of encoding left, of which compiling saves more than it costs
CHUNK_BYTES = 2**29  # an Arrow string column holds less than 2 GiB
Piece = tuple[Span, list[tuple[int, int]]]  # a span and the row intervals of it that are wanted


def read_units(task: pa.Table, *, config: SystemConfig, settings: EncodeSettings) -> Iterator[pa.Table]:
    """A task (`task_row`) -> one row per unit: file, start, rows (Arrow), rejected (Arrow), prepared, uri, read_pid.

    Tokenised here, on CPUs and ahead of the encoder, which then never waits for it.
    """
    for entry in json.loads(task["task"][0].as_py()):
        file = InputFile(**entry["file"])
        span = Span(**entry["span"] | {"header": tuple(entry["span"]["header"])})
        wanted = [(start, end) for start, end in entry["expected"]]
        read = read_span(file, span, settings.columns, wanted)
        for start, end in wanted:
            with naming(f"reading rows {start} to {end} of {file.uri}"):
                rows, rejections = next(read)
            yield _row(
                file=span.file,
                start=start,
                rows_in=end - start,
                rows=_pack(rows),
                rejected=_pack(rejected_table(file.uri, rejections)),
                prepared=pa.array([prepare_rows(config, rows, settings).to_bytes()], pa.large_binary()),
                uri=file.uri,
                read_pid=os.getpid(),
            )


def task_row(files: Sequence[InputFile], pieces: Sequence[Piece]) -> dict[str, str]:
    """What `read_units` takes."""
    entries = [{"file": asdict(files[s.file]), "span": asdict(s), "expected": wanted} for s, wanted in pieces]
    return {"task": json.dumps(entries)}


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """What the encode step does besides encoding; `conditions` None: a condition column or none at all."""

    columns: Columns
    conditions: tuple[str, ...] | None
    unconditional: bool
    dtype: str
    on_long: str
    dim: int


class EncodeUnits:
    """A read unit -> the same unit with its vectors. Holds one model; remembers the bases it has met."""

    def __init__(
        self,
        config: SystemConfig,
        settings: EncodeSettings,
        *,
        weights: str,
        threads: int | None = None,
        batch_tokens: int | None = None,
        compute: str | None = None,
        compile: str = "off",
        units: int = 1,
    ) -> None:
        import torch  # takes seconds, which tasks that write need not wait for

        _keep_freed_memory()
        if threads is not None:
            torch.set_num_threads(min(threads, os.cpu_count() or 1))  # a node may say that it has more
        found = config.describe()["weights"]
        if found != weights:
            raise WorkError(f"expected the weights {weights} as on the driver, got {found} on this node")
        dtype = None if compute is None else getattr(torch, compute)
        self.encoder: Encoder = config.load(batch_tokens=batch_tokens, dtype=dtype)
        self.rate = 0.0
        self.settings = settings
        self.units = units  # that this one may expect
        self.compile = compile
        if compile == "on":
            self.encoder.compile()

    def __call__(self, unit: pa.Table) -> pa.Table:
        began = time.time()
        row = {name: unit[name][0] for name in unit.column_names}
        with naming(f"encoding rows from {row['start']} of {row['uri']}"):
            prepared = Prepared.from_bytes(row["prepared"].as_py())
            encoded = encode_rows(self.encoder, _unpack(row["rows"]), prepared, self.settings)
        seconds = time.time() - began
        self._after(seconds)
        rejected = pa.concat_tables([_unpack(row["rejected"]), rejected_table(row["uri"].as_py(), encoded.rejections)])
        return _row(
            file=row["file"].as_py(),
            start=row["start"].as_py(),
            rows_in=row["rows_in"].as_py(),
            table=_pack(encoded.table),
            rejected=_pack(rejected.sort_by("row")),
            distinct_pairs=encoded.distinct_pairs,
            rows_truncated=encoded.rows_truncated,
            **asdict(encoded.work),
            began=began,
            seconds=seconds,
            rate=self.rate,
            host=socket.gethostname(),
            read_pid=row["read_pid"].as_py(),
            encode_pid=os.getpid(),
        )

    def _after(self, seconds: float) -> None:
        """After the first unit: measure the device, and compile the encoder where that pays for the others."""
        if self.rate:
            return
        self.rate = self.encoder.matrix_product_rate()
        if self.compile == "auto" and seconds * (self.units - 1) > COMPILE_REPAID:
            self.encoder.compile()


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed, where it is the C library.

    Each batch asks for the same large pieces again, and mapping them anew took a tenth of a job
    (`results/shared_prefix.md`).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in ((-8, 1), (-3, 2**30), (-1, 2**31 - 1)):  # arenas, mmap and trim thresholds
            libc.mallopt(option, value)


@dataclass(frozen=True, kw_only=True)
class EncodedUnit:
    """A unit's output table (with the input row of each pair), the rows that could not be embedded, and counts."""

    table: pa.Table
    rejections: list[Rejection]
    work: Work
    distinct_pairs: int
    rows_truncated: int


def prepare_rows(config: SystemConfig, rows: pa.Table, settings: EncodeSettings) -> Prepared:
    """Tokenise the rows of a unit under their conditions."""
    row_of_pair, conditions = pairs_of(rows, settings)
    texts = rows[TEXT].to_pylist()
    return config.prepare([texts[row] for row in row_of_pair], conditions)


def encode_rows(encoder: Encoder, rows: pa.Table, prepared: Prepared, settings: EncodeSettings) -> EncodedUnit:
    """Embed the rows of a unit under their conditions; pairs keep the order of the input.

    A row is rejected with all its pairs where one of them is refused, too long (with on_long "reject"), or not finite
    after rounding to the output's type.
    """
    row_of_pair, conditions = pairs_of(rows, settings)
    encoded = encoder.encode_prepared(prepared)
    with np.errstate(over="ignore"):
        vectors = encoded.vectors.astype(settings.dtype)
    finite = np.isfinite(vectors).all(axis=1)
    bad: dict[int, Reason] = {}
    for pair, row in enumerate(row_of_pair):
        reason = encoded.refused[pair]
        if reason is None and encoded.truncated[pair] and settings.on_long == "reject":
            reason = Reason.TEXT_TOO_LONG
        if reason is None and not finite[pair]:
            reason = Reason.NOT_FINITE
        if reason is not None:
            bad.setdefault(int(row), reason)
    kept = np.flatnonzero(~np.isin(row_of_pair, list(bad)))
    return EncodedUnit(
        table=_output_table(rows, row_of_pair, conditions, kept, vectors, settings),
        rejections=[rejection(rows.slice(row, 1).to_pylist()[0], reason) for row, reason in sorted(bad.items())],
        work=encoded.work,
        distinct_pairs=encoded.distinct,
        rows_truncated=len(np.unique(row_of_pair[kept][encoded.truncated[kept]])),
    )


def pairs_of(rows: pa.Table, settings: EncodeSettings) -> tuple[np.ndarray, list[str] | None]:
    """The unit's row of each pair, and its condition (None: unconditional)."""
    places = np.arange(len(rows))
    if settings.unconditional:
        return places, None
    if settings.conditions is not None:
        return np.repeat(places, len(settings.conditions)), list(settings.conditions) * len(rows)
    lists = rows[CONDITIONS].combine_chunks()
    return np.repeat(places, lists.value_lengths().to_numpy(zero_copy_only=False)), lists.flatten().to_pylist()


def _output_table(
    rows: pa.Table,
    row_of_pair: np.ndarray,
    conditions: list[str] | None,
    kept: np.ndarray,
    vectors: np.ndarray,
    settings: EncodeSettings,
) -> pa.Table:
    """The kept pairs in chunks that a string column can hold, with the input row of each as a last column."""
    columns = settings.columns
    schema = output_schema(columns.id_type, columns.kept_fields, settings.dim, settings.dtype)
    chunks = 1 + rows.nbytes * len(kept) // max(1, len(rows)) // CHUNK_BYTES
    tables: list[pa.Table] = []
    for pairs in np.array_split(kept, chunks):
        some = rows.take(row_of_pair[pairs])
        arrays: dict[str, Any] = {
            ID: some[ID],
            CONDITION: pa.nulls(len(some), pa.string()) if conditions is None else [conditions[i] for i in pairs],
            **{name: some[KEEP + name] for name in columns.keep},
            EMBEDDING: embedding_array(vectors[pairs]),
        }
        tables.append(pa.table(arrays, schema=schema).append_column(ROW_OF_PAIR, some[ROW]))
    return pa.concat_tables(tables)


def write_units(unit: pa.Table, *, output: str, print8: str) -> pa.Table:
    """An encoded unit -> its line of the manifest (JSON), and what this run spent on it."""
    row = {name: unit[name][0] for name in unit.column_names}
    with naming(f"writing input file {row['file']}, from row {row['start']}, to {output}"):
        line = write_unit(
            output_at(output),
            print8,
            (row["file"].as_py(), row["start"].as_py()),
            _unpack(row["table"]),
            _unpack(row["rejected"]),
            rows_in=row["rows_in"].as_py(),
            distinct_pairs=row["distinct_pairs"].as_py(),
            rows_truncated=row["rows_truncated"].as_py(),
        )
    carried = {name: row[name].as_py() for name in CARRIED}
    return _row(line=json.dumps(asdict(line)), ended=time.time(), write_pid=os.getpid(), **carried)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """An error says which unit it met, as a WorkError; what is ours already says so."""
    try:
        yield
    except (RequestError, WorkError):
        raise
    except Exception as error:
        said = f"{what}: {type(error).__name__}: {first_line(error)}"
        raise WorkError(f"{said}; run the same command again to resume") from error


def _row(**values: Any) -> pa.Table:
    """A table of one row."""
    return pa.table({k: v if isinstance(v, pa.Array) else pa.array([v]) for k, v in values.items()})


def _pack(table: pa.Table) -> pa.Array:
    """A table as one value; large_binary, since a unit may be larger than 2 GiB; copied once."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    offsets = pa.py_buffer(np.array([0, data.size], dtype=np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])


def _unpack(packed: pa.Scalar) -> pa.Table:
    """Without a copy."""
    return pa.ipc.open_stream(packed.as_buffer()).read_all()
