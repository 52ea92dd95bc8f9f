"""Embedding and pooling as operators of other people's pipelines: `ds.map_batches(raycase.Embed, ...)` of Ray Data, or
any loop over Arrow tables.

A batch's rows come back once per condition, none is left out. Which batches are done is the pipeline's to know: what
resumes exactly once is `raycase embed`. Knows no Ray.

Shapes: R rows, C conditions, N = R C pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from raycase.errors import is_utf8, names_arguments, normal_words
from raycase.io.model_files import DEFAULT_MODEL
from raycase.io.reader import read_conditions
from raycase.io.schema import (
    BASIS,
    CODES,
    CONDITION,
    EMBEDDING,
    SKETCH,
    UNCONDITIONAL_PART,
    Reason,
    check_once,
    embedding_array,
    storage_type,
)
from raycase.job.pair_result import read_codes
from raycase.job.stored_tokens import open_tokens, token_model
from raycase.models.configs import EmbedderConfig
from raycase.models.embedder import Embedder, as_texts
from raycase.models.pairs import check_alike
from raycase.models.registry import load, resolve_embedder
from raycase.names import OnUnknown
from raycase.tokens.stored import StoredTokens, TokenFormat

TRUNCATED, REJECTED = "truncated", "rejected"
ADDED = (CONDITION, EMBEDDING, TRUNCATED, REJECTED)  # columns
CHOICES = {"prompt", "pooling", "subtract", "dim"}  # of a model, before it is loaded


class Embed:
    """Adds the columns `condition`, `embedding` (`fixed_size_list<float32>[D]`), `truncated` and `rejected` to Arrow
    tables.

    Each row stands once for each condition, or once without any, unconditionally. `truncated`: whether its text
    was cut at the encoder's length. Where it has no vector, `rejected` says why, as in the output of `raycase embed`,
    and `embedding` is null.

    model: what `raycase.load` takes, with its `options` (`device`, `batch_tokens`, `prompt`, `dim`, ...).
    condition_column: a column with each row's own condition, in place of `conditions`. on_unknown: "reject" texts
    without a token that the encoder knows, or "embed" them. Raises ValueError.

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
        **options: Any,
    ) -> None:
        if on_unknown not in get_args(OnUnknown):
            raise ValueError(f"on_unknown: expected one of {', '.join(get_args(OnUnknown))}, got {on_unknown!r}")
        choices = {name: options.pop(name) for name in CHOICES & options.keys()}
        config = resolve_embedder(model, **choices)
        self.conditions, self.on_unknown = _conditions(conditions, config), on_unknown
        if self.conditions and condition_column is not None:
            raise ValueError(f"expected conditions or condition_column, got {self.conditions} and {condition_column!r}")
        self.text_column, self.condition_column = text_column, condition_column
        self.encoder: Embedder = load(model, **choices, **options)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """(R rows) -> (R C rows). Raises ValueError for a batch without the columns."""
        columns = [self.text_column, *([self.condition_column] if self.condition_column else [])]
        batch = _table(batch, columns, [name for name in ADDED if name != self.condition_column])
        row_N = np.repeat(np.arange(len(batch)), max(1, len(self.conditions)))
        column = _strings(batch, self.text_column)
        texts = [column[row] for row in row_N]
        own = self.conditions * len(batch) if self.conditions else None
        if self.condition_column:
            own = [c and normal_words(c) for c in _strings(batch, self.condition_column)]
        reasons = [
            _reason(text, Reason.NULL_TEXT, Reason.EMPTY_TEXT)
            or (None if own is None else _reason(own[i], Reason.NULL_CONDITION, Reason.EMPTY_CONDITION))
            for i, text in enumerate(texts)
        ]
        there = [i for i, reason in enumerate(reasons) if reason is None]
        config = self.encoder.config
        dim = config.unconditional_dim if own is None else config.dim
        vectors_ND, truncated_N = np.zeros((len(reasons), dim), np.float32), np.zeros(len(reasons), bool)
        if there:
            under = None if own is None else [own[i] for i in there]
            prepared = config.prepare([texts[i] for i in there], under)
            encoded = self.encoder.encode_prepared(prepared)
            vectors_ND[there], truncated_N[there] = encoded.vectors, encoded.truncated
            nothing = prepared.unknown & (self.on_unknown == "reject")
            for i, why, silent, finite in zip(there, encoded.refused, nothing, encoded.finite, strict=True):
                reasons[i] = why or (Reason.NOTHING_KNOWN if silent else None if finite else Reason.NOT_FINITE)
        null_N = np.array([reason is not None for reason in reasons], dtype=bool)
        repeated = batch.drop_columns([name for name in ADDED if name in batch.column_names]).take(row_N)
        shown = [None] * len(row_N) if own is None else [c if c is None or is_utf8(c) else None for c in own]
        return (
            repeated.append_column(CONDITION, pa.array(shown, pa.string()))
            .append_column(EMBEDDING, embedding_array(vectors_ND, null_N=null_N))
            .append_column(TRUNCATED, pa.array(truncated_N))
            .append_column(REJECTED, pa.array(reasons, pa.string()))
        )


