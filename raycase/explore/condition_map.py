"""One map of an index's rows, under a condition or without: which rows, positions, neighbours, facets and words.

Rows stand where UMAP (McInnes et al., 2018, arXiv:1802.03426) places them by their nearest neighbours by cosine. Of
many rows it places a sample, the same for each map; the others stand between the rows of it that are nearest to them.

Shapes: N rows, S of them a sample, D dimensions, k neighbours, C conditions, K cells.
"""

import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.linalg import orthogonal_procrustes

from raycase.errors import MOST_LABEL, RequestError, check_problems, needs_package, note, visible
from raycase.explore.facets import find_clusters, score_words, weigh_texts
from raycase.index.answers import looked_at
from raycase.index.index import Index, print_replaced_condition, why_unweighed
from raycase.index.index import text_column as texts_in
from raycase.index.lance_files import lance_errors, offsets_of
from raycase.index.topk import Nearest, nearest_others, nothing, top_k
from raycase.io.schema import CONDITION, ID
from raycase.tokens.words import Word

FACET_WORDS = 5
NEAR = 14  # neighbours of a row by which it is placed: with itself 15, UMAP's default
LEAST_ROWS, MOST_MAPS = 3, 12
SAMPLED = 20_000  # rows at most that UMAP places and whose words are weighed; of more rows, neighbours are approximate
BETWEEN = 3  # rows of the sample between which another row stands
CELL_ROWS, LOOKED_AT = 600, 10_000  # rows of a cell, about, and of the cells nearest to it that are compared, at least
LISTED = 8  # neighbours of a row on the page
FAR, EDGE = 0.01, 0.25  # share of the rows at each side that are far, and how far from the others they are drawn


@dataclass(frozen=True, kw_only=True)
class MapRows:
    """N rows of an index, each with the same id under every condition."""

    offsets: list[np.ndarray]  # under each of C conditions, (N,)
    texts: list[str]
    ids: list[str]
    of: int  # rows under all conditions, of which these are a sample
    left_out: int  # rows of the index that are not under all
    sampled: np.ndarray  # (S,) the sample


def choose_rows(
    index: Index, conditions: Sequence[str | None], text: str | None, *, most: int, where: str | None = None
) -> MapRows:
    """At most so many of the rows under all conditions (None: unconditional) that pass the filter, in the order of the
    index. text: the column with their texts; None: their ids are shown."""
    tables = []
    for each in conditions:
        table = index.ids([each], where)
        is_stored_N = pc.is_valid(table[CONDITION]).to_numpy() == (each is not None)
        tables.append(table.filter(pa.array(is_stored_N | index.vectors.is_pooled(each, offsets_of(table)))))
    own = tables[0][ID].combine_chunks()  # then, under each condition, the place of each of these ids, or -1
    places = (pc.index_in(own, value_set=table[ID].combine_chunks()) for table in tables)
    places_CN = np.stack([place.fill_null(-1).to_numpy() for place in places])
    is_common = (places_CN >= 0).all(axis=0)
    of = int(is_common.sum())
    if of < LEAST_ROWS:
        got = "the filter leaves" if where else "there are"
        raise RequestError(f"--index: expected at least {LEAST_ROWS} rows under all conditions, {got} {of}")
    chosen = np.sort(np.random.default_rng(0).choice(of, most, replace=False)) if of > most else np.arange(of)
    offsets = [offsets_of(table)[place_N[is_common]][chosen] for table, place_N in zip(tables, places_CN, strict=True)]
    taken = index.dataset.take(offsets[0], columns=[ID, *([text] if text else [])])
    ids = [str(each) for each in taken[ID].to_pylist()]
    every = pc.count_distinct(index.ids(None, where)[ID]).as_py()
    texts = [each or "" for each in taken[text].to_pylist()] if text else ids
    sampled = np.sort(np.random.default_rng(0).choice(len(chosen), min(len(chosen), SAMPLED), replace=False))
    return MapRows(offsets=offsets, texts=texts, ids=ids, of=of, left_out=every - of, sampled=sampled)


