"""Wordings of one condition on some texts: the words that each looks at, and whether they find the same texts.

Shapes: N texts, C ways to embed them, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from raycase.errors import RequestError, is_words
from raycase.explore.facets import CarriedWord, weight_shares
from raycase.index.topk import nearest_others
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.schema import check_once
from raycase.models.configs import EmbedderConfig
from raycase.tokens.words import Word

SAMPLED, LEAST = 500, 50  # texts: those that are compared at most, and of which the nearest are a choice
NEAREST, WORDS = 10, 5  # texts of each text, and words of each wording


def sample_texts(uri: str, column: str, config: EmbedderConfig, conditions: Sequence[str]) -> list[str]:
    """Distinct texts of an input that the model takes under all conditions, a sample of many, in their order."""
    found: dict[str, None] = {}
    for file in find_input(uri):
        check_once(column, peek(file).names, file.uri, "; --text-column names another")
        found.update(dict.fromkeys(filter(is_words, read_columns(file, [column], "--input")[column])))
    texts = [*found]
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:SAMPLED])
    texts = [texts[i] for i in chosen.tolist()]
    for condition in conditions if texts else ():
        prepared = config.prepare(texts, [condition] * len(texts))
        checked = zip(texts, prepared.refused, prepared.unknown, strict=True)
        texts = [text for text, reason, is_unknown in checked if reason is None and not is_unknown]
    if len(texts) < LEAST:
        raise RequestError(f"--input: expected at least {LEAST} different texts in {column!r}, got {len(texts)}")
    return texts


def heaviest(texts: Sequence[str], weights: Iterable[list[Word]], count: int = WORDS) -> list[CarriedWord]:
    """The words with the largest shares of the weight of all these texts; of equal ones by the alphabet."""
    shares, _ = weight_shares(zip(texts, weights, strict=True))
    return [CarriedWord(*each) for each in sorted(shares.items(), key=lambda each: (-each[1], each[0]))[:count]]


def same_nearest(ways: Sequence[np.ndarray], k: int = NEAREST) -> np.ndarray:
    """Of the k texts nearest to each, the mean share that two ways to embed them have in common: C of unit vectors
    (N, D) -> (C, C)."""
    rows_CNk = [nearest_others(vectors_ND, k)[1] for vectors_ND in ways]
    return np.array([[(a[:, :, None] == b[:, None, :]).any(2).mean() for b in rows_CNk] for a in rows_CNk])
