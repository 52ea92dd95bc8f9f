"""Names of columns, reasons for rejections, Arrow types and Parquet bytes of all rooms; the columns of an input."""

import io
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.errors import MOST_LABEL, RequestError, check_problems, visible
from raycase.names import Dtype

ID, TEXT, CONDITION, EMBEDDING = "id", "text", "condition", "embedding"
# of an index: unit vectors with and without a condition; a row has one of the two
VECTOR, UNCONDITIONAL = "vector", "plain"  # on disk
RANK, SCORE = "rank", "score"  # of answers, joins and pairs
FLOATS: Collection[Dtype] = ("float16", "float32")  # those that indexes and joins read
ARROW_NUMBERS = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8(), "binary": pa.uint8()}
BITS = 8  # dimensions in a byte of a binary vector
DOCUMENT, CHUNK, START, END = "document", "chunk", "start", "end"  # of a chunk: whose, which, and its characters
CHUNK_COLUMNS = (DOCUMENT, CHUNK, START, END)
# columns of pairs, counted and not written: the row of each, whether its text was cut, why it is rejected
ROW_OF_PAIR, PAIR_TRUNCATED, PAIR_REJECTED = OF_PAIRS = ("__row", "__truncated", "__rejected")
SEPARATORS = ";\t|"  # of files that are named as CSV
INT64 = range(-(2**63), 2**63)
OF_ANSWERS = ("query", "asked", "pooled", RANK, SCORE, "stated", "weights")  # of `raycase.index.answers`
# of stored tokens: codes, share and code of the unconditional part; in an index the hash of the basis, and sketches
CODES, UNCONDITIONAL_PART = "word_codes", "word_plain"
BASIS, SKETCH = "word_basis", "word_sketch"
HAS_TOKENS = f"{BASIS} IS NOT NULL"  # the filter for rows of an index
TOKEN_COLUMNS = (CODES, UNCONDITIONAL_PART, BASIS, SKETCH)
RESERVED_COLUMNS = (VECTOR, UNCONDITIONAL, *TOKEN_COLUMNS, *OF_ANSWERS[:5])  # never those of the rows of an index
OF_LANCE = (
    *("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"),
    *("_distance", "_score"),
)


class Reason(StrEnum):
    """Why a row is in `rejected/` and not in `embeddings/` or `scores/`."""

    UNPARSED = "line does not parse"
    INVALID_UTF8 = "invalid UTF-8"
    WRONG_TYPE = "wrong type"
    NULL_TEXT = "null text"
    EMPTY_TEXT = "empty text"
    NULL_ID = "null id"
    NULL_CONDITION = "null condition"
    EMPTY_CONDITION = "empty condition"
    DUPLICATE_CONDITION = "duplicate condition"
    TEXT_TOO_LONG = "text too long"
    NOTHING_KNOWN = "text without a token that the encoder knows"
    TOO_MANY_CHARACTERS = "too many characters"
    UNKNOWN_CONDITION = "condition unknown to the model"
    NO_ROOM = "condition leaves no room for the sentence"
    NOT_FINITE = "vector not finite"
    ZERO = "vector of zeros"
    TOO_SMALL = "vector too small for float16"
    SCORE_NOT_FINITE = "score not finite"
    KILLED = "killed the encoder"
    UNKNOWN_TOKEN = "token that the model has no weights for"
    FAILED = "the encoder failed"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """An input row that is not embedded; `row` counts from 0 within its file, `file` is named in a unit of several."""

    row: int
    reason: Reason
    content: str
    id: str | None = None
    detail: str = ""
    file: str = ""


REJECTED = ("file", "row", "id", "reason", "detail", "content")  # columns
REJECTED_SCHEMA = pa.schema([(name, pa.int64() if name == "row" else pa.string()) for name in REJECTED])


def rejected_table(file: str, rejections: Sequence[Rejection], earlier: pa.Table | None = None) -> pa.Table:
    """Rejections, and earlier ones, as a table in the order of the input; `file`: of those that name none."""
    found = pa.Table.from_pylist([vars(r) | {"file": r.file or file} for r in rejections], schema=REJECTED_SCHEMA)
    every = found if earlier is None else pa.concat_tables([earlier, found])
    return every.sort_by([("file", "ascending"), ("row", "ascending")])


