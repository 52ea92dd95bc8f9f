"""The command explore: an index as a map that moves from one condition to another, in one file of HTML."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from raycase.errors import MOST_LABEL, MOST_SEED, RequestError, at_least, check_ranges, note, visible
from raycase.explore.condition_map import ConditionMap, make_map, weigh_words
from raycase.explore.facets import import_sklearn
from raycase.explore.map_rows import MapRows, choose_rows
from raycase.explore.of_index import OfIndex
from raycase.explore.page import map_page
from raycase.explore.positions import LEAST_ROWS, import_umap
from raycase.index.index import Index, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.shown import print_replaced_condition, text_column, why_unweighed
from raycase.io.places import HTML, File, check_paths
from raycase.io.storage import locate

MOST_MAPS = 12
MOST_ROWS, MOST_NEIGHBOURS = 200_000, 50
MOST_CLUSTERS = 24


@dataclass(frozen=True, kw_only=True)
class ExploreJob(OfIndex):
    """Draw an index as one HTML file: a map of its rows without a condition and one under each condition (UMAP). Points
    move when you switch maps. Beside them: facets, neighbours and the words that each condition weighs most."""

    output: str
    """HTML file, local or on object storage. It needs no network and no server."""
    conditions: tuple[str, ...] = ()
    """Conditions; each gets a map, next to the map of the unconditional vectors. Default: those of the index."""
    most_rows: int = 20_000
    """Maximum number of rows on the map; a larger index is sampled."""
    neighbours: int = 8
    """Nearest neighbours of each row that are listed under each condition."""
    clusters: int = 8
    """Number of facets of each map, clusters of its rows. There are eight colors."""
    seed: int = 0
    """Seed of the sample, the positions and the facets."""
    text_column: str | None = None
    """The kept column with the texts. Default: text, if the index has it, else ids are shown."""


def explore(job: ExploreJob) -> dict[str, Any]:
    """Write the page and return counts. Raises RequestError."""
    began = time.time()
    _check_job(job)
    index, (maps, rows) = on_index(job.open, partial(_make, job))
    title = visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL)
    summary = rows.summary(job.where, job.seed)
    page = map_page(maps, rows.texts, rows.ids, title, summary)
    locate(job.output).put(page)
    print(f"{summary}: {visible(locate(job.output).uri)}")
    return {
        "conditions": [each.condition for each in maps],
        "rows": rows.of,
        "rows_left_out": rows.left_out,
        "rows_shown": len(rows.texts),
        "texts_cut": rows.cut,
        "bytes": len(page),
        "seconds": round(time.time() - began, 3),
        "output": locate(job.output).uri,
    }


def _check_job(job: ExploreJob) -> None:
    check_paths(
        opens=job.opens,
        writes={"--output": File(job.output, HTML)},
    )
    ranges = at_least(LEAST_ROWS, job, "most_rows", most=MOST_ROWS) | at_least(2, job, "clusters", most=MOST_CLUSTERS)
    ranges |= at_least(1, job, "neighbours", most=MOST_NEIGHBOURS) | at_least(0, job, "seed", most=MOST_SEED)
    check_ranges(job, ranges)
    import_umap()
    import_sklearn()


def _make(job: ExploreJob, index: Index) -> tuple[list[ConditionMap], MapRows]:
    text = text_column(index, job.text_column)
    conditions: dict[str | None, None] = {}
    for name in [*([None] if index.metadata.plain else []), *(job.conditions or index.metadata.conditions)]:
        condition, _ = index.blocks(name, exact_condition=job.exact_condition)
        if name is not None:
            print_replaced_condition(index, name, condition)
        conditions[condition] = None
    if not conditions.keys() - {None}:
        raise RequestError("--conditions: expected at least one, got none; the index has only unconditional vectors")
    if len(conditions) > MOST_MAPS:
        raise RequestError(f"--conditions: expected at most {MOST_MAPS - 1}, got {len(conditions.keys() - {None})}")
    unweighed = why_unweighed(index, job.text_column, job.model)
    if unweighed is not None:
        note(f"no weighed words: {unweighed}")
    with lance_errors(index.root):
        rows = choose_rows(index, [*conditions], text=text, most=job.most_rows, seed=job.seed, where=job.where)
        weighed = weigh_words(index, rows.texts, [*conditions]) if unweighed is None else [None] * len(conditions)
        settings = {"neighbours": job.neighbours, "clusters": job.clusters, "seed": job.seed}
        maps: list[ConditionMap] = []
        note(f"placing {len(rows.texts):,} rows; compiling UMAP adds about 15 s to the first map")
        for condition, words in zip(conditions, weighed, strict=True):
            began = time.time()
            vectors_ND = index.vectors_at(condition, rows.under(index, condition))
            before_N2 = maps[-1].positions if maps else None
            maps.append(make_map(vectors_ND, condition, rows.texts, words, before_N2, **settings))
            name = "no condition" if condition is None else f'"{visible(condition, MOST_LABEL)}"'
            print(f"{len(rows.texts):,} rows under {name} placed in {time.time() - began:.0f} s", flush=True)
    return maps, rows