@dataclass(frozen=True, kw_only=True)
class ConditionMap:
    """N rows under a condition; None: by their unconditional vectors."""

    condition: str | None
    positions: np.ndarray  # (N, 2), from -1 to 1
    rows: np.ndarray  # (N, k) the nearest other rows of the map, best first
    cosines: np.ndarray  # (N, k) with these
    facet: np.ndarray  # (N,) numbered from 0, the largest first
    facet_words: list[list[str]]
    words: list[list[Word]] | None  # in texts of the sample those that the condition weighs most; None: not weighed


def make_maps(
    index: Index,
    *,
    asked: Sequence[str],
    where: str | None,
    exact_condition: bool,
    model: str | None,
    text_column: str | None,
    most_rows: int,
    clusters: int,
) -> tuple[list[ConditionMap], MapRows]:
    """The maps of the same rows without a condition and under those asked, by default the index's, one after the other.
    model: the index's, if it has moved."""
    text = texts_in(index, text_column)
    conditions: dict[str | None, None] = {}
    for name in [*([None] if index.metadata.unconditional else []), *(asked or index.metadata.conditions)]:
        condition, _ = index.blocks(name, exact_condition=exact_condition)
        print_replaced_condition(index, name, condition)
        conditions[condition] = None
    count = len(conditions.keys() - {None})
    none = "--conditions: expected at least one, got none; the index has only unconditional vectors"
    many = f"--conditions: expected at most {MOST_MAPS - 1}, got {count}"
    check_problems({none: not count, many: count >= MOST_MAPS})
    if unweighed := why_unweighed(index, text_column, model):
        note(f"no weighed words: {unweighed}")
    with lance_errors(index.root):
        rows = choose_rows(index, [*conditions], text, most=most_rows, where=where)
        texts = [rows.texts[row] for row in rows.sampled]
        weighed = [None] * len(conditions) if unweighed else weigh_texts(index, texts, [*conditions])
        maps: list[ConditionMap] = []
        note(f"placing {len(rows.texts):,} rows; compiling UMAP adds about 15 s to the first map")
        for condition, offsets_N, words in zip(conditions, rows.offsets, weighed, strict=True):
            began = time.time()
            before_N2 = maps[-1].positions if maps else None
            marked = None if condition is None else words
            vectors_ND = index.vectors_at(condition, offsets_N)
            maps.append(make_map(vectors_ND, rows.sampled, condition, rows.texts, marked, before_N2, clusters))
            name = "no condition" if condition is None else f'"{visible(condition, MOST_LABEL)}"'
            print(f"{len(rows.texts):,} rows under {name} placed in {time.time() - began:.0f} s", flush=True)
    return maps, rows


def make_map(
    vectors_ND: np.ndarray,
    sampled_S: np.ndarray,
    condition: str | None,
    texts: Sequence[str],
    weighed: list[list[Word]] | None,  # of the sample
    before_N2: np.ndarray | None,
    clusters: int,
) -> ConditionMap:
    """The map of rows by their unit vectors; its points start where those of the map before are, if there is one."""
    count = len(vectors_ND)
    own_SD, before_S2 = vectors_ND[sampled_S], None if before_N2 is None else before_N2[sampled_S]
    cosines_Sk, rows_Sk = cosines_Nk, rows_Nk = nearest_others(own_SD, NEAR)
    positions_N2 = place(own_SD, cosines_Sk, rows_Sk, before_S2)
    if count > len(sampled_S):
        (cosines_Nk, rows_Nk), of_sample = nearest_in_cells(vectors_ND, LISTED, sampled_S)
        positions_N2 = place_others(positions_N2, sampled_S, of_sample)
    facets = find_clusters(lambda: [(np.arange(count), torch.from_numpy(vectors_ND))], min(clusters, count))
    words: list[list[Word]] = [[]] * count
    for row, of_text in zip(sampled_S, weighed or repeat(None), strict=False):
        found = re.finditer(r"\w+", texts[row])
        words[row] = [Word(*each.span(), 1.0) for each in found] if of_text is None else looked_at(texts[row], of_text)
    carried = score_words((((texts[row], words[row]) for row in of) for of in facets.members()), FACET_WORDS)
    return ConditionMap(
        condition=condition,
        positions=positions_N2,
        rows=rows_Nk[:, :LISTED],
        cosines=cosines_Nk[:, :LISTED],
        facet=facets.cluster,
        facet_words=[[word.word for word in each] for each in carried],
        words=None if weighed is None else words,
    )


