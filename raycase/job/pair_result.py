"""What a job can write of the pairs of its rows: here vectors, stored tokens beside them, or scores of two sentences.

Vectors pooled from stored tokens are in `stored_tokens.py`, states to train on in `training/vector_cache.py`. A new
kind is a class that says how it differs from vectors, and a job that makes it; `kind_of` has those that `verify` must
tell from vectors. Imports no torch.

Shapes: N pairs of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
    Columns,
    Reason,
    embedding_array,
    embedding_numbers,
    embedding_type,
)
from raycase.io.storage import locate
from raycase.io.vectors import int8_numbers, l2_normalize, peak_normalize, sign_bits
from raycase.names import Dtype, OnUnknown
from raycase.tokens.stored import StoredTokens, TokenFormat

EMBEDDINGS, SCORES = "embeddings", "scores"  # folders of units: of `raycase embed`, of `raycase score`
Encode = Callable[[Any, pa.Table], Any]  # N tokenised pairs (`Prepared`), and their rows -> `models.pairs.Encoded`
FULL_DIGITS = 0x400  # the bits of 6.1e-5, the smallest float16 with all of its digits
SMALL = {"int8": int8_numbers, "binary": sign_bits}  # what is written in place of vectors of float32


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """What a job writes of each pair, here its vector, and of which columns: all that the steps need of a request.

    conditions: those of every row; None where each row has its own (a condition column) or none. normalize: vectors of
    length 1. token_bytes: of a stored token; 0: none are stored. chunking: how texts are cut; each chunk is then a row
    of the output.
    """

    CHUNK: ClassVar[str] = "chunk"  # of the configuration, where texts are cut: as `IndexMetadata.chunk`
    KEY: ClassVar[str]  # of the configuration in job.json, which no other kind has
    FOLDER: ClassVar[str] = EMBEDDINGS  # of the units
    UNIQUE: ClassVar[bool] = True  # whether an id is there once under a condition
    NULL_CONDITIONS: ClassVar[bool] = True  # whether an output without conditions has a column of them
    NOT_FINITE: ClassVar[Reason] = Reason.NOT_FINITE

    columns: Columns
    conditions: tuple[str, ...] | None = None
    dtype: Dtype = "float32"
    normalize: bool = False
    on_long: str
    on_unknown: OnUnknown = "embed"
    token_bytes: int = 0
    chunking: Chunking | None = None

    @property
    def unconditional(self) -> bool:
        return self.conditions is None and self.columns.condition is None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration in job.json, without the model."""
        columns, chunked = self.columns, self.chunking
        later = {
            "normalize": self.normalize,
            "on_unknown": "" if self.on_unknown == "embed" else self.on_unknown,
            self.CHUNK: chunked and [chunked.tokens, chunked.overlap, *[1] * chunked.late],
        }
        return {name: value for name, value in later.items() if value} | {  # else as before there were these flags
            "dtype": self.dtype,
            "on_long": self.on_long,
            "text_column": columns.texts[0] if columns.texts else None,
            "id_column": columns.id,
            "types": {name: str(kind) for name, kind in sorted(columns.types.items())},
            "keep_columns": columns.keep if chunked is None else (*CHUNK_COLUMNS, *columns.keep),
            "condition_column": columns.condition,
            "conditions": self.conditions,
            "unconditional": self.unconditional,
        }

    @property
    def needs_direction(self) -> bool:
        """Whether what is written of a vector is its direction, which zeros have none of."""
        return self.normalize or self.dtype in SMALL

    @property
    def written_columns(self) -> tuple[pa.DataType, dict[str, pa.DataType]]:
        """The type of the ids in the output, and its kept columns with their types."""
        columns = self.columns
        kept = {name: columns.types[name] for name in columns.keep}
        if self.chunking is None:
            return columns.id_type, kept
        return pa.string(), dict(zip(CHUNK_COLUMNS, (columns.id_type, *[pa.int64()] * 3), strict=True)) | kept

    def open(self, system: Any) -> Encode:
        """What encodes with a loaded system; here to vectors."""
        return lambda prepared, rows: system.encode_prepared(prepared)

    def prepare(self, config: Any, texts: Sequence[Sequence[str]], conditions: Sequence[str] | None) -> Any:
        """Tokenise pairs, with a text for each of `columns.texts`, for a system: `Prepared`. Loads no weights."""
        return config.prepare(*texts, conditions)

    def finish(self, done: Any) -> Any:
        """What `open` made of N pairs, as it is written."""
        if self.normalize:
            done = replace(done, vectors=l2_normalize(peak_normalize(done.vectors)))
        dtype = "float32" if self.dtype in SMALL else self.dtype  # made small where they are known to be finite
        with np.errstate(over="ignore"):
            written = done.vectors.astype(dtype, copy=False)
        wrong_N, reason = np.zeros(len(written), bool), Reason.ZERO
        if self.needs_direction:
            wrong_N = ~done.vectors.any(axis=1)
        elif dtype == "float16":
            wrong_N, reason = (written.view(np.uint16) & 0x7FFF).max(axis=1) < FULL_DIGITS, Reason.TOO_SMALL
            wrong_N[wrong_N] = done.vectors[wrong_N].any(axis=1)
        refused = [why or (reason if wrong else None) for why, wrong in zip(done.refused, wrong_N, strict=True)]
        return replace(done, vectors=written, refused=refused)

    def results(self, done: Any, pairs: np.ndarray) -> list[tuple[pa.Field, pa.Array]]:
        """The columns of the output that were computed, of some of the pairs."""
        make_small = SMALL.get(self.dtype, np.asarray)
        vectors = embedding_array(make_small(done.vectors[pairs]))
        kept = [] if done.kept is None else done.kept.take(pairs).columns()
        return [(pa.field(EMBEDDING, vectors.type), vectors), *kept]

    @classmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        """What no rows of a job with this configuration can be, in words; `dim`: of vectors, `basis`: sha256 of that of
        stored tokens, as they stand beside the units."""
        if missing := {ID, CONDITION, EMBEDDING} - {*table.column_names}:
            yield f"no column {min(missing)!r}"
            return
        kind, wanted = table.schema.field(EMBEDDING).type, embedding_type(dim, config["dtype"])
        is_list = pa.types.is_fixed_size_list(kind)  # whatever its field is called
        if not is_list or (kind.value_type, kind.list_size) != (wanted.value_type, wanted.list_size):
            yield f"vectors of {kind}, the manifest says {wanted}"
        elif table[EMBEDDING].null_count or not np.isfinite(embedding_numbers(table[EMBEDDING])).all():
            yield "a vector that is null or not finite"


