"""Which columns an output can keep: those that an index can have and give back as they went in.

Lance and Arrow's datasets have names of their own, and types that they cannot store or read.
"""

from __future__ import annotations

import pyarrow as pa

from raycase.data.schema import ASKED, PLAIN, POOLED, QUERY, RANK, SCORE, VECTOR, WEIGHTS
from raycase.data.stored_words import WORD_COLUMNS
from raycase.errors import MOST_LABEL, RequestError, visible

OF_ANSWERS = (QUERY, ASKED, POOLED, RANK, SCORE)
RESERVED_COLUMNS = (VECTOR, PLAIN, *WORD_COLUMNS, *OF_ANSWERS)  # never those of the rows of an index
OF_LANCE = (
    *("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"),
    *("_distance", "_score"),
)
OF_ARROW = ("__fragment_index", "__batch_index", "__last_in_fragment", "__filename")  # of a dataset of files
NAME_CHARACTERS = 255  # at most


def check_kept(field: pa.Field, flag: str, *, indexed: bool = True) -> None:
    """Raise RequestError, which names the flag, for a kept column whose name or type cannot be read back.

    `indexed`: whether an index must be able to have it, too.
    """
    problem = _name_problem(field.name, indexed)
    if problem is None and not _is_readable(field.type, indexed):
        problem = f"the type {visible(field.type, MOST_LABEL)}"
    if problem:
        expected = "that an index can have" if indexed else "that can be read back"
        raise RequestError(
            f"{flag}: expected kept columns {expected}, got {visible(repr(field.name), MOST_LABEL)} with {problem}; "
            "rename or convert it in the input, or leave it out of --keep-columns"
        )


def _name_problem(name: str, indexed: bool) -> str | None:
    if name in OF_ARROW:
        return "a name that Arrow has for itself"
    if not indexed:
        return None
    if not name or any(character in name for character in ".`\0"):
        return "a name that is empty or has a dot, a backtick or a NUL"
    if len(name) > NAME_CHARACTERS:
        return f"a name of {len(name):,} characters, more than {NAME_CHARACTERS}"
    if name in (*RESERVED_COLUMNS, WEIGHTS, *OF_LANCE):
        return "a name that an index or its answers have for themselves"
    return None


def _is_readable(kind: pa.DataType, indexed: bool) -> bool:
    """Whether Arrow takes rows of the type, and Lance stores it: in lists of fixed size only what has a fixed size."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_readable(kind.storage_type, indexed)
    if types.is_dictionary(kind):
        return _is_readable(kind.value_type, indexed)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return False
    if indexed:
        if types.is_fixed_size_list(kind):
            return _has_fixed_size(kind)
        if types.is_map(kind) and kind.keys_sorted:
            return False
        if types.is_list_view(kind) or types.is_large_list_view(kind):  # Arrow casts them to lists wrongly
            return False
        if _is_small_decimal(kind):
            return False
    return all(_is_readable(kind.field(i).type, indexed) for i in range(kind.num_fields))


def _has_fixed_size(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_fixed_size(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size > 0 and _has_fixed_size(kind.value_type)
    large = pa.types.is_decimal(kind) and not _is_small_decimal(kind)
    return large or pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)


def _is_small_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)
