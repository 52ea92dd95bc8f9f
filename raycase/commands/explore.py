"""The command explore: an index as a map that moves from one condition to another, in one file of HTML."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, at_least, visible
from raycase.names import Advanced

MOST_ROWS = 200_000
MOST_CLUSTERS = 24

EXAMPLE = "raycase explore --index captions.lance --output map.html"


@dataclass(frozen=True, kw_only=True)
class ExploreFlags(OfIndex):
    """Draw an index as one HTML file: a map of its rows without a condition and one under each condition (UMAP). Points
    move when you switch maps. Beside them: facets, neighbours and the words that each condition weighs most."""

    output: str
    """HTML file, local or on object storage. It needs no network and no server."""
    conditions: tuple[str, ...] = ()
    """Conditions; each gets a map, next to the map of the unconditional vectors. Or one file of them, as for `raycase
    embed`. Default: those of the index."""
    most_rows: int = 20_000
    """Maximum number of rows on the map; a larger index is sampled. UMAP places at most 20,000."""
    clusters: int = 8
    """Number of facets of each map, clusters of its rows. There are eight colors."""
    text_column: Advanced[str | None] = None
    """The kept column with the texts. Default: the one that was embedded, else text; without one, ids are shown."""


def explore(flags: ExploreFlags) -> dict[str, Any]:
    """Draw an index as a map in one HTML file."""
    from raycase.explore.condition_map import LEAST_ROWS, import_umap, make_maps
    from raycase.explore.facets import import_sklearn
    from raycase.explore.page import MOST_CHARACTERS, map_page
    from raycase.index.index import on_index
    from raycase.io.places import HTML
    from raycase.io.reader import conditions_file, read_conditions

    ranges = at_least(LEAST_ROWS, flags, "most_rows", most=MOST_ROWS)
    ranges |= at_least(2, flags, "clusters", most=MOST_CLUSTERS)
    file = conditions_file(flags.conditions)
    began = flags.check(ranges, reads={"--conditions": file}, writes={"output": HTML})
    asked = read_conditions(flags.conditions) if file else flags.conditions  # which may have one twice
    import_umap()
    import_sklearn()
    names = ("where", "exact_condition", "model", "text_column", "most_rows", "clusters")
    chosen: dict[str, Any] = {name: getattr(flags, name) for name in names}
    index, (maps, rows) = on_index(flags.open, partial(make_maps, asked=asked, **chosen))
    title = visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL)
    shown, placed, cut = len(rows.texts), len(rows.sampled), sum(len(text) > MOST_CHARACTERS for text in rows.texts)
    lines = {
        f"{shown:,} rows" if shown == rows.of else f"{shown:,} of {rows.of:,} rows, a sample": True,
        f"where {visible(flags.where, MOST_LABEL)}": flags.where,
        f"{placed:,} placed by UMAP, the others between the nearest of these": placed < shown,
        f"rows left out because they lack one of the conditions: {rows.left_out:,}": rows.left_out,
        f"texts cut after {MOST_CHARACTERS} characters: {cut:,}": cut,
    }
    summary = "; ".join(line for line, holds in lines.items() if holds)
    page = map_page(maps, rows, title, summary)
    given = {"conditions": [each.condition for each in maps], "rows": rows.of, "rows_left_out": rows.left_out}
    result = flags.finish(began, {"output": page}, **given, rows_shown=shown, texts_cut=cut, bytes=len(page))
    print(f"{summary}: {visible(result['output'])}")
    return result
