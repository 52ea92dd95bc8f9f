"""The command explore: an index as a map that moves from one condition to another, in one file of HTML."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.commands.flags import Advanced, OfIndex
from raycase.commands.of_index import check, finish
from raycase.errors import MOST_LABEL, RequestError, at_least, note, visible

if TYPE_CHECKING:
    from raycase.explore.condition_map import ConditionMap, MapRows
    from raycase.index.index import Index

MOST_ROWS = 200_000
MOST_CLUSTERS = 24
MOST_MAPS = 12

EXAMPLE = "raycase explore --index captions.lance --output map.html"


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
    """Draw an index as a map in one HTML file."""
    from raycase.explore.condition_map import LEAST_ROWS, import_umap
    from raycase.explore.facets import import_sklearn
    from raycase.explore.page import MOST_CHARACTERS, map_page
    from raycase.index.index import on_index
    from raycase.io.places import HTML

    ranges = at_least(LEAST_ROWS, flags, "most_rows", most=MOST_ROWS)
    began = check(flags, ranges | at_least(2, flags, "clusters", most=MOST_CLUSTERS), writes={"output": HTML})
    import_umap()
    import_sklearn()
    index, (maps, rows) = on_index(flags.open, lambda index: _make_maps(flags, index))
    title = visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL)
    shown, cut = len(rows.texts), sum(len(text) > MOST_CHARACTERS for text in rows.texts)
    lines = {
        f"{shown:,} rows" if shown == rows.of else f"{shown:,} of {rows.of:,} rows, a sample": True,
        f"where {visible(flags.where, MOST_LABEL)}": flags.where,
        f"rows left out because they lack one of the conditions: {rows.left_out:,}": rows.left_out,
        f"texts cut after {MOST_CHARACTERS} characters: {cut:,}": cut,
    }
    summary = "; ".join(line for line, holds in lines.items() if holds)
    page = map_page(maps, rows.texts, rows.ids, title, summary)
    given = {"conditions": [each.condition for each in maps], "rows": rows.of, "rows_left_out": rows.left_out}
    result = finish(flags, began, {"output": page}, **given, rows_shown=shown, texts_cut=cut, bytes=len(page))
    print(f"{summary}: {visible(result['output'])}")
    return result


def _make_maps(flags: ExploreFlags, index: Index) -> tuple[list[ConditionMap], MapRows]:
    """The maps of the same rows, one after the other. Raises RequestError."""
    from raycase.explore.condition_map import choose_rows, make_map
    from raycase.explore.facets import weigh_texts
    from raycase.index.index import print_replaced_condition, text_column, why_unweighed
    from raycase.index.lance_files import lance_errors

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
    if unweighed := why_unweighed(index, flags.text_column, flags.model):
        note(f"no weighed words: {unweighed}")
    with lance_errors(index.root):
        rows = choose_rows(index, [*conditions], text, most=flags.most_rows, where=flags.where)
        weighed = [None] * len(conditions) if unweighed else weigh_texts(index, rows.texts, [*conditions])
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