def embedding_type(dim: int, dtype: str) -> pa.DataType:
    """Arrow type of a vector column: fixed_size_list<float16|float32|int8>[dim], or <uint8>[dim / 8] of binary."""
    size = dim // BITS if dtype == "binary" else dim
    return pa.list_(pa.field("item", ARROW_NUMBERS[dtype], nullable=False), size)


def embedding_array(vectors_ND: np.ndarray, null_N: np.ndarray | None = None) -> pa.FixedSizeListArray:
    """(N, D) float16, float32 or int8, or (N, D / 8) uint8 -> Arrow array, no copy; `null_N`: which are null."""
    values = pa.array(np.ascontiguousarray(vectors_ND).reshape(-1))
    type_ = pa.list_(pa.field("item", values.type, nullable=False), vectors_ND.shape[1])
    return pa.FixedSizeListArray.from_arrays(values, type=type_, mask=None if null_N is None else pa.array(null_N))


def embedding_numbers(vectors: pa.ChunkedArray) -> np.ndarray:
    """The opposite of `embedding_array`, of a column without nulls."""
    numbers: np.ndarray = vectors.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, vectors.type.list_size)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **parquet_options(table.schema))
    return sink.getvalue()


def parquet_table(data: bytes | BinaryIO, columns: list[str] | None = None) -> pa.Table:
    """The table of a Parquet file, its bytes or opened, with those of these columns that it has, or all.

    `pq.read_table` would scan a dataset: a thread of the scan that still holds the bytes aborts Python at its end.
    """
    source = pa.BufferReader(data) if isinstance(data, bytes) else data
    file = pq.ParquetFile(source, page_checksum_verification=True)
    return file.read(columns, use_threads=False)


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a table of this schema is written."""
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # numbers of a byte would each take four; other vectors do not compress, and a dictionary of them is lost work
    lists = (f for f in schema if pa.types.is_fixed_size_list(f.type))
    small = [f"{f.name}.list.element" for f in lists if f.type.value_type in (pa.int8(), pa.uint8())]
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts + small or False}
    return options | {"write_page_checksum": True}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read, and their types in the output; texts: one, two of pairs, or none of tokens."""

    texts: tuple[str, ...]
    id: str | None
    condition: str | None
    keep: tuple[str, ...]
    types: dict[str, pa.DataType]
    tokens: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        read = (self.id, *self.texts, self.condition, *self.keep, *self.tokens)
        return list(dict.fromkeys(n for n in read if n is not None))

    @property
    def id_type(self) -> pa.DataType:
        return pa.string() if self.id is None else self.types[self.id]


def find_columns(
    schema: pa.Schema,
    uri: str,
    *,
    text: str,
    id: str | None,
    condition: str | None,
    keep: Sequence[str] | None,
    second: str | None = None,
    written: Sequence[str] = (ID, CONDITION, EMBEDDING, *OF_PAIRS),
) -> Columns:
    """Resolve the requested columns against the schema of the first file, which is at `uri`.

    id: None takes the column `id` if there is one. keep: None is the text. written: a unit's own columns.
    """
    if id is None and ID in schema.names:
        id = ID
    kept = tuple(dict.fromkeys((text,) if keep is None else keep))
    others = tuple(name for name in kept if name not in written)
    texts = (text,) if second is None else (text, second)
    columns = Columns(texts=texts, id=id, condition=condition, keep=others, types={})
    check_columns(schema, columns, uri)
    own = {ID: id, CONDITION: condition}  # columns of the output that may have their names in the input, too
    advice = "is a column of the output; rename it in the input, or pass --keep-columns without it"
    check_problems({f"--keep-columns: {name!r} {advice}": name in written and own.get(name) != name for name in kept})
    types = {name: _written_type(schema.field(name).type) for name in columns.names}
    types |= dict.fromkeys(columns.texts, pa.string())
    if id is not None and not pa.types.is_integer(types[id]):
        types[id] = pa.string()
    for name in columns.keep if second is None else ():  # scores are not indexed
        shown = visible(repr(name), MOST_LABEL)
        got = f"--keep-columns: {uri}: expected kept columns that an index can have, got {shown} with a name that"
        advice = "; rename it in the input, or pass --keep-columns without it"
        taken = {*RESERVED_COLUMNS, *OF_ANSWERS, *OF_LANCE}
        odd = f"{got} is empty or has a dot, a backtick or a NUL{advice}"
        reserved = f"{got} an index or its answers have for themselves{advice}"
        check_problems({odd: not name or {*name} & {*".`\0"}, reserved: name in taken})
    return replace(columns, types=types)


