"""The encode step: units of tokenised rows -> units with vectors. It knows nothing of what runs it."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, WorkError, named
from raycase.io.reader import CHUNKS, CONDITIONS, KEEP, TEXTS, python_rows, rejection
from raycase.io.schema import CONDITION, END, ID, ROW_OF_PAIR, START, Reason, Rejection, rejected_table
from raycase.job.pair_result import Encode, PairResult
from raycase.job.read_step import pairs_of, prepare_rows, text_rows, without
from raycase.job.units import EncodedUnit, ReadUnit

if TYPE_CHECKING:
    from raycase.models.pairs import Indexed

PART_BYTES = 2**29  # of the output table; an Arrow string column holds less than 2 GiB
COMPILE_REPAID = 90.0  # seconds of encoding left, of which compiling saves more than it costs


class EncodeUnits:
    """`ReadUnit` -> `EncodedUnit`. Holds one model, which remembers what it made of conditions."""

    def __init__(
        self,
        config: Any,
        kind: PairResult,
        *,
        weights: str,
        threads: int | None = None,
        batch_tokens: int | None = None,
        compute: str | None = None,
        compile: str = "off",
        units: int = 1,
    ) -> None:
        """Load the model.

        weights: those that the driver found, by hash or revision; others are refused.
        compile: on, off, or auto: after the first unit, if what is left of `units` takes longer than `COMPILE_REPAID`.
        units: how many this process may expect.
        """
        if "PYTORCH_ALLOC_CONF" not in os.environ:  # rows of several lengths would leave a GPU's memory in small pieces
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # before torch reads it
        import torch  # takes seconds, which the driver need not wait for

        from raycase.models.embedder import Embedder

        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # mapping large blocks anew took a tenth of a job's time
            for option, value in ((-8, 1), (-3, 2**30), (-1, 2**31 - 1)):  # arenas, mmap and trim thresholds
                libc.mallopt(option, value)
        if threads is not None:
            torch.set_num_threads(min(threads, os.cpu_count() or 1))  # Ray may be told of more CPUs than there are
        local_weights = config.describe()["weights"]
        if local_weights != weights:
            raise WorkError(f"expected the weights {weights} as on the driver, got {local_weights} on this node")
        dtype = None if compute is None else getattr(torch, compute)
        self.config = config
        system: Any = config.load(batch_tokens=batch_tokens, dtype=dtype)
        if isinstance(system, Embedder):
            system.output_dtype = getattr(torch, "float32" if kind.needs_direction else kind.dtype)
        self.system, self.encode = system, kind.open(system)
        self.kind = kind
        self.units = units
        self.compile = compile
        if compile == "on":
            self.system.compile()

    def __call__(self, unit: ReadUnit) -> EncodedUnit:
        """Encode a unit; rows at which the tokenizer or the encoder fails are rejected.

        Raises WorkError where it is not the rows: where memory runs out, or any text fails.
        """
        try:
            return self._encode(unit)
        except (RequestError, WorkError):
            raise
        except Exception as error:
            what = f"encoding rows from {unit.start} of {unit.uri}"
            _check_memory(what, error)
            if why := self._failing(_accepted_row(self.config, unit.rows), what):
                raise WorkError(f"{what}: the encoder fails at any text: {why[0]}") from error
            return self.rejecting(unit, self._failing(unit.rows, what), Reason.FAILED)

    def _failing(self, rows: pa.Table, what: str, first: int = 0) -> dict[int, str]:
        """The rows that fail, by their number, with the error; they are found by halves."""
        try:
            encode_rows(self.encode, rows, prepare_rows(self.config, rows, self.kind), self.kind)
        except Exception as error:
            _check_memory(what, error)
            if len(rows) == 1:
                return {first: named(error)}
            half = len(rows) // 2
            return self._failing(rows[:half], what, first) | self._failing(rows[half:], what, first + half)
        return {}

    def rejecting(self, unit: ReadUnit, whys: dict[int, str], reason: Reason) -> EncodedUnit:
        """Encode a unit without some of its rows, which are rejected; `whys`: the detail by the number of the row."""
        kept, rejections = without(unit.rows, whys, reason)
        rejected = rejected_table(unit.uri, rejections, unit.rejected)
        return self._encode(replace(unit, rows=kept, prepared=None, rejected=rejected))

    def _encode(self, unit: ReadUnit) -> EncodedUnit:
        """Encode a unit. Raises what the tokenizer and the encoder raise."""
        began = time.time()
        prepared = prepare_rows(self.config, unit.rows, self.kind) if unit.prepared is None else unit.prepared
        encoded, rejections = encode_rows(self.encode, unit.rows, prepared, self.kind)
        seconds = time.time() - began
        if self.compile == "auto" and seconds * (self.units - 1) > COMPILE_REPAID:
            self.system.compile()
        self.compile = "decided"  # by the first unit
        rejected = rejected_table(unit.uri, rejections, unit.rejected)
        return EncodedUnit(
            file=unit.file, start=unit.start, rows_in=unit.rows_in, rejected=rejected, began=began, **encoded
        )


def _accepted_row(config: Any, rows: pa.Table) -> pa.Table:
    """The first row with texts and conditions that any system can encode, to tell a row's fault from the model's."""
    row = rows.slice(0, 1)
    conditions = [*(config.known_conditions or ()), "a"][:1]
    plain = {**dict.fromkeys(TEXTS, "a"), CONDITIONS: conditions, CHUNKS: [{START: 0, END: 1}]}
    for name in plain.keys() & set(rows.column_names):
        row = row.set_column(row.schema.get_field_index(name), name, pa.array([plain[name]], row[name].type))
    return row


def _check_memory(what: str, error: Exception) -> None:
    """Raise WorkError where memory ran out, which is no fault of a row; on a CPU, torch says so in words."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        raise WorkError(f"{what}: {named(error)}; try fewer --batch-tokens or --actors, or more memory") from error


