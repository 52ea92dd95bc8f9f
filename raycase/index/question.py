"""What `Index.search` is asked, and how it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.index.filters import Filter

if TYPE_CHECKING:
    from raycase.index.weighted_search import Term

NPROBES = 10  # partitions searched
REFINE = 10  # times k: candidates compared by their exact cosine


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a question is answered.

    unconditional: without conditions, which is also the default. exact_condition: raise RequestError for a condition
    that the index lacks. phrases: the sentences answer their conditions, as "heavy rain" does "weather" (condition
    pooling). stated: leave out rows that, by `Index.stated_at`, more likely than not state nothing of the condition.
    match: words that each answer's text must have. hybrid: fuse the ranks by vectors with those by words
    (`text_index.fused`). per: a column, such as `document` of chunks: k of its values, each by its best row.

    The others concern an approximate index. exact: compare every vector all the same. nprobes: partitions searched.
    refine: candidates, times k; default: the search's, times `factor`.
    """

    unconditional: bool = False
    exact_condition: bool = False
    phrases: bool = False
    stated: bool = False
    match: str | None = None
    hybrid: bool = False
    per: str | None = None
    exact: bool = False
    nprobes: int = NPROBES
    refine: int | None = None
    factor: float = 1.0

    def candidates(self, k: int, refine: int, least: int = 1) -> int:
        """How many rows are compared by their exact cosine for k answers, by this default of `refine`."""
        return self.refine * k if self.refine else max(k, round(self.factor * max(least, refine * k)))


EFFORTS: dict[str, dict[str, Any]] = {  # options, by what `raycase search --effort` is given
    "low": {"nprobes": NPROBES // 4, "factor": 0.25},
    "usual": {},
    "high": {"nprobes": NPROBES * 4, "factor": 4.0},
    "exact": {"exact": True},
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """Sentences, each under a term or under several with weights, and which rows may answer."""

    sentences: Sequence[str]
    terms: Sequence[Sequence[Term]]
    weighted: bool
    where: Filter | None
    options: Options