def check_columns(schema: pa.Schema, columns: Columns, uri: str) -> None:
    """Raise RequestError where a file lacks a column, or has it twice or in a wrong type."""
    for name in columns.names:
        is_text = [name] == [*columns.texts]  # of two there are two flags
        check_once(name, schema.names, uri, "; --text-column names another" if is_text else "")
    types = {name: storage_type(schema.field(name).type) for name in columns.names}
    texts, problems = (pa.string(), pa.null()), {}
    for name in columns.texts:
        problems[f"{uri}: expected strings in the column {name!r}, got {types[name]}"] = types[name] not in texts
    if columns.condition is not None:
        type_ = types[columns.condition]
        inner = type_.value_type if pa.types.is_list(type_) else type_
        problems[f"{uri}: expected strings or lists of them in {columns.condition!r}, got {type_}"] = inner not in texts
    if columns.id is not None:
        type_ = types[columns.id]
        is_any = (pa.types.is_primitive, pa.types.is_string, pa.types.is_decimal, pa.types.is_null)
        fits = any(is_one(type_) for is_one in is_any)
        problems[f"{uri}: expected numbers or strings in {columns.id!r}, got {type_}; write it as text"] = not fits
    for name, wanted in columns.types.items():
        actual = schema.field(name).type
        as_text = name == columns.id and wanted == pa.string()
        fits = as_text or pa.types.is_null(actual) or _written_type(actual) == wanted
        problems[f"{uri}: expected {wanted} in the column {name!r} as in the first file, got {actual}"] = not fits
    check_problems(problems)


def check_once(name: str, names: Sequence[str], where: str, advice: str = "") -> None:
    """Raise RequestError, with some advice, unless the column is one of these names, and one only."""
    if names.count(name) != 1:
        once = " once" if name in names else ""
        if len(names) == 1 and (apart := next((each for each in SEPARATORS if each in names[0]), None)):
            shown = {"\t": "tabs"}.get(apart, f"{apart!r}")
            advice = f", which is one column: {shown} part its names, where raycase reads commas; write it with commas"
        raise RequestError(f"{where}: expected the column {name!r}{once}, got {', '.join(names) or 'none'}{advice}")


def _written_type(type_: pa.DataType) -> pa.DataType:
    """The type in which a column is written: one for all integers and one for all floats, so that files agree."""
    type_ = storage_type(without_views(type_))
    if pa.types.is_integer(type_) and not pa.types.is_uint64(type_):
        return pa.int64()
    if pa.types.is_floating(type_):
        return pa.float64()
    return pa.string() if pa.types.is_null(type_) else type_


def without_views(type_: pa.DataType) -> pa.DataType:
    """The type with strings and bytes in place of views of them, of which Arrow's `take` knows none."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(without_views(field.type)) for field in type_])
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        several = pa.list_ if pa.types.is_list(type_) else pa.large_list
        return several(type_.value_field.with_type(without_views(type_.value_type)))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(type_, type_)


def storage_type(type_: pa.DataType) -> pa.DataType:
    """The type behind dictionary and large types, and views of strings."""
    if pa.types.is_dictionary(type_):
        return storage_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(storage_type(type_.value_type))
    return type_


RowFunction = Callable[[dict[str, Any]], dict[str, Any]]


def mapped(table: pa.Table, function: RowFunction) -> pa.Table:
    """The rows after a function."""
    rows = [function(row) for row in table.to_pylist()]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [_column(name, [row.get(name) for row in rows], table.schema) for name in names]
    return pa.table([column for _, column in columns], schema=pa.schema([field for field, _ in columns]))


def _column(name: str, values: list[Any], before: pa.Schema) -> tuple[pa.Field, pa.Array]:
    """With the field that it was before, where this changes no value but by rounding a float: vectors stay float32."""
    if name in before.names:
        field = before.field(name)
        with suppress(pa.ArrowException, OverflowError):
            column = pa.array(values, field.type)
            nulls = column.null_count * getattr(field.type, "list_size", 0)
            if nulls and not field.type.value_field.nullable and not column.flatten().null_count:
                filled = column.values.fill_null(0)  # Lance takes no null inside a null vector
                column = pa.FixedSizeListArray.from_arrays(filled, type=field.type, mask=column.is_null())
            if re.search("float|double", str(field.type)) or str(column.to_pylist()) == str(values):
                return field, column
    column = pa.array(values)
    return pa.field(name, column.type), column