def encode_rows(
    encode: Encode, rows: pa.Table, prepared: Prepared | None, kind: PairResult
) -> tuple[dict[str, Any], list[Rejection]]:
    """What `encode` makes of the rows of a unit, under their conditions, as fields of `EncodedUnit`; pairs keep the
    order of the input. And the rows that are rejected: with all its pairs, a row with one that is bad
    (`rejected_rows`)."""
    done = kind.finish(encode(prepared, rows))
    texts, row_T = text_rows(rows, kind)
    text_N, conditions = pairs_of(texts, kind)
    row_N = row_T[text_N]
    reasons = rejected_rows(done, row_N, kind)
    if prepared is not None and len(row_N) and kind.on_unknown == "reject":
        unknown_N = prepared.unknown.reshape(-1, len(row_N)).any(axis=0)  # of pairs of sentences, either
        nothing = {*row_N[unknown_N].tolist()} - {*row_N[~unknown_N].tolist()}  # of a document, every chunk
        reasons = dict.fromkeys(nothing, Reason.NOTHING_KNOWN) | reasons
    pair_K = np.flatnonzero(~np.isin(row_N, list(reasons)))
    table = output_table(texts, text_N, conditions, pair_K, done, kind)
    encoded = {
        "table": table.append_column(ROW_OF_PAIR, pa.array(row_N[pair_K])),
        "distinct_pairs": done.distinct,
        "rows_truncated": len(np.unique(row_N[pair_K][done.truncated[pair_K]])),
        "work": done.work,
    }
    return encoded, [rejection(python_rows(rows.slice(row, 1))[0], reason) for row, reason in sorted(reasons.items())]


def rejected_rows(done: Any, row_N: np.ndarray, kind: PairResult) -> dict[int, Reason]:
    """Row -> why it is rejected: the first of its pairs that is refused, too long (`on_long` "reject"), or not finite
    after rounding to the output's type."""
    reasons: dict[int, Reason] = {}
    for row, refused, truncated, finite in zip(row_N.tolist(), done.refused, done.truncated, done.finite, strict=True):
        too_long = Reason.TEXT_TOO_LONG if truncated and kind.on_long == "reject" else None
        if reason := refused or too_long or (None if finite else kind.NOT_FINITE):
            reasons.setdefault(row, reason)
    return reasons


def output_table(
    texts: pa.Table, text_N: np.ndarray, conditions: Indexed | None, pair_K: np.ndarray, done: Any, kind: PairResult
) -> pa.Table:
    """The K pairs `pair_K` of N in parts of about `PART_BYTES`: id, condition, the kept columns, and those that
    were computed. text_N: the text of each pair."""
    id_type, kept = kind.written_columns
    parts = 1 + texts.nbytes * len(pair_K) // max(1, len(texts)) // PART_BYTES
    tables: list[pa.Table] = []
    for pairs in np.array_split(pair_K, parts):
        part = texts.take(text_N[pairs])
        columns = {ID: part[ID].cast(id_type)}
        if conditions is not None:
            columns[CONDITION] = pa.array(conditions.values, pa.string()).take(pa.array(conditions.codes[pairs]))
        elif kind.NULL_CONDITIONS:
            columns[CONDITION] = pa.nulls(len(part), pa.string())
        table = pa.table(columns | {name: part[KEEP + name].cast(type) for name, type in kept.items()})
        for field, column in kind.results(done, pairs):
            table = table.append_column(field, column)
        tables.append(table)
    return pa.concat_tables(tables)
