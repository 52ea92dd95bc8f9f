"""Queries, each with texts that fit it and texts that do not, as MTEB stores its re-ranking sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycase.data.inputs import find_input
from raycase.data.rated import read_columns
from raycase.errors import RequestError, is_words

QUERY, POSITIVE, NEGATIVE = "query", "positive", "negative"


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
    """The queries that have candidates of both kinds; `left_out`: how many others there are."""

    uri: str
    rows: list[Candidates]
    left_out: int


def read_candidates(uri: str, flag: str) -> CandidateSets:
    """Read every row of a .jsonl or .parquet file, or of a folder of them: query, positive and negative.

    A query is a text or a list of texts, the others are lists. Raises RequestError, with file and row, for a missing
    column, anything but texts with words, and where no query has candidates of both kinds.
    """
    rows: list[Candidates] = []
    left_out = 0
    for file in find_input(uri, flag):
        where = f"{flag}: {file.uri}"
        columns = read_columns(file, (QUERY, POSITIVE, NEGATIVE), flag)
        for row, (query, positive, negative) in enumerate(zip(*columns.values(), strict=True)):
            found = Candidates(
                query=_texts([query] if isinstance(query, str) else query, f"{where}, row {row}", QUERY),
                positive=_texts(positive, f"{where}, row {row}", POSITIVE),
                negative=_texts(negative, f"{where}, row {row}", NEGATIVE),
            )
            if found.query and found.positive and found.negative:
                rows.append(found)
            else:
                left_out += 1
    if not rows:
        raise RequestError(f"{flag}: expected queries with {POSITIVE} and {NEGATIVE} texts in {uri}, got none")
    return CandidateSets(uri=uri, rows=rows, left_out=left_out)


def _texts(values: object, where: str, name: str) -> list[str]:
    """The texts of a list, stripped. Raises RequestError."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RequestError(
            f"{where}: expected a list of texts in {name!r} (.jsonl or .parquet), got {values!r:.80}; fix the row"
        )
    for value in values:
        if not is_words(value):
            raise RequestError(f"{where}: expected words in every text of {name!r}, got {value!r:.80}; fix the row")
    return [value.strip() for value in values]
