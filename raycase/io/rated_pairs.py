"""What is trained on and evaluated with, checked row by row: rated pairs, and queries with candidates (MTEB).

Shapes: N rows, P distinct pairs (sentence, condition).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from raycase.errors import RequestError, is_words
from raycase.io.reader import read_files
from raycase.io.schema import CONDITION

SENTENCE1, SENTENCE2, LABEL, SCORE = "sentence1", "sentence2", "label", "score"
TEXTS = ("sentences1", "sentences2", "conditions")  # columns of `RatedPairs`
NOT_APPLICABLE = -1.0  # rating of a pair to which the condition does not apply
QUERY, POSITIVE, NEGATIVE = "query", "positive", "negative"


@dataclass(frozen=True, kw_only=True)
class RatedPairs:
    """N rated pairs of sentences under a condition, and their P distinct pairs (sentence, condition)."""

    uri: str
    sentences1: list[str]
    sentences2: list[str]
    conditions: list[str]  # all "" where pairs are rated without a condition
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    def __len__(self) -> int:
        return len(self.conditions)

    @property
    def _both(self) -> list[tuple[str, str]]:
        """(sentence, condition) of all first sentences, then of all second ones."""
        return list(zip(self.sentences1 + self.sentences2, self.conditions * 2, strict=True))

    @cached_property
    def distinct(self) -> list[tuple[str, str]]:
        """The P distinct pairs (sentence, condition)."""
        return list(dict.fromkeys(self._both))

    @cached_property
    def pair_index(self) -> np.ndarray:
        """(N, 2) int64: index in `distinct` of the first and the second sentence of each rated pair."""
        index_of = {pair: i for i, pair in enumerate(self.distinct)}
        return np.array([index_of[pair] for pair in self._both], dtype=np.int64).reshape(2, -1).T

    def take(self, rows: np.ndarray) -> RatedPairs:
        """These pairs."""
        columns: Any = {name: [getattr(self, name)[i] for i in rows] for name in TEXTS}
        return RatedPairs(uri=self.uri, ratings=self.ratings[rows], **columns)

    @cached_property
    def groups(self) -> np.ndarray:
        """(N,) int64: equal for rows of the same two sentences, which C-STS rates under two conditions."""
        names: dict[frozenset[str], int] = {}
        both = zip(self.sentences1, self.sentences2, strict=True)
        return np.array([names.setdefault(frozenset(pair), len(names)) for pair in both], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """Hash of the distinct pairs, without the ratings: identifies their vectors."""
        return texts_sha256(self.distinct)

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: distinct pairs, their index and ratings."""
        parts = (self.sha256.encode(), self.pair_index.tobytes(), self.ratings.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()


def rows_in(pairs: RatedPairs, others: RatedPairs) -> np.ndarray:
    """The rows of `pairs` that are in `others`, whatever their rating and the order of the two sentences."""

    def keys(rated: RatedPairs) -> Iterator[tuple[frozenset[str], str]]:
        both = zip(rated.sentences1, rated.sentences2, rated.conditions, strict=True)
        return ((frozenset((first, second)), condition) for first, second, condition in both)

    seen = set(keys(others))
    return np.array([row for row, key in enumerate(keys(pairs)) if key in seen], dtype=np.int64)


def texts_sha256(distinct: Iterable[Sequence[str]]) -> str:
    """Hash of tuples of texts, in their order."""
    digest = hashlib.sha256()
    for row in distinct:
        for text in row:
            digest.update(f"{len(text.encode())} {text}".encode())
    return digest.hexdigest()


def read_rated(uri: str, flag: str, condition: str | None = CONDITION, number: str = LABEL) -> RatedPairs:
    """Read every row of a file or folder with these columns; without a condition where `condition` is None."""
    words = [name for name in (SENTENCE1, SENTENCE2, condition) if name]
    columns: dict[str, list[str]] = {name: [] for name in words}
    ratings: list[float] = []
    for where, values in read_files(uri, (*words, number), flag, words=words):
        for name in words:
            columns[name] += values[name]
        for row, value in enumerate(values[number]):
            rating = _number(value)
            if not math.isfinite(rating):
                raise RequestError(f"{where}, row {row}: expected a number as {number}, got {value!r}; fix the row")
            ratings.append(rating)
    if len(set(ratings)) < 2:
        got = f"only {ratings[0]:g}" if ratings else "no rows"
        raise RequestError(f"{flag}: expected at least two distinct {number}s in {uri}, got {got}")
    return RatedPairs(
        uri=uri,
        sentences1=columns[SENTENCE1],
        sentences2=columns[SENTENCE2],
        conditions=columns[condition] if condition else [""] * len(ratings),
        ratings=np.array(ratings, dtype=np.float32),
    )


def _number(value: object) -> float:
    """A value as a number that float32 holds, so that labels that differ do so where they are used; else NaN."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return math.nan
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except (ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """One query, which may be several texts, and its candidates."""

    query: list[str]
    positive: list[str]
    negative: list[str]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each text of the query with each candidate, the positive ones first."""
        return [(text, candidate) for text in self.query for candidate in (*self.positive, *self.negative)]


@dataclass(frozen=True, kw_only=True)
class CandidateSets:
    """The queries that have positive and negative candidates; `left_out`: how many others there are."""

    rows: list[Candidates]
    left_out: int


def read_candidates(uri: str, flag: str) -> CandidateSets:
    """Read every row of a file or folder: a query is a text or a list of them, positive and negative are lists."""
    rows: list[Candidates] = []
    left_out = 0
    for where, columns in read_files(uri, (QUERY, POSITIVE, NEGATIVE), flag):
        for row, (query, positive, negative) in enumerate(zip(*columns.values(), strict=True)):
            of_row = f"{where}, row {row}"
            found = Candidates(
                query=_several_texts([query] if isinstance(query, str) else query, of_row, QUERY),
                positive=_several_texts(positive, of_row, POSITIVE),
                negative=_several_texts(negative, of_row, NEGATIVE),
            )
            if found.query and found.positive and found.negative:
                rows.append(found)
            else:
                left_out += 1
    if not rows:
        raise RequestError(f"{flag}: expected queries with {POSITIVE} and {NEGATIVE} texts in {uri}, got none")
    return CandidateSets(rows=rows, left_out=left_out)


def _several_texts(values: object, where: str, name: str) -> list[str]:
    """The texts of a list, stripped. Raises RequestError."""
    if not isinstance(values, list) or not all(map(is_words, values)):
        raise RequestError(f"{where}: expected a list of texts with words in {name!r}, got {values!r:.80}; fix the row")
    return [value.strip() for value in values]
