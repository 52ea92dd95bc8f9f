"""What the commands over the rows of one index share: checks, the rows under a condition, the files and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from raycase.commands.flags import OfIndex
from raycase.errors import check_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from raycase.index.index import Index
    from raycase.index.topk import Blocks
    from raycase.io.places import Paths

T = TypeVar("T")
NONE: Mapping[str, Any] = MappingProxyType({})


def check(
    flags: OfIndex,
    ranges: Mapping[str, tuple[bool, str]] = NONE,
    *,
    reads: Paths = NONE,
    writes: Mapping[str, tuple[str, ...]],
) -> float:
    """Check the places, beside the index's those that are read, by flag, and those that are written, by field with the
    endings of its format; and the ranges. Returns when the work begins. Raises RequestError."""
    from raycase.io.places import File, check_paths

    began = time.time()
    files = {f"--{name}": File(getattr(flags, name), endings) for name, endings in writes.items()}
    check_paths(reads=reads, opens=flags.opens, writes=files)
    check_ranges(flags, ranges)
    return began


def on_rows(
    flags: OfIndex, asked: str | None, work: Callable[[Index, str | None, Blocks], T]
) -> tuple[Index, str | None, T]:
    """Open the index, and work on its rows that pass the filter under the condition of the index that is taken for the
    one that was asked (None: unconditional): the index, that condition, and what the work gives. Notes name what was
    replaced and left out. Raises RequestError."""
    from raycase.index.index import note_searched, on_index

    def on(index: Index) -> tuple[str | None, T]:
        condition, blocks = index.blocks(asked, flags.where, exact_condition=flags.exact_condition)
        note_searched(index, {asked: condition}, flags.where)
        return condition, work(index, condition, blocks)

    index, (condition, found) = on_index(flags.open, on)
    return index, condition, found


def finish(flags: OfIndex, began: float, files: Mapping[str, pa.Table | bytes | None], **counts: Any) -> dict[str, Any]:
    """Write the files, by field, a table as Parquet; the result: the counts, the seconds, and the place of each file,
    None where none was asked for."""
    from raycase.io.schema import parquet_bytes
    from raycase.io.storage import locate

    places = {name: locate(uri) if (uri := getattr(flags, name)) else None for name in files}
    for place, content in zip(places.values(), files.values(), strict=True):
        if place:
            place.put(content if isinstance(content, bytes) else parquet_bytes(content))
    uris = {name: place and place.uri for name, place in places.items()}
    return counts | {"seconds": round(time.time() - began, 3)} | uris
