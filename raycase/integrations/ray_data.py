"""Embedding and pooling as operators of other people's pipelines: `ds.map_batches(raycase.Embed, ...)`, or any loop.

Shapes: R rows, C conditions, N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.chunks import Chunking
from raycase.encoder.model_files import DEFAULT_MODEL
from raycase.errors import check_problems, names_arguments, normal_words
from raycase.io.reader import ROW, check_rows, read_conditions, without
from raycase.io.schema import (
    BASIS,
    CHUNK_COLUMNS,
    CODES,
    CONDITION,
    EMBEDDING,
    ID,
    PAIR_REJECTED,
    PAIR_TRUNCATED,
    ROW_OF_PAIR,
    SKETCH,
    UNCONDITIONAL_PART,
    Columns,
    check_columns,
    check_once,
    embedding_array,
    embedding_numbers,
    without_views,
)
from raycase.job.results import Encoding, RowPairs, VectorResult
from raycase.job.steps import cut_rows, encode_rows, failing_rows
from raycase.job.stored_tokens import open_tokens, pooled, token_model
from raycase.models.configs import EmbedderConfig, check_alike
from raycase.models.embedder import Embedder, as_texts
from raycase.models.registry import load, resolve_embedder
from raycase.names import OnUnknown
from raycase.tokens.stored import TokenFormat

TRUNCATED, REJECTED = "truncated", "rejected"
ADDED = (CONDITION, EMBEDDING, TRUNCATED, REJECTED)  # columns
CHOICES = {"prompt", "pooling", "subtract", "dim"}  # of a model, before it is loaded


class Embed:
    """Adds the columns `condition`, `embedding` (`fixed_size_list<float32>[D]`), `truncated` and `rejected` to Arrow
    tables.

    Each row stands once for each condition, or once without any, unconditionally. `truncated`: whether its text
    was cut at the encoder's length. Where it has no vector, `rejected` has the reason, as in the output of `raycase
    embed`, and `embedding` is null.

    model: what `raycase.load` takes, with its `options` (`device`, `batch_tokens`, `prompt`, `dim`, ...).
    condition_column: a column with each row's own condition, or a list of them, in place of `conditions`. on_unknown:
    "reject" texts without a token that the encoder knows, or "embed" them. chunk, overlap: as `raycase embed`; a row
    stands once for each chunk, too, with its number and its characters in the columns `chunk`, `start` and `end`.
    Raises ValueError.

    Examples:
        >>> embed = raycase.Embed(conditions=["color", "number of people"])
        >>> table = embed(pa.table({"text": ["Two girls in red dresses", None]}))
        >>> table.column_names, len(table), table["rejected"].to_pylist()
        (['text', 'condition', 'embedding', 'truncated', 'rejected'], 4, [None, None, 'null text', 'null text'])
    """

    @names_arguments
    def __init__(
        self,
        *,
        model: str = DEFAULT_MODEL,
        conditions: str | Iterable[str] = (),
        text_column: str = "text",
        condition_column: str | None = None,
        on_unknown: OnUnknown = "reject",
        chunk: int | None = None,
        overlap: int = 0,
        **options: Any,
    ) -> None:
        choices = {name: options.pop(name) for name in CHOICES & options.keys()}
        names = _conditions(conditions, resolve_embedder(model, **choices))
        unknown = f"on_unknown: expected one of {', '.join(get_args(OnUnknown))}, got {on_unknown!r}"
        both = f"expected conditions or condition_column, got {names} and {condition_column!r}"
        cut = f"chunk: expected at least 1 token, and fewer in overlap, got {chunk} and overlap {overlap}"
        wrong = {unknown: on_unknown not in get_args(OnUnknown), both: names and condition_column is not None}
        check_problems(wrong | {cut: not 0 <= overlap < (chunk or 1)})
        self.model: Embedder = load(model, **choices, **options)
        columns = Columns(texts=(text_column,), id=None, condition=condition_column, keep=(), types={})
        chunking = Chunking(tokens=chunk, overlap=overlap) if chunk else None
        pairs = RowPairs(columns=columns, conditions=tuple(names) or None, chunking=chunking, on_unknown=on_unknown)
        self.encoding = Encoding(model=self.model.config, pairs=pairs, result=VectorResult())

    def __call__(self, batch: pa.Table) -> pa.Table:
        """(R rows) -> (N rows), C for each row or chunk. Raises ValueError for a batch without the columns."""
        pairs = self.encoding.pairs
        own, places = pairs.columns.condition, CHUNK_COLUMNS[1:] if pairs.chunking else ()
        batch = _table(batch, *pairs.columns.names)
        check_columns(batch.schema, pairs.columns, "a batch")
        if taken := [name for name in (*places, *ADDED) if name != own and name in batch.column_names]:
            raise ValueError(f"expected no column {taken[0]!r} in a batch, which is added; rename it")
        rows, rejections = check_rows(batch, pairs.columns)
        rows, empty = cut_rows(rows, self.encoding)
        try:
            table, _ = encode_rows(self.model, self.encoding, rows)
        except Exception as error:
            rows, failed = without(rows, failing_rows(self.model, self.encoding, rows, "encoding a batch", error))
            table, _ = encode_rows(self.model, self.encoding, rows)
            rejections += failed
        renamed = {name: name for name in (*places, CONDITION)} | {PAIR_TRUNCATED: TRUNCATED, PAIR_REJECTED: REJECTED}
        given = table.select([*renamed]).rename_columns(renamed).append_column(ROW, rows[ROW].take(table[ROW_OF_PAIR]))
        refused = [
            {ROW: each.row, CONDITION: under, REJECTED: each.reason}
            for each in (*rejections, *empty)
            for under in pairs.conditions or ([None] if own is None else _read_conditions(batch[own][each.row]))
        ]
        schema = pa.schema({ROW: pa.int64(), CONDITION: pa.string(), REJECTED: pa.string()})
        others = pa.Table.from_pylist(refused, schema)
        every = pa.concat_tables([given, others], promote_options="default")
        has_vector = pc.is_null(every[REJECTED])
        vectors_ND = np.pad(embedding_numbers(table[EMBEDDING]), ((0, len(refused)), (0, 0)))  # no null inside a null
        every = every.append_column(EMBEDDING, embedding_array(vectors_ND, null_N=~has_vector.to_numpy()))
        at = every.schema.get_field_index(TRUNCATED)
        every = every.set_column(at, TRUNCATED, pc.and_kleene(has_vector, every[TRUNCATED])).sort_by(ROW)  # stable
        repeated = batch.drop_columns([own] if own in ADDED else []).take(every[ROW])
        for name in (*places, *ADDED):
            repeated = repeated.append_column(name, every[name])
        return repeated


class Pool:
    """The rows of an output of `raycase embed --any-condition` under new conditions, without the encoder's work.

    Batches are rows of its `embeddings/*.parquet`. The columns `word_codes` and `word_plain` are removed; `condition`
    and `embedding` (`fixed_size_list<float32>[D]`) are added for each condition.

    tokens: the output, local or on object storage, for its basis and its model; model: where the model has moved.
    Raises ValueError.
    """

    @names_arguments
    def __init__(self, *, tokens: str, conditions: str | Iterable[str], model: str | None = None) -> None:
        stored = open_tokens(tokens, "--tokens")
        config = token_model(stored, model)
        names = _conditions(conditions, config)
        if not names:
            raise ValueError("conditions: expected one or more, got none")
        result, columns = pooled(stored, names), Columns(texts=(), id=None, condition=None, keep=(), types={})
        pairs = RowPairs(columns=columns, conditions=result.conditions)
        self.encoding, self.codes = Encoding(model=config, pairs=pairs, result=result), result.codes
        self.model: Embedder = config.load()

    def __call__(self, batch: pa.Table) -> pa.Table:
        """(R rows) -> (R C rows). Raises ValueError for a batch without stored tokens, or with another output's."""
        batch = _table(batch, CODES, UNCONDITIONAL_PART)
        form = TokenFormat.of(batch.schema)
        if form is not None and form != self.codes.form:
            expected, got = self.codes.form.basis[:8], form.basis[:8]
            raise ValueError(f"expected stored tokens of the basis {expected}, got those of {got}")
        own = [name for name in (CODES, UNCONDITIONAL_PART, BASIS, SKETCH, *ADDED[:2]) if name in batch.column_names]
        for name in own:
            check_once(name, batch.column_names, "a batch")
        ids = pa.nulls(len(batch), pa.string())
        rows = pa.table({ID: ids, CODES: batch[CODES], UNCONDITIONAL_PART: batch[UNCONDITIONAL_PART]})
        table, _ = encode_rows(self.model, self.encoding, rows)
        others, added = batch.drop_columns(own).take(table[ROW_OF_PAIR]), table.select([CONDITION, EMBEDDING])
        schema = pa.schema([*others.schema, *added.schema], others.schema.metadata)
        return pa.table([*others.columns, *added.columns], schema=schema)  # a table without columns can append none


@dataclass(frozen=True, kw_only=True)
class ProcessorConfig:
    """What a processor does with the rows, and with how many actors.

    model, conditions, condition_column, text_column, chunk: as of `raycase.Embed`, whose further arguments are
    `options`. tokens: an output of `raycase embed --any-condition`, of whose rows vectors are pooled under the
    conditions, as by `raycase.Pool`. concurrency: the most actors, each with one model, or (MIN, MAX), where MIN must
    leave CPUs to read and to write. batch_size: the rows of a batch; the others: of each actor, as of `map_batches`.
    """

    model: str | None = None
    conditions: str | Sequence[str] = ()
    condition_column: str | None = None
    text_column: str | None = None
    tokens: str | None = None
    chunk: int | None = None
    options: Mapping[str, Any] | None = None
    concurrency: int | tuple[int, int] = 1
    batch_size: int = 1024
    num_cpus: float | None = None
    num_gpus: float | None = None
    accelerator_type: str | None = None


def _conditions(conditions: str | Iterable[str], config: EmbedderConfig) -> list[str]:
    """The conditions. Raises RequestError, also for two that the model reads alike."""
    names = read_conditions(as_texts(conditions, "conditions"))
    if names:
        check_alike(config.prepare(["a"] * len(names), names), names, "conditions")
    return names


def _table(batch: Any, *columns: str) -> pa.Table:
    """The batch. Raises ValueError for one that is no Arrow table with these columns, once each."""
    if not isinstance(batch, pa.Table):
        raise ValueError(f"expected a pyarrow.Table, got {type(batch).__name__}; pass batch_format='pyarrow'")
    for name in columns:
        check_once(name, batch.column_names, "a batch")
    for i, field in enumerate(batch.schema):
        if (taken := without_views(field.type)) != field.type:
            batch = batch.set_column(i, field.with_type(taken), batch[i].cast(taken))
    return batch


def _read_conditions(value: pa.Scalar) -> list[str | None]:
    """The conditions of a row that is rejected, as far as they can be read: one, or those of a list."""
    try:
        read = value.as_py()
    except UnicodeDecodeError:
        return [None]
    return [each and normal_words(each) for each in (read if isinstance(read, list) else [read])] or [None]
