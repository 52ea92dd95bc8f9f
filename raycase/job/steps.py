"""The read and the encode step: spans of the input -> units of checked rows, tokenised -> tables of their pairs.

With `--chunk` a row is a document: a unit's table has its chunks in a column, each of which is a text to encode. The
write step is `units.write_encoded`. None knows what runs it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, WorkError, named
from raycase.io.inputs import source_of
from raycase.io.reader import CHUNKS, CONDITIONS, FILE, KEEP, ROW, TEXTS, read_span, without
from raycase.io.schema import (
    CHUNK,
    CONDITION,
    DOCUMENT,
    END,
    ID,
    PAIR_REJECTED,
    PAIR_TRUNCATED,
    ROW_OF_PAIR,
    START,
    TEXT,
    Reason,
    Rejection,
    rejected_table,
)
from raycase.job.results import Encoding, RowPairs, accepted, pair_reasons
from raycase.job.units import EncodedUnit, PlannedSpan, ReadUnit, naming
from raycase.models.pairs import Encoded, Indexed

if TYPE_CHECKING:
    from raycase.models.condition_pooling import ConditionPoolingConfig
    from raycase.models.embedder import LoadedSystem

READERS = 16  # small files fetched at once
PAIRS_OF_UNIT = 32768  # of documents, at most; a document that has more is a unit of its own
TABLE_BYTES = 2**29  # of texts that are repeated at once; an Arrow string column holds less than 2 GiB
COMPILE_REPAID = 90.0  # seconds of encoding left, of which compiling saves more than it costs
CHUNKS_TYPE = pa.list_(pa.struct([(START, pa.int64()), (END, pa.int64())]))  # characters [start, end) of the chunks


def read_units(spans: Iterable[PlannedSpan], encoding: Encoding) -> Iterator[ReadUnit]:
    """Read the units of spans, and tokenise them: on CPUs and ahead of the encoder, which then never waits for it."""
    for planned in spans:
        units = read_rows_of(planned, encoding)
        uri, files = planned.files[0].uri, {file.uri: number for number, file in enumerate(planned.files)}
        for start, end in planned.units:
            with naming(f"reading rows {start} to {end} of {uri}"):
                read = next(units)
            for first, last, rows, rejected in bounded(files, start, end, *read, encoding.pairs):
                try:
                    prepared = prepare_rows(rows, encoding)
                except (RequestError, WorkError, OSError, MemoryError):
                    raise
                except Exception:  # of the tokenizer itself, as at a character that it has no token for
                    prepared = None
                yield ReadUnit(
                    uri=uri,
                    file=planned.span.file,
                    start=first,
                    rows_in=last - first,
                    rows=rows,
                    rejected=rejected,
                    prepared=prepared,
                )


def read_rows_of(planned: PlannedSpan, encoding: Encoding) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span, in the column `CHUNKS` those of documents, and those rejected, in order."""
    for rows, rejected in _read_files(planned, encoding.pairs):
        rows, rejections = cut_rows(rows, encoding)
        yield rows, rejected_table(planned.files[0].uri, rejections, rejected)


def cut_rows(rows: pa.Table, encoding: Encoding) -> tuple[pa.Table, list[Rejection]]:
    """Checked rows with their chunks in the column `CHUNKS`, and those without any; as they are without `chunking`."""
    if (chunking := encoding.pairs.chunking) is None:
        return rows, []
    cut = [
        [{START: start, END: end} for start, end in chunking.cut(encoding.model.encoder, text)]
        for text in rows[TEXT].to_pylist()
    ]
    why = Reason.EMPTY_TEXT, "nothing that can be seen"
    empty = {row: why for row, chunks in enumerate(cut) if not chunks}
    return without(rows.append_column(CHUNKS, pa.array(cut, CHUNKS_TYPE)), empty)


