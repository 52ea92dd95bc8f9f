"""One map of an index's rows, under a condition or without: positions, neighbours, facets and words.

Shapes: C maps, N rows, D dimensions, k neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from raycase.encoder.words import Word
from raycase.explore.facet_words import score_words
from raycase.explore.facets import find_clusters
from raycase.explore.positions import NEIGHBOURS, nearest_rows, place, principal_axes
from raycase.index.answers import TEXT
from raycase.index.index import Index
from raycase.index.marks import looked_at
from raycase.index.shown import weigh_answers, words_of_row
from raycase.io.schema import CONDITION

FACET_WORDS = 5


@dataclass(frozen=True, kw_only=True)
class ConditionMap:
    """N rows under a condition; None: by their unconditional vectors."""

    condition: str | None
    positions: np.ndarray  # (N, 2), from -1 to 1
    rows: np.ndarray  # (N, k) the nearest other rows of the map, best first
    cosines: np.ndarray  # (N, k) with these
    facet: np.ndarray  # (N,) numbered from 0, the largest first
    facet_words: list[list[str]]
    words: list[list[Word]] | None  # those of each text that the condition weighs most; None where none are weighed


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
    *,
    neighbours: int,
    clusters: int,
    seed: int,
) -> ConditionMap:
    """The map of rows by their unit vectors; its points start where those of the map before are, if there is one."""
    cosines_Nk, rows_Nk = nearest_rows(vectors_ND, min(max(NEIGHBOURS - 1, neighbours), len(vectors_ND) - 1))
    block = np.arange(len(vectors_ND)), torch.from_numpy(vectors_ND)
    count = min(clusters, len(vectors_ND))
    facets = find_clusters(lambda: [block], count, most=count, seed=seed)
    start_N2 = principal_axes(vectors_ND, seed) if before_N2 is None else before_N2
    near = slice(NEIGHBOURS - 1)
    marked = None if weighed is None else [looked_at(words) for words in weighed]
    words = marked or [[Word(*found.span(), 1.0) for found in re.finditer(r"\w+", text)] for text in texts]
    carried = score_words((((texts[row], words[row]) for row in of) for of in facets.members()), FACET_WORDS)
    return ConditionMap(
        condition=condition,
        positions=place(vectors_ND, cosines_Nk[:, near], rows_Nk[:, near], start_N2, seed),
        rows=rows_Nk[:, :neighbours],
        cosines=cosines_Nk[:, :neighbours],
        facet=facets.cluster,
        facet_words=[[word.word for word in each] for each in carried],
        words=marked,
    )
