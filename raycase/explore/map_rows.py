"""The rows of an index that are on its maps: those under all conditions, or a sample of them, and how many are not.

Shapes: C conditions, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.explore.positions import LEAST_ROWS
from raycase.index.filters import Filter, checked_filter
from raycase.index.index import Index
from raycase.index.lance_files import OFFSET, offsets_of, sql_equals
from raycase.io.schema import CONDITION, ID
from raycase.io.stored_tokens import BASIS

MOST_CHARACTERS = 300  # of a text or an id on a page; the rest is cut off


@dataclass(frozen=True, kw_only=True)
class MapRows:
    """N rows of an index, each with the same id under every condition; offsets: under each, (N,), by their filters.

    of: rows under all conditions, of which these are a sample; left_out: rows of the index that are not under all.
    """

    offsets: dict[str, np.ndarray]
    texts: list[str]
    ids: list[str]
    of: int
    left_out: int

    def under(self, index: Index, condition: str | None) -> np.ndarray:
        """The offsets of the rows under a condition, (N,): where its vectors are, or words of which they are pooled."""
        return self.offsets[_filter_of(index, condition)]

    @property
    def cut(self) -> int:
        """How many texts are too long for a page."""
        return sum(len(text) > MOST_CHARACTERS for text in self.texts)

    def summary(self, where: str | None, seed: int) -> str:
        """What is on the map, and what is not."""
        shown = len(self.texts)
        parts = [f"{shown:,} rows" if shown == self.of else f"{shown:,} of {self.of:,} rows, a sample (seed {seed})"]
        if where:
            parts.append(f"where {visible(where, MOST_LABEL)}")
        if self.left_out:
            parts.append(f"rows left out because they lack one of the conditions: {self.left_out:,}")
        if self.cut:
            parts.append(f"texts cut after {MOST_CHARACTERS} characters: {self.cut:,}")
        return "; ".join(parts)


def choose_rows(
    index: Index,
    conditions: Sequence[str | None],
    *,
    text: str | None,
    most: int,
    seed: int,
    where: str | None = None,
) -> MapRows:
    """At most so many of the rows under all conditions (None: unconditional) that pass a filter, in the order of the
    index. text: the column with their texts; None: their ids are shown.

    Raises RequestError for fewer rows than a map has.
    """
    passing = None if where is None else checked_filter(index.dataset, index.root, where, "where")
    filters = dict.fromkeys(_filter_of(index, condition) for condition in conditions)
    common_CN = common_rows([_rows(index, rows_filter, passing) for rows_filter in filters])
    of = common_CN.shape[1]
    if of < LEAST_ROWS:
        got = "the filter leaves" if where else "there are"
        raise RequestError(f"--index: expected at least {LEAST_ROWS} rows under all conditions, {got} {of}")
    if of > most:
        chosen = np.random.default_rng(seed).choice(of, most, replace=False)
        common_CN = common_CN[:, np.sort(chosen)]
    taken = index.dataset.take(common_CN[0], columns=[ID, *([text] if text else [])])
    ids = [str(each) for each in taken[ID].to_pylist()]
    every = pc.count_distinct(index.dataset.to_table(columns=[ID], filter=passing)[ID]).as_py()
    return MapRows(
        offsets=dict(zip(filters, common_CN, strict=True)),
        texts=[each or "" for each in taken[text].to_pylist()] if text else ids,
        ids=ids,
        of=of,
        left_out=every - of,
    )


def common_rows(tables: Sequence[pa.Table]) -> np.ndarray:
    """The rows whose ids are in each of several tables of ids and offsets, as the first has them: offsets, (C, N)."""
    ids = [table[ID].combine_chunks() for table in tables]
    places = [pc.index_in(ids[0], value_set=each).fill_null(-1).to_numpy() for each in ids]
    common = np.logical_and.reduce([each >= 0 for each in places])
    return np.stack([offsets_of(table)[place[common]] for table, place in zip(tables, places, strict=True)])


_HAS_WORDS = f"{BASIS} IS NOT NULL"


def _filter_of(index: Index, condition: str | None) -> str:
    """The filter for the rows under a condition, or whose words are pooled under it."""
    return _HAS_WORDS if index.is_pooled(condition) else sql_equals(CONDITION, condition)


def _rows(index: Index, rows_filter: str, passing: Filter | None) -> pa.Table:
    both = rows_filter if passing is None else f"{rows_filter} AND {passing}"
    return index.dataset.to_table(columns=[ID, OFFSET], filter=both)