class Pool:
    """The rows of an output of `raycase embed --any-condition` under new conditions, without the encoder's work.

    Batches are rows of its `embeddings/*.parquet`. The columns `word_codes` and `word_plain` are removed; `condition`
    and `embedding` (`fixed_size_list<float32>[D]`) are added for each condition.

    words: the output, local or on object storage, for its basis and its model; model: where the model has moved.
    Raises ValueError.
    """

    @names_arguments
    def __init__(self, *, words: str, conditions: str | Iterable[str], model: str | None = None) -> None:
        tokens = open_tokens(words, "--words")
        config = token_model(tokens, model)
        self.conditions = _conditions(conditions, config)
        if not self.conditions:
            raise ValueError("conditions: expected one or more, got none")
        self.codes = read_codes(tokens.output.basis.uri)
        system: Any = config.load()
        self.pool = system.pool(self.codes, self.conditions)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """(R rows) -> (R C rows). Raises ValueError for a batch without stored tokens, or with another output's."""
        batch = _table(batch, [CODES, UNCONDITIONAL_PART])
        form = TokenFormat.of(batch.schema)
        if form is not None and form != self.codes.form:
            expected, got = self.codes.form.basis[:8], form.basis[:8]
            raise ValueError(f"expected stored tokens of the basis {expected}, got those of {got}")
        tokens = StoredTokens.from_arrow(batch, self.codes.form)
        vectors_ND = self.pool(tokens).reshape(-1, self.codes.form.dim)
        own = [name for name in (CODES, UNCONDITIONAL_PART, BASIS, SKETCH, *ADDED[:2]) if name in batch.column_names]
        for name in own:
            check_once(name, batch.column_names, "a batch")
        rows = batch.drop_columns(own).take(np.repeat(np.arange(len(batch)), len(self.conditions)))
        under = pa.array(self.conditions * len(batch), pa.string())
        return rows.append_column(CONDITION, under).append_column(EMBEDDING, embedding_array(vectors_ND))


def _conditions(conditions: str | Iterable[str], config: EmbedderConfig) -> list[str]:
    """The conditions. Raises RequestError, also for two that the model reads alike."""
    names = read_conditions(as_texts(conditions, "conditions"))
    if names:
        check_alike(config.prepare(["a"] * len(names), names), names, "conditions")
    return names


def _table(batch: Any, columns: Sequence[str], added: Sequence[str] = ()) -> pa.Table:
    """The batch. Raises ValueError for one that is no Arrow table with these columns, once each, or has one of those
    that are added."""
    if not isinstance(batch, pa.Table):
        raise ValueError(f"expected a pyarrow.Table, got {type(batch).__name__}; pass batch_format='pyarrow'")
    for name in columns:
        check_once(name, batch.column_names, "a batch")
    for i, field in enumerate(batch.schema):
        kind = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(field.type)
        if kind is not None:  # `take` does not support views
            batch = batch.set_column(i, field.with_type(kind), batch[i].cast(kind))
    if taken := [name for name in added if name in batch.column_names]:
        raise ValueError(f"expected no column {taken[0]!r} in a batch, which is added; rename it")
    return batch


def _strings(batch: pa.Table, name: str) -> list[Any]:
    """The values of a column of strings; bytes that are not UTF-8 become halves of surrogates. Raises ValueError for
    another type."""
    column = batch[name]
    kind = storage_type(column.type)
    if not (pa.types.is_string(kind) or pa.types.is_null(kind)):
        raise ValueError(f"expected strings in the column {name!r}, got {column.type}")
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.string()).cast(pa.binary()).to_pylist()
        values = [None if value is None else value.decode(errors="surrogateescape") for value in raw]
    return values


def _reason(text: str | None, null: Reason, empty: Reason) -> Reason | None:
    """Why a value is no text, or None."""
    if text is None:
        return null
    if not is_utf8(text):
        return Reason.INVALID_UTF8
    return None if text.strip() else empty
