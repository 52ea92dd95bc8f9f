"""The encode step: tables of rows -> tables of their pairs, each with what was computed of it or why it was not.

Units go through it in `EncodeUnits`, batches of other pipelines in `integrations/ray_data.py`. It knows nothing of what
runs it.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, WorkError, named
from raycase.io.reader import CHUNKS, CONDITIONS, KEEP, TEXTS, python_rows, rejection
from raycase.io.schema import (
    CONDITION,
    END,
    ID,
    PAIR_REJECTED,
    PAIR_TRUNCATED,
    ROW_OF_PAIR,
    START,
    Reason,
    rejected_table,
)
from raycase.job.read_step import pairs_of, prepare_rows, text_rows, without
from raycase.job.results import Encoding
from raycase.job.units import EncodedUnit, ReadUnit

if TYPE_CHECKING:
    from raycase.models.embedder import LoadedSystem
    from raycase.models.pairs import Encoded

TABLE_BYTES = 2**29  # of texts that are repeated at once; an Arrow string column holds less than 2 GiB
COMPILE_REPAID = 90.0  # seconds of encoding left, of which compiling saves more than it costs


class EncodeUnits:
    """`ReadUnit` -> `EncodedUnit`. Holds one model, which remembers what it made of conditions."""

    def __init__(self, encoding: Encoding, *, weights: str, threads: int | None = None, units: int = 1) -> None:
        """Load the model.

        weights: those that the driver found, by hash or revision; others are refused. units: how many this process may
        expect: to compile "auto" is to do so after the first, if the others take longer than `COMPILE_REPAID`.
        """
        if "PYTORCH_ALLOC_CONF" not in os.environ:  # rows of several lengths would leave a GPU's memory in fragments
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # before torch reads it
        import torch  # takes seconds, which the driver need not wait for

        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # mapping large blocks anew took a tenth of a job's time
            for option, value in ((-8, 1), (-3, 2**30), (-1, 2**31 - 1)):  # arenas, mmap and trim thresholds
                libc.mallopt(option, value)
        if threads is not None:
            torch.set_num_threads(min(threads, os.cpu_count() or 1))  # Ray may count more CPUs than there are
        local_weights = encoding.model.describe()["weights"]
        if local_weights != weights:
            raise WorkError(f"expected the weights {weights} as on the driver, got {local_weights} on this node")
        self.encoding, self.units, self.compile = encoding, units, encoding.compile
        self.system: LoadedSystem = encoding.model.load(
            batch_tokens=encoding.batch_tokens,
            dtype=encoding.compute and getattr(torch, encoding.compute),
            output_dtype=getattr(torch, encoding.result.rounded_to),
        )
        if self.compile == "on":
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
            if why := self._failing(_accepted_row(self.encoding, unit.rows), what):
                raise WorkError(f"{what}: the encoder fails at any text: {why[0]}") from error
            return self.rejecting(unit, self._failing(unit.rows, what), Reason.FAILED)

    def _failing(self, rows: pa.Table, what: str, first: int = 0) -> dict[int, str]:
        """The rows that fail, by their number, with the error; they are found by halves."""
        try:
            encode_rows(self.system, self.encoding, rows, prepare_rows(rows, self.encoding))
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
        prepared = prepare_rows(unit.rows, self.encoding) if unit.prepared is None else unit.prepared
        pairs, encoded = encode_rows(self.system, self.encoding, unit.rows, prepared)
        table, reasons = accepted(pairs)
        rejections = [rejection(python_rows(unit.rows.slice(i, 1))[0], why) for i, why in sorted(reasons.items())]
        seconds = time.time() - began
        if self.compile == "auto" and seconds * (self.units - 1) > COMPILE_REPAID:
            self.system.compile()
        self.compile = "off"  # decided by the first unit
        cut = table[ROW_OF_PAIR].filter(table[PAIR_TRUNCATED])
        return EncodedUnit(
            file=unit.file,
            start=unit.start,
            rows_in=unit.rows_in,
            table=table.drop_columns([PAIR_TRUNCATED, PAIR_REJECTED]),
            rejected=rejected_table(unit.uri, rejections, unit.rejected),
            distinct_pairs=encoded.distinct,
            rows_truncated=len(cut.unique()),
            work=encoded.work,
            began=began,
        )


def _accepted_row(encoding: Encoding, rows: pa.Table) -> pa.Table:
    """The first row with texts and conditions that any system can encode, to know a row's fault from the model's."""
    row = rows.slice(0, 1)
    conditions = [*(encoding.model.known_conditions or ()), "a"][:1]
    easy = {**dict.fromkeys(TEXTS, "a"), CONDITIONS: conditions, CHUNKS: [{START: 0, END: 1}]}
    for name in easy.keys() & set(rows.column_names):
        row = row.set_column(row.schema.get_field_index(name), name, pa.array([easy[name]], row[name].type))
    return row


def _check_memory(what: str, error: Exception) -> None:
    """Raise WorkError where memory ran out, which is no fault of a row; on a CPU, torch has no class for it."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        raise WorkError(f"{what}: {named(error)}; try fewer --batch-tokens or --actors, or more memory") from error