def _read_files(planned: PlannedSpan, pairs: RowPairs) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each unit of a span and those rejected: of its one file, or of several small ones, read at once."""
    if not planned.span.spans:
        for rows, rejections in read_span(source_of(planned.files[0]), planned.span, pairs.columns, planned.units):
            yield rows, rejected_table(planned.files[0].uri, rejections)
        return
    for start, end in planned.units:
        first, reads = planned.span.start, []  # of the files that have rows in the unit, by the numbers in the file
        for file, span in zip(planned.files, planned.span.spans, strict=True):
            a, b = max(start, first), min(end, first + span.rows)
            if a < b:
                own = (span.start + a - first, span.start + b - first)
                reads.append((file.uri, read_span(source_of(file), span, pairs.columns, [own])))
            first += span.rows
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(next, [rows for _, rows in reads]))
        named = zip([uri for uri, _ in reads], read, strict=True)
        tables = [
            (rows.append_column(FILE, pa.array([uri] * len(rows), pa.string())), rejected_table(uri, rejections))
            for uri, (rows, rejections) in named
        ]
        yield pa.concat_tables(rows for rows, _ in tables), pa.concat_tables(rejected for _, rejected in tables)


def bounded(
    files: dict[str, int], start: int, end: int, rows: pa.Table, rejected: pa.Table, pairs: RowPairs
) -> Iterator[tuple[int, int, pa.Table, pa.Table]]:
    """Cut rows with chunks into units of at most `PAIRS_OF_UNIT` pairs: first row, end, rows, rejected.

    Where a unit ends depends on the rows from its start on alone, so a resumed job cuts alike.
    """
    if pairs.chunking is None:
        yield start, end, rows, rejected
        return

    def places(table: pa.Table) -> list[tuple[int, int]]:
        file = table[FILE].to_pylist() if FILE in table.column_names else [next(iter(files))] * len(table)
        return [(files[uri], row) for uri, row in zip(file, table[ROW].to_pylist(), strict=True)]

    good, bad = places(rows), places(rejected)
    chunks = rows[CHUNKS].combine_chunks().value_lengths().to_pylist()
    chunks_of = dict.fromkeys(bad, 0) | dict(zip(good, chunks, strict=True))
    order, most, size, edges = sorted(chunks_of), PAIRS_OF_UNIT // len(pairs.conditions or "a"), 0, [0]
    for number, place in enumerate(order):
        size += chunks_of[place]
        if size > most and number > edges[-1]:
            edges.append(number)
            size = chunks_of[place]
    for first, last in pairwise([*edges, len(order)]):
        unit = {*order[first:last]}
        good_rows, bad_rows = (
            table.filter(pa.array([place in unit for place in of], pa.bool_()))
            for table, of in ((rows, good), (rejected, bad))
        )
        yield start + first, start + last, good_rows, bad_rows


def text_rows(rows: pa.Table, pairs: RowPairs) -> tuple[pa.Table, np.ndarray]:
    """The T texts that are encoded: the rows, or their chunks as `DOCUMENT#NUMBER`; and the row of each, (T,)."""
    if pairs.chunking is None:
        return rows, np.arange(len(rows))
    chunks, whole = rows[CHUNKS].combine_chunks(), rows[TEXT].to_pylist()
    count_R = chunks.value_lengths().to_numpy()
    row_T = np.repeat(np.arange(len(rows)), count_R)
    number_T = pa.array(np.arange(len(row_T)) - np.repeat(np.cumsum(count_R) - count_R, count_R))
    start_T, end_T = (chunks.flatten().field(name) for name in (START, END))
    places = zip(row_T.tolist(), start_T.to_pylist(), end_T.to_pylist(), strict=True)
    text_T = pa.array([whole[row][start:end] for row, start, end in places], pa.string())
    kept_text = f"{KEEP}{pairs.columns.texts[0]}"
    texts = rows.drop_columns([n for n in (TEXT, CHUNKS, kept_text) if n in rows.column_names]).take(row_T)
    id_T = pc.binary_join_element_wise(texts[ID].cast(pa.string()), number_T.cast(pa.string()), "#")
    own = {KEEP + DOCUMENT: texts[ID], KEEP + CHUNK: number_T, KEEP + START: start_T, KEEP + END: end_T, TEXT: text_T}
    if kept_text in rows.column_names:
        own[kept_text] = text_T
    return pa.table(dict(zip(texts.column_names, texts.columns, strict=True)) | own | {ID: id_T}), row_T


def pairs_of(rows: pa.Table, pairs: RowPairs) -> tuple[np.ndarray, Indexed | None]:
    """The row of each pair in a table of texts, (N,), and the pairs' conditions (None: unconditional)."""
    row_R = np.arange(len(rows))
    if pairs.unconditional:
        return row_R, None
    if pairs.conditions is not None:
        count = len(pairs.conditions)
        return np.repeat(row_R, count), Indexed(values=pairs.conditions, codes=np.tile(np.arange(count), len(rows)))
    lists = rows[CONDITIONS].combine_chunks()
    row_N = np.repeat(row_R, lists.value_lengths().to_numpy(zero_copy_only=False))
    return row_N, _indexed(pa.chunked_array([lists.flatten()]))