@dataclass(frozen=True, kw_only=True)
class TokenResult(PairResult):
    """The vector of each sentence without a condition, and its tokens, from which others are pooled later.

    basis: the file by which tokens are coded (URI; `raycase.tokens.basis`); None: vectors alone are computed.
    """

    KEY: ClassVar[str] = "word_bytes"

    basis: str | None

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {self.KEY: self.token_bytes}

    def open(self, system: Any) -> Encode:
        if self.basis is None:
            return super().open(system)
        codes = read_codes(self.basis)
        return lambda prepared, rows: system.tokens(prepared, codes)

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
class ScoreResult(PairResult):
    """What a system says of two sentences under each condition; `figures`: its columns, the score first."""

    KEY: ClassVar[str] = "score_column"
    FOLDER: ClassVar[str] = SCORES
    UNIQUE: ClassVar[bool] = False
    NULL_CONDITIONS: ClassVar[bool] = False  # a column of that name in the input is kept as it is
    NOT_FINITE: ClassVar[Reason] = Reason.SCORE_NOT_FINITE

    figures: Sequence[str]

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {self.KEY: self.figures[0], "sentence2_column": self.columns.texts[1]}

    def prepare(self, config: Any, texts: Sequence[Sequence[str]], conditions: Sequence[str] | None) -> Any:
        """Without the blanks around texts, as `raycase evaluate` reads them."""
        firsts, seconds = ([text.strip() for text in side] for side in texts)
        return config.prepare_pairs(firsts, seconds, conditions and [text.strip() for text in conditions])

    def open(self, system: Any) -> Encode:
        from raycase.models.configs import score_pairs

        return lambda prepared, rows: score_pairs(system, prepared)

    def finish(self, done: Any) -> Any:
        return done

    def results(self, done: Any, pairs: np.ndarray) -> list[tuple[pa.Field, pa.Array]]:
        columns = map(pa.array, done.vectors[pairs].T)
        return [(pa.field(name, column.type), column) for name, column in zip(self.figures, columns, strict=True)]

    @classmethod
    def defects(cls, table: pa.Table, config: Mapping[str, Any], dim: int, basis: str | None) -> Iterator[str]:
        name = config[cls.KEY]
        if name not in table.column_names or table.schema.field(name).type != pa.float64():
            yield f"no scores in a column {name!r}"
        elif table[name].null_count or not pc.all(pc.is_finite(table[name]), min_count=0).as_py():
            yield "a score is null or not finite"


def read_codes(basis: str) -> Any:
    """The codes of stored tokens, `TokenBasis`, by their file (URI). Raises RequestError."""
    from raycase.tokens.basis import TokenBasis

    return TokenBasis.from_bytes(locate(basis).read(), basis)


def kind_of(config: Mapping[str, Any]) -> type[PairResult]:
    """The kind of an output whose job has this configuration."""
    return next((kind for kind in (TokenResult, ScoreResult) if kind.KEY in config), PairResult)


def count_defects(rows: int, table: pa.Table, config: Mapping[str, Any]) -> Iterator[str]:
    """What the pairs of so many rows cannot be under the job's conditions, in words: too many or few, or of documents
    whose chunks are not all there."""
    each = 1 if config["unconditional"] else len(config["conditions"] or ())
    if PairResult.CHUNK in config and "words" not in config:  # rows pooled from stored tokens are chunks already
        counts = [(CHUNK, "max"), (CHUNK, "count_distinct"), (CHUNK, "count")]
        of = table.group_by(DOCUMENT).aggregate(counts)
        last, distinct, count = (of[f"{CHUNK}_{name}"].to_numpy() for _, name in counts)
        strays = len(of) != rows if each else len(of) > rows  # a document may have several rows with other conditions
        if strays or (distinct != last + 1).any() or (each and (count != each * distinct).any()):
            yield f"chunks of other documents than {rows}, or not all of each"
    elif len(table) != rows * each if each else len(table) < rows:
        yield f"{len(table)} pairs of {rows} rows"
