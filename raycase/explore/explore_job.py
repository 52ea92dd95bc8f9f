"""The command explore: an index as a map that moves from one condition to another, in one file of HTML.

Shapes: C conditions, N rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.commands.flags import Advanced, OfIndex
from raycase.errors import MOST_LABEL, RequestError, at_least, check_ranges, note, visible
from raycase.explore.condition_map import LEAST_ROWS, ConditionMap, import_umap, make_map
from raycase.explore.facets import import_sklearn, weigh_texts
from raycase.explore.page import MOST_CHARACTERS, map_page
from raycase.index.answer_printing import text_column, why_unweighed
from raycase.index.index import Index, on_index, print_replaced_condition
from raycase.index.lance_files import lance_errors, offsets_of
from raycase.io.places import HTML, File, check_paths
from raycase.io.schema import CONDITION, ID
from raycase.io.storage import locate

MOST_MAPS = 12
MOST_ROWS = 200_000
MOST_CLUSTERS = 24


@dataclass(frozen=True, kw_only=True)
class ExploreFlags(OfIndex):
    """Draw an index as one HTML file: a map of its rows without a condition and one under each condition (UMAP). Points
    move when you switch maps. Beside them: facets, neighbours and the words that each condition weighs most."""

    output: str
    """HTML file, local or on object storage. It needs no network and no server."""
    conditions: tuple[str, ...] = ()
    """Conditions; each gets a map, next to the map of the unconditional vectors. Default: those of the index."""
    most_rows: int = 20_000
    """Maximum number of rows on the map; a larger index is sampled."""
    clusters: int = 8
    """Number of facets of each map, clusters of its rows. There are eight colors."""
    text_column: Advanced[str | None] = None
    """The kept column with the texts. Default: the one that was embedded, else text; without one, ids are shown."""


def explore(flags: ExploreFlags) -> dict[str, Any]:
    """Write the page and return counts. Raises RequestError."""
    began = time.time()
    check_paths(opens=flags.opens, writes={"--output": File(flags.output, HTML)})
    ranges = at_least(LEAST_ROWS, flags, "most_rows", most=MOST_ROWS) | at_least(
        2, flags, "clusters", most=MOST_CLUSTERS
    )
    check_ranges(flags, ranges)
    import_umap()
    import_sklearn()
    index, (maps, rows) = on_index(flags.open, partial(_make, flags))
    title = visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL)
    shown, cut = len(rows.texts), sum(len(text) > MOST_CHARACTERS for text in rows.texts)
    parts = {
        f"{shown:,} rows" if shown == rows.of else f"{shown:,} of {rows.of:,} rows, a sample": True,
        f"where {visible(flags.where, MOST_LABEL)}": flags.where,
        f"rows left out because they lack one of the conditions: {rows.left_out:,}": rows.left_out,
        f"texts cut after {MOST_CHARACTERS} characters: {cut:,}": cut,
    }
    summary = "; ".join(part for part, holds in parts.items() if holds)
    page = map_page(maps, rows.texts, rows.ids, title, summary)
    locate(flags.output).put(page)
    print(f"{summary}: {visible(locate(flags.output).uri)}")
    return {
        "conditions": [each.condition for each in maps],
        "rows": rows.of,
        "rows_left_out": rows.left_out,
        "rows_shown": shown,
        "texts_cut": cut,
        "bytes": len(page),
        "seconds": round(time.time() - began, 3),
        "output": locate(flags.output).uri,
    }


def _make(flags: ExploreFlags, index: Index) -> tuple[list[ConditionMap], MapRows]:
    text = text_column(index, flags.text_column)
    conditions: dict[str | None, None] = {}
    for name in [*([None] if index.metadata.unconditional else []), *(flags.conditions or index.metadata.conditions)]:
        condition, _ = index.blocks(name, exact_condition=flags.exact_condition)
        print_replaced_condition(index, name, condition)
        conditions[condition] = None
    if not conditions.keys() - {None}:
        raise RequestError("--conditions: expected at least one, got none; the index has only unconditional vectors")
    if len(conditions) > MOST_MAPS:
        raise RequestError(f"--conditions: expected at most {MOST_MAPS - 1}, got {len(conditions.keys() - {None})}")
    unweighed = why_unweighed(index, flags.text_column, flags.model)
    if unweighed is not None:
        note(f"no weighed words: {unweighed}")
    with lance_errors(index.root):
        rows = choose_rows(flags, index, [*conditions], text)
        weighed = weigh_texts(index, rows.texts, [*conditions]) if unweighed is None else [None] * len(conditions)
        maps: list[ConditionMap] = []
        note(f"placing {len(rows.texts):,} rows; compiling UMAP adds about 15 s to the first map")
        for condition, offsets_N, words in zip(conditions, rows.offsets, weighed, strict=True):
            began = time.time()
            vectors_ND = index.vectors_at(condition, offsets_N)
            before_N2 = maps[-1].positions if maps else None
            marked = None if condition is None else words
            maps.append(make_map(vectors_ND, condition, rows.texts, marked, before_N2, flags.clusters))
            name = "no condition" if condition is None else f'"{visible(condition, MOST_LABEL)}"'
            print(f"{len(rows.texts):,} rows under {name} placed in {time.time() - began:.0f} s", flush=True)
    return maps, rows


@dataclass(frozen=True, kw_only=True)
class MapRows:
    """N rows of an index, each with the same id under every condition; offsets: under each, C of (N,).

    of: rows under all conditions, of which these are a sample; left_out: rows of the index that are not under all.
    """

    offsets: list[np.ndarray]
    texts: list[str]
    ids: list[str]
    of: int
    left_out: int


def choose_rows(flags: ExploreFlags, index: Index, conditions: Sequence[str | None], text: str | None) -> MapRows:
    """At most `most_rows` of the rows under all conditions (None: unconditional) that pass the filter, in the order of
    the index. text: the column with their texts; None: their ids are shown.

    Raises RequestError for fewer rows than a map has.
    """
    most = flags.most_rows
    tables = []
    for each in conditions:
        table = index.ids([each], flags.where)
        is_stored_N = pc.is_valid(table[CONDITION]).to_numpy() == (each is not None)
        tables.append(table.filter(pa.array(is_stored_N | index.vectors.is_pooled(each, offsets_of(table)))))
    own = tables[0][ID].combine_chunks()  # then, under each condition, the place of each of these ids, or -1
    places = (pc.index_in(own, value_set=table[ID].combine_chunks()) for table in tables)
    places_CN = np.stack([place.fill_null(-1).to_numpy() for place in places])
    is_common = (places_CN >= 0).all(axis=0)
    of = int(is_common.sum())
    if of < LEAST_ROWS:
        got = "the filter leaves" if flags.where else "there are"
        raise RequestError(f"--index: expected at least {LEAST_ROWS} rows under all conditions, {got} {of}")
    chosen = np.sort(np.random.default_rng(0).choice(of, most, replace=False)) if of > most else np.arange(of)
    offsets = [offsets_of(table)[place_N[is_common]][chosen] for table, place_N in zip(tables, places_CN, strict=True)]
    taken = index.dataset.take(offsets[0], columns=[ID, *([text] if text else [])])
    ids = [str(each) for each in taken[ID].to_pylist()]
    every = pc.count_distinct(index.ids(None, flags.where)[ID]).as_py()
    return MapRows(
        offsets=offsets,
        texts=[each or "" for each in taken[text].to_pylist()] if text else ids,
        ids=ids,
        of=of,
        left_out=every - of,
    )