def prepare_rows(rows: pa.Table, encoding: Encoding) -> Prepared | None:
    """Tokenise the pairs of a unit; stored tokens give None. Loads no weights."""
    pairs, prepare = encoding.pairs, encoding.result.prepare
    texts, _ = text_rows(rows, pairs)
    row_N, conditions = pairs_of(texts, pairs)
    if pairs.chunking is not None and pairs.chunking.late:  # a chunk is another one beside others
        whole = rows[TEXT].to_pylist()
        prepared = prepare(encoding.model, [Indexed(values=texts[TEXT].to_pylist(), codes=row_N)], conditions)
        chunks = ([(chunk[START], chunk[END]) for chunk in of] for of in rows[CHUNKS].to_pylist())
        model = cast("ConditionPoolingConfig", encoding.model)
        return model.in_context(cast("Prepared", prepared), zip(whole, chunks, strict=True))
    columns = [_indexed(texts[name]).take(row_N) for name in TEXTS[: len(pairs.columns.texts)]]
    return prepare(encoding.model, columns, conditions)


def _indexed(strings: pa.ChunkedArray) -> Indexed:
    """A column without nulls by its distinct strings."""
    encoded = strings.cast(pa.large_string()).dictionary_encode().combine_chunks()  # may be more than 2 GiB
    return Indexed(values=encoded.dictionary.to_pylist(), codes=encoded.indices.to_numpy().astype(np.int64))


# --------------------------------------------------------------------------------------------------------------- encode


class EncodeUnits:
    """`ReadUnit` -> `EncodedUnit`. Holds one model, which remembers what it made of conditions."""

    def __init__(self, encoding: Encoding, *, weights: str, threads: int | None = None, units: int = 1) -> None:
        """Load the model, whose `weights` must be the driver's; `units`: how many to expect, to decide on compiling."""
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
        """Encode a unit; rows at which the tokenizer or the encoder fails are rejected, unless any text fails."""
        try:
            return self._encode(unit)
        except Exception as error:
            what = f"encoding rows from {unit.start} of {unit.uri}"
            return self.rejecting(unit, failing_rows(self.system, self.encoding, unit.rows, what, error))

    def rejecting(self, unit: ReadUnit, bad: Mapping[int, tuple[Reason, str]]) -> EncodedUnit:
        """Encode a unit without some of its rows, which are rejected as by `without`."""
        kept, rejections = without(unit.rows, bad)
        rejected = rejected_table(unit.uri, rejections, unit.rejected)
        return self._encode(replace(unit, rows=kept, prepared=None, rejected=rejected))

    def _encode(self, unit: ReadUnit) -> EncodedUnit:
        """Encode a unit. Raises what the tokenizer and the encoder raise."""
        began = time.time()
        pairs, encoded = encode_rows(self.system, self.encoding, unit.rows, unit.prepared)
        table, reasons = accepted(pairs)
        _, rejections = without(unit.rows, {row: (reason, "") for row, reason in reasons.items()})
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


def failing_rows(
    system: LoadedSystem, encoding: Encoding, rows: pa.Table, what: str, error: Exception
) -> dict[int, tuple[Reason, str]]:
    """The rows at which the tokenizer or the encoder fails, by their number, with the error; they are found by halves.

    error: that of all rows together, which is raised where it is for people. Raises WorkError where memory ran out, or
    the encoder fails at any text.
    """
    if isinstance(error, (RequestError, WorkError)):
        raise error

    def failing(rows: pa.Table, first: int) -> dict[int, tuple[Reason, str]]:
        try:
            encode_rows(system, encoding, rows)
        except Exception as error:
            _check_memory(what, error)
            if len(rows) == 1:
                return {first: (Reason.FAILED, named(error))}
            half = len(rows) // 2
            return failing(rows[:half], first) | failing(rows[half:], first + half)
        return {}

    _check_memory(what, error)
    if bad := failing(_accepted_row(encoding, rows), 0):
        raise WorkError(f"{what}: the encoder fails at any text: {bad[0][1]}") from error
    return failing(rows, 0)


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
    system: LoadedSystem, encoding: Encoding, rows: pa.Table, prepared: Prepared | None = None
) -> tuple[pa.Table, Encoded]:
    """The pairs of checked rows, in their order: id, condition, the kept columns and those that were computed, the
    number of the row (`ROW_OF_PAIR`), whether its text was cut (`PAIR_TRUNCATED`), and why the pair is rejected, or
    null (`PAIR_REJECTED`). And what was computed, for its counts. prepared: None to tokenise here."""
    pairs, result = encoding.pairs, encoding.result
    prepared = prepare_rows(rows, encoding) if prepared is None else prepared
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
