"""One map of an index's rows, under a condition or without: positions, neighbours, facets and words.

Shapes: C maps, N rows, D dimensions, k neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raycase.data.schema import CONDITION, ID
from raycase.encoder.words import Word
from raycase.explore.positions import NEIGHBOURS, nearest_rows, place, principal_axes, to_steps
from raycase.search.exact import Block
from raycase.search.facet_words import score_words
from raycase.search.facets import find_clusters
from raycase.search.index import Index
from raycase.search.marks import looked_at
from raycase.search.queries import TEXT
from raycase.search.weighed import weigh_answers, words_of_row

FACET_WORDS = 5
LIFT = 1.5  # times that a word must be more frequent in its facet than in all of them

ReadBlocks = Callable[[], Iterator[Block]]


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How many neighbours of each row are listed, the number of facets, and the seed of facets and positions."""

    neighbours: int
    clusters: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class ConditionMap:
    """N rows under a condition; None: by their plain vectors."""

    condition: str | None
    positions: np.ndarray  # (N, 2), from -1 to 1
    rows: np.ndarray  # (N, k) the nearest other rows of the map, best first
    cosines: np.ndarray  # (N, k) with these
    facet: np.ndarray  # (N,) numbered from 0, the largest first
    facet_words: list[list[str]]
    words: list[list[Word]] | None  # those of each text that the condition weighs most; None where none are weighed

    @property
    def steps(self) -> np.ndarray:
        """The positions as 16-bit numbers: (N, 2)."""
        return to_steps(self.positions)


def common_rows(index: Index, readers: Sequence[ReadBlocks]) -> np.ndarray:
    """The rows whose ids are under all of several conditions, in the order of the first: their offsets, (C, N)."""
    offsets = [np.concatenate([np.empty(0, np.int64), *(block[0] for block in read())]) for read in readers]
    ids = [index.dataset.take(each, columns=[ID])[ID].combine_chunks() for each in offsets]
    places = [pc.index_in(ids[0], value_set=each).fill_null(-1).to_numpy() for each in ids]
    common = np.logical_and.reduce([each >= 0 for each in places])
    return np.stack([of[place[common]] for of, place in zip(offsets, places, strict=True)])


def vectors_of_rows(read: ReadBlocks, offsets_N: np.ndarray) -> np.ndarray:
    """The vectors of the rows at these offsets: (N, D)."""
    order_N = np.argsort(offsets_N)
    found_ND = np.empty((len(offsets_N), 0), np.float32)
    for offsets_B, vectors_BD in read():
        place_B = np.searchsorted(offsets_N, offsets_B, sorter=order_N).clip(max=len(offsets_N) - 1)
        is_one_B = offsets_N[order_N[place_B]] == offsets_B
        if not found_ND.shape[1]:
            found_ND = np.empty((len(offsets_N), vectors_BD.shape[1]), np.float32)
        found_ND[order_N[place_B[is_one_B]]] = vectors_BD.numpy()[is_one_B]
    return found_ND


def weigh_words(index: Index, texts: Sequence[str], conditions: Sequence[str | None]) -> list[list[list[Word]] | None]:
    """The words of each text with their weights under each condition, C lists of N; None without a condition.

    All at once, for a text is encoded once for all conditions.
    """
    named = [condition for condition in conditions if condition is not None]
    answers = pa.table(
        {
            TEXT: pa.array([text for _ in named for text in texts], pa.string()),
            CONDITION: pa.array([condition for condition in named for _ in texts], pa.string()),
        }
    )
    weights = weigh_answers(answers, index, TEXT)
    of_each = {
        condition: [words_of_row(row) for row in weights.slice(i * len(texts), len(texts)).to_pylist()]
        for i, condition in enumerate(named)
    }
    return [None if condition is None else of_each[condition] for condition in conditions]


def make_map(
    vectors_ND: np.ndarray,
    condition: str | None,
    texts: Sequence[str],
    weighed: list[list[Word]] | None,
    before_N2: np.ndarray | None,
    settings: MapSettings,
) -> ConditionMap:
    """The map of rows by their unit vectors; its points start where those of the map before are, if there is one."""
    others, around = len(vectors_ND) - 1, NEIGHBOURS - 1
    cosines_Nk, rows_Nk = nearest_rows(vectors_ND, min(max(around, settings.neighbours), others))
    start_N2 = principal_axes(vectors_ND, settings.seed) if before_N2 is None else before_N2
    block = np.arange(len(vectors_ND)), torch.from_numpy(vectors_ND)
    clusters = min(settings.clusters, len(vectors_ND))
    found = find_clusters(lambda: [block], clusters, most=clusters, seed=settings.seed)
    marked = None if weighed is None else [looked_at(words) for words in weighed]
    words = marked or [_every_word(text) for text in texts]
    scored = score_words([[(texts[row], words[row]) for row in of] for of in found.members()], FACET_WORDS, LIFT)
    return ConditionMap(
        condition=condition,
        positions=place(vectors_ND, cosines_Nk[:, :around], rows_Nk[:, :around], start_N2, settings.seed),
        rows=rows_Nk[:, : settings.neighbours],
        cosines=cosines_Nk[:, : settings.neighbours],
        facet=found.cluster,
        facet_words=[[word.word for word in each] for each in scored],
        words=marked,
    )


def _every_word(text: str) -> list[Word]:
    """All words of a text, with equal weights."""
    return [Word(*match.span(), 1.0) for match in re.finditer(r"\w+", text)]
