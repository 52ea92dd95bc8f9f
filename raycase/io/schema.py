"""Names of columns, reasons for rejections, Arrow types and Parquet bytes that every room shares."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ID, CONDITION, EMBEDDING = "id", "condition", "embedding"
VECTOR, PLAIN = "vector", "plain"  # of an index: unit vectors with and without a condition; a row has one of the two
QUERY, ASKED, RANK, SCORE = "query", "asked", "rank", "score"  # columns of an answer
POOLED = "pooled"  # of an answer: whether the condition was pooled from stored tokens, not embedded in advance
STATED = "stated"  # of an answer, where the model tells: probability that the text says something of the condition
PARTS = "parts"  # of an answer under weighted conditions: the cosine under each
VECTOR_RANK, TEXT_RANK = "vector_rank", "text_rank"  # of an answer by vectors and words
WEIGHTS = "weights"  # of an answer, where it is asked for: what the condition looked at
Dtype = Literal["float16", "float32", "int8", "binary"]  # of written vectors
FLOATS: Collection[Dtype] = ("float16", "float32")  # those that indexes and joins read
ARROW_NUMBERS = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8(), "binary": pa.uint8()}
BITS = 8  # dimensions in a byte of a binary vector
DOCUMENT, CHUNK, START, END = "document", "chunk", "start", "end"  # of a chunk: whose, which, and its characters
CHUNK_COLUMNS = (DOCUMENT, CHUNK, START, END)
ROW_OF_PAIR = "__row"  # column of a unit with the input row of each pair; counted, not written


class Reason(StrEnum):
    """Why a row is in `rejected/` and not in `embeddings/` or `scores/`."""

    UNPARSED = "line does not parse"
    INVALID_UTF8 = "invalid UTF-8"
    WRONG_TYPE = "wrong type"
    NULL_TEXT = "null text"
    EMPTY_TEXT = "empty text"
    NULL_ID = "null id"
    DUPLICATE_ID = "duplicate id"
    NULL_CONDITION = "null condition"
    EMPTY_CONDITION = "empty condition"
    DUPLICATE_CONDITION = "duplicate condition"
    TEXT_TOO_LONG = "text too long"
    UNKNOWN_CONDITION = "condition unknown to the model"
    NO_ROOM = "condition leaves no room for the sentence"
    NOT_FINITE = "vector not finite"
    ZERO = "vector of zeros"
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


REJECTED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("content", pa.string()),
    ]
)


def rejected_table(file: str, rejections: Sequence[Rejection]) -> pa.Table:
    """Rejections as a table of `REJECTED_SCHEMA`, in the order of the input; `file`: of those that name none."""
    rows = sorted(rejections, key=lambda r: (r.file, r.row))
    return pa.Table.from_pylist([vars(r) | {"file": r.file or file} for r in rows], schema=REJECTED_SCHEMA)


def in_input_order(rejected: pa.Table) -> pa.Table:
    """Rejected rows in the order of the input, whose files are in the order of their names."""
    return rejected.sort_by([("file", "ascending"), ("row", "ascending")])


def embedding_type(dim: int, dtype: str) -> pa.DataType:
    """Arrow type of a vector column: fixed_size_list<float16|float32|int8>[dim], or <uint8>[dim / 8] of binary."""
    size = dim // BITS if dtype == "binary" else dim
    return pa.list_(pa.field("item", ARROW_NUMBERS[dtype], nullable=False), size)


def is_embedding(kind: pa.DataType, dtypes: Collection[str] = FLOATS) -> bool:
    """Whether it is one of `embedding_type`, of one of these number formats, whatever its field is called."""
    numbers = [ARROW_NUMBERS[dtype] for dtype in dtypes]
    return pa.types.is_fixed_size_list(kind) and kind.list_size > 0 and kind.value_type in numbers


def embedding_array(vectors_ND: np.ndarray, null_N: np.ndarray | None = None) -> pa.FixedSizeListArray:
    """(N, D) float16, float32 or int8, or (N, D / 8) uint8 -> Arrow array of `embedding_type`, without a copy.

    null_N: bool, the rows that are null.
    """
    values = pa.array(np.ascontiguousarray(vectors_ND).reshape(-1))
    kind = pa.list_(pa.field("item", values.type, nullable=False), vectors_ND.shape[1])
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=None if null_N is None else pa.array(null_N))


def embedding_numbers(vectors: pa.ChunkedArray) -> np.ndarray:
    """The opposite of `embedding_array`, of a column without nulls."""
    numbers: np.ndarray = vectors.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(len(vectors), -1) if len(vectors) else numbers.reshape(0, vectors.type.list_size)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **parquet_options(table.schema))
    return sink.getvalue()


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a table of this schema is written."""
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # numbers of a byte would each take four; other vectors do not compress, and a dictionary of them is lost work
    lists = (f for f in schema if pa.types.is_fixed_size_list(f.type))
    small = [f"{f.name}.list.element" for f in lists if f.type.value_type in (pa.int8(), pa.uint8())]
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts + small or False}
    return options | {"write_page_checksum": True}
