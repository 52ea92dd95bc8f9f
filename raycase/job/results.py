"""What a job makes of its rows: pairs (`RowPairs`), by a model (`Encoding`), and what is written of each (`JobResult`).

`result_of` has those that `verify` must know from vectors. Imports no torch. Shapes: N pairs of a unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.encoder.chunks import Chunking
from raycase.io.schema import (
    CHUNK,
    CHUNK_COLUMNS,
    CONDITION,
    DOCUMENT,
    EMBEDDING,
    ID,
    PAIR_REJECTED,
    ROW_OF_PAIR,
    Columns,
    Reason,
    embedding_array,
    embedding_numbers,
    embedding_type,
)
from raycase.io.storage import locate
from raycase.io.vectors import int8_numbers, l2_normalize, peak_normalize, sign_bits
from raycase.names import Compile, Compute, Dtype, OnLong, OnUnknown
from raycase.tokens.stored import StoredTokens, TokenFormat

if TYPE_CHECKING:  # torch, which takes seconds to import
    from raycase.encoder.token_batch import Prepared
    from raycase.models.condition_pooling import ConditionPooling
    from raycase.models.configs import EmbedderConfig, SystemConfig
    from raycase.models.embedder import Embedder, LoadedSystem
    from raycase.models.pairs import Encoded
    from raycase.tokens.basis import TokenBasis

EMBEDDINGS, SCORES = "embeddings", "scores"  # folders of units: of `raycase embed`, of `raycase score`
CHUNKED = "chunk"  # in the configuration of a job that cuts texts: as `IndexMetadata.chunk`
FULL_DIGITS = 0x400  # the bits of 6.1e-5, the smallest float16 with all of its digits
SMALL = {"int8": int8_numbers, "binary": sign_bits}  # what is written in place of vectors of float32
Computed = list[tuple[pa.Field, pa.Array]]  # columns of the output


@dataclass(frozen=True, kw_only=True)
class RowPairs:
    """Which pairs a job makes of its rows, and which of them it rejects.

    conditions: of every row; None where each has its own or none. chunking: each chunk is then a row of the output.
    """

    columns: Columns
    conditions: tuple[str, ...] | None = None
    chunking: Chunking | None = None
    on_long: OnLong = "truncate"
    on_unknown: OnUnknown = "embed"

    @property
    def unconditional(self) -> bool:
        return self.conditions is None and self.columns.condition is None

    @property
    def config(self) -> dict[str, Any]:
        """Their part of the configuration in job.json."""
        columns, chunked = self.columns, self.chunking
        later = {
            "on_unknown": "" if self.on_unknown == "embed" else self.on_unknown,
            CHUNKED: chunked and [chunked.tokens, chunked.overlap, *[1] * chunked.late],
        }
        return {name: value for name, value in later.items() if value} | {  # else as before there were these flags
            "on_long": self.on_long,
            "text_column": columns.texts[0] if columns.texts else None,
            "id_column": columns.id,
            "types": {name: str(type_) for name, type_ in sorted(columns.types.items())},
            "keep_columns": columns.keep if chunked is None else (*CHUNK_COLUMNS, *columns.keep),
            "condition_column": columns.condition,
            "conditions": self.conditions,
            "unconditional": self.unconditional,
        }

    @property
    def written_columns(self) -> tuple[pa.DataType, dict[str, pa.DataType]]:
        """The type of the ids in the output, and its kept columns with their types."""
        columns = self.columns
        kept = {name: columns.types[name] for name in columns.keep}
        if self.chunking is None:
            return columns.id_type, kept
        return pa.string(), dict(zip(CHUNK_COLUMNS, (columns.id_type, *[pa.int64()] * 3), strict=True)) | kept


class JobResult(ABC):
    """What a job writes of each pair."""

    FOLDER: ClassVar[str] = EMBEDDINGS  # of the units
    UNIQUE: ClassVar[bool] = True  # whether an id is there once under a condition
    NULL_CONDITIONS: ClassVar[bool] = True  # whether an output without conditions has a column of them
    NOT_FINITE: ClassVar[Reason] = Reason.NOT_FINITE
    rounded_to: Literal["float16", "float32"] = "float32"  # what the model may round vectors to

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Its part of the configuration in job.json."""

    def prepare(
        self, model: SystemConfig, texts: Sequence[Sequence[str]], conditions: Sequence[str] | None
    ) -> Prepared | None:
        """Tokenise pairs, with a text for each of `Columns.texts`. Loads no weights."""
        [sentences] = texts
        return cast("EmbedderConfig", model).prepare(sentences, conditions)

    @abstractmethod
    def compute(self, system: LoadedSystem, prepared: Prepared | None, rows: pa.Table) -> Encoded:
        """What a loaded system makes of N pairs, tokenised, and of their rows: as it is written."""

    @abstractmethod
    def computed(self, encoded: Encoded) -> Computed:
        """The columns of the output that were computed."""

    @classmethod
    @abstractmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        """What no rows of such a job can be; `basis`: sha256 of that of stored tokens beside the units."""


