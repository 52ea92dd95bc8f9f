"""The command explore: an index as a map that moves from one condition to another, in one file of HTML."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from transformers.utils.logging import disable_progress_bar

from raycase.data.fetch import model_folder
from raycase.data.places import HTML, File, check_paths
from raycase.data.schema import ID
from raycase.data.storage import locate
from raycase.errors import MOST_LABEL, MOST_SEED, RequestError, at_least, check_ranges, note, visible
from raycase.explore.condition_map import (
    ConditionMap,
    MapSettings,
    ReadBlocks,
    common_rows,
    make_map,
    vectors_of_rows,
    weigh_words,
)
from raycase.explore.page import MOST_CHARACTERS, map_page
from raycase.explore.positions import LEAST_ROWS, import_umap
from raycase.search.facets import import_sklearn
from raycase.search.index import Index
from raycase.search.lance_files import lance_errors
from raycase.search.reopened import on_index
from raycase.search.shown import print_replaced_condition
from raycase.search.weighed import text_column, why_unweighed

MOST_MAPS = 12
MOST_ROWS, MOST_NEIGHBOURS = 200_000, 50
MOST_CLUSTERS = 24


@dataclass(frozen=True, kw_only=True)
class ExploreJob:
    """An index as one file of HTML: a map of its rows without a condition and under some, from one to another of which
    the points move (UMAP), with their facets, neighbours and the words that each condition weighs most."""

    index: str
    """Output of `raycase index`, local or on object storage."""
    output: str
    """HTML file, local or on object storage. It needs no network and no server."""
    conditions: tuple[str, ...] = ()
    """Conditions, each of which has a map beside that of the plain vectors. Default: those of the index."""
    where: str | None = None
    """A filter on id and the kept columns, in SQL: "year > 2010 AND source = 'news'"."""
    exact_condition: bool = False
    """Refuse a condition that the index does not have. By default its vectors are pooled from stored words; of an index
    without them the nearest of its conditions is taken, and named."""
    most_rows: int = 20_000
    """Most rows on the map; of more a sample is shown."""
    neighbours: int = 8
    """Nearest neighbours of each row that are listed under each condition."""
    clusters: int = 8
    """Number of facets of each map, clusters of its rows. There are eight colors."""
    seed: int = 0
    """Seed of the sample, the positions and the facets."""
    text_column: str | None = None
    """The kept column with the texts. Default: text, if the index has it; without, ids are shown."""
    model: str | None = None
    """Folder of the index's model, if it has moved."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of a map: their offsets under each condition, (C, N), texts and ids; `of`: among how many."""

    offsets: np.ndarray
    texts: list[str]
    ids: list[str]
    of: int


def explore(job: ExploreJob) -> dict[str, Any]:
    """Write the page and return counts. Raises RequestError."""
    began = time.time()
    _check_job(job)
    disable_progress_bar()  # the weights load in a moment
    index, (maps, rows) = on_index(partial(Index.open, job.index, model=job.model), partial(_make, job))
    cut = sum(len(text) > MOST_CHARACTERS for text in rows.texts)
    title = visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL)
    summary = _summary(job, rows, cut)
    page = map_page(maps, rows.texts, rows.ids, title, summary)
    locate(job.output).put(page)
    print(f"{summary}: {visible(locate(job.output).uri)}")
    return {
        "conditions": [each.condition for each in maps],
        "rows": rows.of,
        "rows_shown": len(rows.texts),
        "texts_cut": cut,
        "bytes": len(page),
        "seconds": round(time.time() - began, 3),
        "output": locate(job.output).uri,
    }


def _check_job(job: ExploreJob) -> None:
    check_paths(
        opens={"--index": job.index, "--model": model_folder(job.model)},
        writes={"--output": File(job.output, HTML)},
    )
    ranges = at_least(LEAST_ROWS, job, "most_rows", most=MOST_ROWS) | at_least(2, job, "clusters", most=MOST_CLUSTERS)
    ranges |= at_least(1, job, "neighbours", most=MOST_NEIGHBOURS) | at_least(0, job, "seed", most=MOST_SEED)
    check_ranges(job, ranges)
    import_umap()
    import_sklearn()


def _make(job: ExploreJob, index: Index) -> tuple[list[ConditionMap], _Rows]:
    text = text_column(index, job.text_column)
    asked = [*([None] if index.metadata.plain else []), *(job.conditions or index.metadata.conditions)]
    readers: dict[str | None, ReadBlocks] = {}
    for name in asked:
        condition, blocks = index.blocks(name, job.where, exact_condition=job.exact_condition)
        if name is not None:
            print_replaced_condition(index, name, condition)
        readers[condition] = blocks
    if not readers.keys() - {None}:
        raise RequestError("--conditions: expected some, for the index has plain vectors alone, got none")
    if len(readers) > MOST_MAPS:
        raise RequestError(f"--conditions: expected at most {MOST_MAPS - 1}, got {len(readers.keys() - {None})}")
    unweighed = why_unweighed(index, job.text_column, job.model)
    if unweighed is not None:
        note(f"without words: {unweighed}")
    with lance_errors(index.root):
        rows = _choose_rows(job, index, list(readers.values()), text)
        weighed = weigh_words(index, rows.texts, list(readers)) if unweighed is None else [None] * len(readers)
        settings = MapSettings(neighbours=job.neighbours, clusters=job.clusters, seed=job.seed)
        maps: list[ConditionMap] = []
        for (condition, read), offsets_N, words in zip(readers.items(), rows.offsets, weighed, strict=True):
            began = time.time()
            vectors_ND = vectors_of_rows(read, offsets_N)
            before_N2 = maps[-1].positions if maps else None
            maps.append(make_map(vectors_ND, condition, rows.texts, words, before_N2, settings))
            name = "no condition" if condition is None else f'"{visible(condition, MOST_LABEL)}"'
            print(f"{len(offsets_N):,} rows under {name} placed in {time.time() - began:.0f} s", flush=True)
    return maps, rows


def _choose_rows(job: ExploreJob, index: Index, readers: Sequence[ReadBlocks], text: str | None) -> _Rows:
    """A sample of the rows that are under all conditions, in the order of the index. Raises RequestError."""
    offsets_CN = common_rows(index, readers)
    of = offsets_CN.shape[1]
    if of < LEAST_ROWS:
        got = "the filter leaves" if job.where else "there are"
        raise RequestError(f"--index: expected {LEAST_ROWS} rows under all conditions at least, {got} {of}")
    if of > job.most_rows:
        chosen = np.random.default_rng(job.seed).choice(of, job.most_rows, replace=False)
        offsets_CN = offsets_CN[:, np.sort(chosen)]
    taken = index.dataset.take(offsets_CN[0], columns=[ID, *([text] if text else [])])
    ids = [str(each) for each in taken[ID].to_pylist()]
    return _Rows(
        offsets=offsets_CN, texts=[each or "" for each in taken[text].to_pylist()] if text else ids, ids=ids, of=of
    )


def _summary(job: ExploreJob, rows: _Rows, cut: int) -> str:
    """What is on the map, and what is not."""
    shown = len(rows.texts)
    parts = [f"{shown:,} rows" if shown == rows.of else f"{shown:,} of {rows.of:,} rows, a sample (seed {job.seed})"]
    if job.where:
        parts.append(f"where {visible(job.where, MOST_LABEL)}")
    if cut:
        parts.append(f"texts cut after {MOST_CHARACTERS} characters: {cut:,}")
    return "; ".join(parts)