def encode_rows(
    system: LoadedSystem, encoding: Encoding, rows: pa.Table, prepared: Prepared | None
) -> tuple[pa.Table, Encoded]:
    """The pairs of checked rows, in their order: id, condition, the kept columns and those that were computed, the
    number of the row (`ROW_OF_PAIR`), whether its text was cut (`PAIR_TRUNCATED`), and why the pair is rejected, or
    null (`PAIR_REJECTED`). And what was computed, for its counts."""
    pairs, result = encoding.pairs, encoding.result
    encoded = result.compute(system, prepared, rows)
    texts, row_T = text_rows(rows, pairs)
    text_N, conditions = pairs_of(texts, pairs)
    row_N = row_T[text_N]
    id_type, kept = pairs.written_columns
    tables: list[pa.Table] = []
    count = 1 + texts.nbytes * len(row_N) // max(1, len(texts)) // TABLE_BYTES
    for pair_P in np.array_split(np.arange(len(row_N)), count):
        repeated = texts.take(text_N[pair_P])
        columns = {ID: repeated[ID].cast(id_type)}
        if conditions is not None:
            columns[CONDITION] = pa.array(conditions.values, pa.string()).take(pa.array(conditions.codes[pair_P]))
        elif result.NULL_CONDITIONS:
            columns[CONDITION] = pa.nulls(len(repeated), pa.string())
        tables.append(pa.table(columns | {name: repeated[KEEP + name].cast(type_) for name, type_ in kept.items()}))
    table = pa.concat_tables(tables)
    for field, column in result.computed(encoded):
        table = table.append_column(field, column)
    table = table.append_column(ROW_OF_PAIR, pa.array(row_N)).append_column(PAIR_TRUNCATED, pa.array(encoded.truncated))
    return table.append_column(
        PAIR_REJECTED, pa.array(pair_reasons(encoding, encoded, prepared, row_N), pa.string())
    ), encoded


def pair_reasons(
    encoding: Encoding, encoded: Encoded, prepared: Prepared | None, row_N: np.ndarray
) -> list[Reason | None]:
    """Why each pair is rejected: it is refused, too long (`on_long` "reject"), not finite after rounding to the
    output's type, or without a token that the encoder knows: of a pair of sentences either, of a document every
    chunk."""
    pairs, reasons = encoding.pairs, list(encoded.refused)
    if prepared is not None and len(row_N) and pairs.on_unknown == "reject":
        unknown_N = prepared.unknown.reshape(-1, len(row_N)).any(axis=0)
        unknown_N &= ~np.isin(row_N, row_N[~unknown_N])
    else:
        unknown_N = np.zeros(len(row_N), bool)
    long_N = encoded.truncated & (pairs.on_long == "reject")
    for wrong_N, reason in (
        (long_N, Reason.TEXT_TOO_LONG), (~encoded.finite, encoding.result.NOT_FINITE), (unknown_N, Reason.NOTHING_KNOWN)
    ):  # fmt: skip
        for pair in np.flatnonzero(wrong_N).tolist():
            reasons[pair] = reasons[pair] or reason
    return reasons


def accepted(pairs: pa.Table) -> tuple[pa.Table, dict[int, Reason]]:
    """The pairs of the rows whose pairs are all good, and why the other rows are rejected: by the first that is not."""
    if pairs[PAIR_REJECTED].null_count == len(pairs):
        return pairs, {}
    row_N = pairs[ROW_OF_PAIR].to_numpy()
    reasons: dict[int, Reason] = {}
    for row, reason in zip(row_N.tolist(), pairs[PAIR_REJECTED].to_pylist(), strict=True):
        if reason is not None:
            reasons.setdefault(row, Reason(reason))
    return pairs.filter(pa.array(~np.isin(row_N, list(reasons)))), reasons