@dataclass(frozen=True, kw_only=True, eq=False)  # by identity: Ray Data takes it for a key
class Encoding:
    """How rows become what is written: all that the read and the encode step need of a request."""

    model: SystemConfig
    pairs: RowPairs
    result: JobResult
    compute: Compute | None = None
    compile: Compile = "off"
    batch_tokens: int | None = None

    @property
    def dim(self) -> int:
        return self.model.unconditional_dim if self.pairs.unconditional else self.model.dim


@dataclass(frozen=True, kw_only=True)
class OfVectors(JobResult):
    """A result with a vector of each pair, and perhaps more beside it. normalize: of length 1."""

    dtype: Dtype = "float32"
    normalize: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {"dtype": self.dtype} | ({"normalize": True} if self.normalize else {})

    def computed(self, encoded: Encoded) -> Computed:
        with np.errstate(invalid="ignore"):  # vectors of rejected pairs
            vectors = embedding_array(SMALL.get(self.dtype, np.asarray)(encoded.vectors))
        return [(pa.field(EMBEDDING, vectors.type), vectors), *(encoded.kept.columns() if encoded.kept else [])]

    def rounded(self, encoded: Encoded) -> Encoded:
        """Vectors as written, or float32 where they are made small later; and why some are spoilt by this."""
        if self.normalize:
            encoded = replace(encoded, vectors=l2_normalize(peak_normalize(encoded.vectors)))
        with np.errstate(over="ignore"):
            written = encoded.vectors.astype("float32" if self.dtype in SMALL else self.dtype, copy=False)
        wrong_N: np.ndarray = np.zeros(len(written), bool)
        reason = Reason.ZERO
        if self.normalize or self.dtype in SMALL:
            wrong_N = np.logical_not(encoded.vectors.any(axis=1))
        elif self.dtype == "float16":
            wrong_N, reason = (written.view(np.uint16) & 0x7FFF).max(axis=1) < FULL_DIGITS, Reason.TOO_SMALL
            wrong_N[wrong_N] = encoded.vectors[wrong_N].any(axis=1)
        refused = [why or (reason if wrong else None) for why, wrong in zip(encoded.refused, wrong_N, strict=True)]
        return replace(encoded, vectors=written, refused=refused)

    @classmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        if missing := {ID, CONDITION, EMBEDDING} - {*table.column_names}:
            yield f"no column {min(missing)!r}"
            return
        found, wanted = table.schema.field(EMBEDDING).type, embedding_type(dim, config["dtype"])
        is_list = pa.types.is_fixed_size_list(found)  # whatever its field is called
        if not is_list or (found.value_type, found.list_size) != (wanted.value_type, wanted.list_size):
            yield f"vectors of {found}, the manifest has {wanted}"
        elif table[EMBEDDING].null_count or not np.isfinite(embedding_numbers(table[EMBEDDING])).all():
            yield "a vector that is null or not finite"


class VectorResult(OfVectors):
    """The vector of each pair."""

    @property
    def rounded_to(self) -> Literal["float16", "float32"]:  # type: ignore[override]
        return "float16" if self.dtype == "float16" and not self.normalize else "float32"

    def compute(self, system: LoadedSystem, prepared: Prepared | None, rows: pa.Table) -> Encoded:
        return self.rounded(cast("Embedder", system).encode_prepared(cast("Prepared", prepared)))


@dataclass(frozen=True, kw_only=True)
class OfTokens(OfVectors):
    """A result of tokens that the file `basis` (URI) codes."""

    basis: str

    @cached_property
    def codes(self) -> TokenBasis:
        from raycase.tokens.basis import TokenBasis

        return TokenBasis.from_bytes(locate(self.basis).read(), self.basis)


