"""Which columns of the input are read, and in which types; checked for every file before any row is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.io.schema import (
    ASKED,
    CONDITION,
    EMBEDDING,
    ID,
    PLAIN,
    POOLED,
    QUERY,
    RANK,
    ROW_OF_PAIR,
    SCORE,
    STATED,
    VECTOR,
    WEIGHTS,
)
from raycase.io.stored_tokens import TOKEN_COLUMNS

INT64 = range(-(2**63), 2**63)
OF_ANSWERS = (QUERY, ASKED, POOLED, RANK, SCORE)
RESERVED_COLUMNS = (VECTOR, PLAIN, *TOKEN_COLUMNS, *OF_ANSWERS)  # never those of the rows of an index
OF_LANCE = (
    *("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"),
    *("_distance", "_score"),
)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read; `types`: Arrow types of the columns, as the output has them.

    texts: that of the sentences, or the two of pairs of sentences; none of stored tokens. words: of stored tokens.
    """

    texts: tuple[str, ...]
    id: str | None
    condition: str | None
    keep: tuple[str, ...]
    types: dict[str, pa.DataType]
    words: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        read = (self.id, *self.texts, self.condition, *self.keep, *self.words)
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
    written: Sequence[str] = (ID, CONDITION, EMBEDDING, ROW_OF_PAIR),
) -> Columns:
    """Resolve the requested columns against the schema of the first file, which is at `uri`.

    `id` None takes the column `id` if there is one. `keep` None: the text. `written`: a unit's own columns. Raises
    RequestError for a missing column, one of a wrong type, and a kept column with the name of an output column or one
    that an index cannot have.
    """
    if id is None and ID in schema.names:
        id = ID
    kept = tuple(dict.fromkeys((text,) if keep is None else keep))
    others = tuple(name for name in kept if name not in written)
    texts = (text,) if second is None else (text, second)
    columns = Columns(texts=texts, id=id, condition=condition, keep=others, types={})
    check_columns(schema, columns, uri)
    own = {ID: id, CONDITION: condition}  # columns of the output that may have their names in the input, too
    for name in kept:
        if name in written and own.get(name) != name:
            raise RequestError(
                f"--keep-columns: {name!r} is a column of the output; rename it in the input, or leave it out"
            )
    types = {name: _written_type(schema.field(name).type) for name in columns.names}
    types |= dict.fromkeys(columns.texts, pa.string())
    if id is not None and not pa.types.is_integer(types[id]):
        types[id] = pa.string()
    columns = replace(columns, types=types)
    for name in columns.keep if second is None else ():  # scores are not indexed
        check_kept(name, f"--keep-columns: {uri}")
    return columns


def check_columns(schema: pa.Schema, columns: Columns, uri: str) -> None:
    """Raise RequestError where a file lacks a column, or has it twice or in a wrong type."""
    for name in columns.names:
        is_text = [name] == [*columns.texts]  # of two there are two flags
        check_once(name, schema.names, uri, "; --text-column names another" if is_text else "")
    for name in columns.texts:
        text = plain_type(schema.field(name).type)
        if not (pa.types.is_string(text) or pa.types.is_null(text)):
            raise RequestError(f"{uri}: expected strings in the column {name!r}, got {text}")
    if columns.condition is not None:
        condition = plain_type(schema.field(columns.condition).type)
        inner = condition.value_type if pa.types.is_list(condition) else condition
        if not (pa.types.is_string(inner) or pa.types.is_null(inner)):
            raise RequestError(f"{uri}: expected strings or lists of them in {columns.condition!r}, got {condition}")
    if columns.id is not None:
        kind = plain_type(schema.field(columns.id).type)
        is_any = (pa.types.is_primitive, pa.types.is_string, pa.types.is_decimal, pa.types.is_null)
        if not any(is_one(kind) for is_one in is_any):
            raise RequestError(f"{uri}: expected numbers or strings in {columns.id!r}, got {kind}; write it as text")
    for name, expected in columns.types.items():
        actual = schema.field(name).type
        as_text = name == columns.id and expected == pa.string()
        if not (as_text or pa.types.is_null(actual) or _written_type(actual) == expected):
            raise RequestError(f"{uri}: expected {expected} in the column {name!r} as in the first file, got {actual}")


def check_once(name: str, names: Sequence[str], where: str, advice: str = "") -> None:
    """Raise RequestError, with some advice, unless the column is one of these names, and one only."""
    if names.count(name) != 1:
        once = " once" if name in names else ""
        raise RequestError(f"{where}: expected the column {name!r}{once}, got {', '.join(names) or 'none'}{advice}")


def _written_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is written: one for all integers and one for all floats, so that files agree."""
    kind = plain_type(kind)
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_null(kind) else kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type behind dictionary and large types, and views of strings."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def check_kept(name: str, flag: str) -> None:
    """Raise RequestError, which names the flag, for a kept column whose name no index can have."""
    problem = None
    if not name or any(character in name for character in ".`\0"):
        problem = "a name that is empty or has a dot, a backtick or a NUL"
    elif name in (*RESERVED_COLUMNS, STATED, WEIGHTS, *OF_LANCE):
        problem = "a name that an index or its answers have for themselves"
    if problem:
        raise RequestError(
            f"{flag}: expected kept columns that an index can have, got {visible(repr(name), MOST_LABEL)} with "
            f"{problem}; rename it in the input, or pass --keep-columns without it"
        )