def nearest_in_cells(vectors_ND: np.ndarray, k: int, sampled_S: np.ndarray, looked: int = LOOKED_AT) -> list[Nearest]:
    """The k nearest others of each row, and its nearest of the sample, among rows in the cells (of k-means) that are
    nearest to its own."""
    vectors, count = torch.from_numpy(vectors_ND), len(vectors_ND)
    cells = find_clusters(lambda: [(np.arange(count), vectors)], count // CELL_ROWS)
    members, is_sampled_N = cells.members(), np.isin(np.arange(count), sampled_S)
    every, of_sample = nothing(count, k), nothing(count, BETWEEN)
    for own, order_K in zip(members, np.argsort(-cells.centres @ cells.centres.T, axis=1, kind="stable"), strict=True):
        enough = 1 + np.searchsorted(np.cumsum(cells.sizes[order_K]), looked)
        others = np.sort(np.concatenate([members[cell] for cell in order_K[:enough]]))
        for (cosines_Nk, rows_Nk), among in ((every, others), (of_sample, others[is_sampled_N[others]])):
            most, group, groups = rows_Nk.shape[1], torch.from_numpy(own), torch.from_numpy(among)
            found = top_k(vectors[group], [vectors[groups]], most, query_groups=group, groups=groups)
            cosines_Nk[own], rows_Nk[own] = found[0], among[found[1]]
    return [every, of_sample]


def place_others(placed_S2: np.ndarray, sampled_S: np.ndarray, of_sample: Nearest) -> np.ndarray:
    """Positions of all rows by those of the sample: between the nearest, and nearer to the more alike: (N, 2)."""
    weights_Nk, rows_Nk = 1 / (1 - of_sample[0]).clip(1e-3), of_sample[1]
    positions_N2 = np.zeros((len(rows_Nk), 2))
    positions_N2[sampled_S] = placed_S2
    positions_N2 = (weights_Nk[..., None] * positions_N2[rows_Nk]).sum(axis=1) / weights_Nk.sum(axis=1)[:, None]
    positions_N2[sampled_S] = placed_S2
    return positions_N2


def import_umap() -> Any:
    """The package umap-learn."""
    with needs_package("umap-learn", "explore", "for explore"):
        import umap
    return umap


def place(
    vectors_ND: np.ndarray, cosines_Nk: np.ndarray, rows_Nk: np.ndarray, before_N2: np.ndarray | None
) -> np.ndarray:
    """Positions of rows whose nearest rows are known: moved from those before (None: along the two axes of largest
    variance), turned back to lie as these do, and scaled alike in both directions to fill [-1, 1]: (N, 2)."""
    start_N2 = before_N2
    if start_N2 is None:
        centred_ND = vectors_ND - vectors_ND.mean(axis=0)
        noise_N2 = np.random.default_rng(0).normal(scale=1e-3, size=(len(vectors_ND), 2))  # equal vectors must part
        start_N2 = centred_ND @ np.linalg.eigh(centred_ND.T @ centred_ND)[1][:, -2:] + noise_N2
    own_N1 = np.arange(len(vectors_ND))[:, None]
    known = np.hstack([own_N1, rows_Nk]), np.hstack([np.zeros((len(own_N1), 1)), 1 - cosines_Nk]).clip(0)
    umap = import_umap().UMAP(
        n_neighbors=known[0].shape[1], metric="cosine", init=start_N2, random_state=0, n_jobs=1, precomputed_knn=known
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that nobody will add later need no index
        placed_N2 = umap.fit_transform(vectors_ND)
    placed_N2, start_N2 = placed_N2 - placed_N2.mean(axis=0), start_N2 - start_N2.mean(axis=0)
    placed_N2 = placed_N2 @ orthogonal_procrustes(placed_N2, start_N2)[0]
    low, high = np.quantile(placed_N2, [FAR, 1 - FAR], axis=0)
    scaled_N2 = (2 * placed_N2 - low - high) / max((high - low).max(), 1e-12)
    beyond_N2 = (np.abs(scaled_N2) - 1).clip(0)  # the few farthest are drawn nearer, or all others have little room
    drawn_N2 = np.sign(scaled_N2) * (np.abs(scaled_N2) - beyond_N2 + EDGE * np.tanh(beyond_N2 / EDGE))
    return drawn_N2 / max(np.abs(drawn_N2).max(), 1e-12)