@dataclass(frozen=True, kw_only=True)
class TokenResult(OfTokens):
    """The unconditional vector of each sentence, and its tokens of `token_bytes`."""

    KEY: ClassVar[str] = "word_bytes"  # of the configuration, which no other result has

    dtype: Dtype = "float16"
    token_bytes: int

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {self.KEY: self.token_bytes}

    def compute(self, system: LoadedSystem, prepared: Prepared | None, rows: pa.Table) -> Encoded:
        return self.rounded(cast("ConditionPooling", system).tokens(cast("Prepared", prepared), self.codes))

    @classmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        yield from super().defects(table, config, dim, basis)
        form = TokenFormat.of(table.schema)
        if form is None:
            yield "no stored tokens"
            return
        if form.basis != basis:
            yield f"word_basis.safetensors: {'another' if basis else 'missing'}, not the one that coded it"
        try:
            StoredTokens.from_arrow(table, form)
        except ValueError as error:
            yield f"stored tokens: {error}"


@dataclass(frozen=True, kw_only=True)
class ScoreResult(JobResult):
    """The figures that a system gives two sentences under each condition: their columns, the score first."""

    KEY: ClassVar[str] = "score_column"  # of the configuration, which no other result has
    FOLDER: ClassVar[str] = SCORES
    UNIQUE: ClassVar[bool] = False
    NULL_CONDITIONS: ClassVar[bool] = False  # a column of that name in the input is kept as it is
    NOT_FINITE: ClassVar[Reason] = Reason.SCORE_NOT_FINITE

    figures: tuple[str, ...]
    sentence2_column: str

    @property
    def config(self) -> dict[str, Any]:
        return {"dtype": "float32", self.KEY: self.figures[0], "sentence2_column": self.sentence2_column}

    def prepare(
        self, model: SystemConfig, texts: Sequence[Sequence[str]], conditions: Sequence[str] | None
    ) -> Prepared | None:
        """Without the blanks around texts, as `raycase evaluate` reads them."""
        firsts, seconds = ([text.strip() for text in side] for side in texts)
        return model.prepare_pairs(firsts, seconds, conditions and [text.strip() for text in conditions])

    def compute(self, system: LoadedSystem, prepared: Prepared | None, rows: pa.Table) -> Encoded:
        from raycase.models.configs import score_pairs

        return score_pairs(cast("Embedder", system), cast("Prepared", prepared))

    def computed(self, encoded: Encoded) -> Computed:
        columns = map(pa.array, encoded.vectors.T)
        return [(pa.field(name, column.type), column) for name, column in zip(self.figures, columns, strict=True)]

    @classmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        name = config[cls.KEY]
        if name not in table.column_names or table.schema.field(name).type != pa.float64():
            yield f"no scores in a column {name!r}"
        elif table[name].null_count or not pc.all(pc.is_finite(table[name]), min_count=0).as_py():
            yield "a score is null or not finite"


def result_of(config: Mapping[str, Any]) -> type[JobResult]:
    """What is in an output whose job has this configuration."""
    results: tuple[type[TokenResult] | type[ScoreResult], ...] = (TokenResult, ScoreResult)
    return next((result for result in results if result.KEY in config), VectorResult)


def count_defects(rows: int, table: pa.Table, config: Mapping[str, Any]) -> Iterator[str]:
    """What the pairs of so many rows cannot be: too many or few, or of documents whose chunks are not all there."""
    each = 1 if config["unconditional"] else len(config["conditions"] or ())
    if CHUNKED in config and "words" not in config:  # rows pooled from stored tokens are chunks already
        counts = [(CHUNK, "max"), (CHUNK, "count_distinct"), (CHUNK, "count")]
        of = table.group_by(DOCUMENT).aggregate(counts)
        last, distinct, count = (of[f"{CHUNK}_{name}"].to_numpy() for _, name in counts)
        strays = len(of) != rows if each else len(of) > rows  # a document may have several rows with other conditions
        if strays or (distinct != last + 1).any() or (each and (count != each * distinct).any()):
            yield f"chunks of other documents than {rows}, or not all of each"
    elif len(table) != rows * each if each else len(table) < rows:
        yield f"{len(table)} pairs of {rows} rows"


def pair_reasons(
    encoding: Encoding, encoded: Encoded, prepared: Prepared | None, row_N: np.ndarray
) -> list[Reason | None]:
    """Why each pair is rejected: refused, too long, not finite as written, or unknown to the encoder."""
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
