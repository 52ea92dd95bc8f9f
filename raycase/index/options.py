"""How `Index.search` answers, and within what memory; the types of an index of vectors: a new one is its name and
Lance's arguments. Nothing slow is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raycase.errors import RequestError, checks_types

VectorIndexType = Literal["auto", "exact", "ivf-rq"]
# how Lance makes an approximate one; auto takes the first. RaBitQ: codes of a bit a dimension
APPROXIMATE: dict[str, dict[str, Any]] = {"ivf-rq": {"index_type": "IVF_RQ", "num_bits": 1}}
NPROBES = 10  # partitions searched
REFINE = 10  # times k: candidates compared by their exact cosine
MOST_MEMORY = 2**20  # GiB
MOST_EFFORT = 2**20  # of each number of `OF_APPROXIMATE`


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search holds in memory."""

    memory_bytes: int = 2 * 2**30  # vectors cached, of all rows or some, and as many from sketches; more are read again
    token_memory: int = 4 * 2**30  # stored tokens cached, and as many sketches; more are read by each new condition


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a question is answered; the last four concern an approximate index."""

    unconditional: bool = False  # without conditions, which is also the default
    exact_condition: bool = False  # raise RequestError for a condition that the index lacks
    phrases: bool = False  # the sentences answer their conditions, as "heavy rain" does "weather" (condition pooling)
    stated: bool = False  # leave out rows that, by `Index.stated_at`, more likely state nothing of the condition
    match: str | None = None  # words that each answer's text must have
    hybrid: bool = False  # fuse the ranks by vectors with those by words (`text_index.fused`)
    per: str | None = None  # a column, such as `document` of chunks: k of its values, each by its best row
    exact: bool = False  # compare every vector all the same
    nprobes: int = NPROBES  # partitions searched
    refine: int | None = None  # candidates, times k; default: the search's, times `factor`
    factor: float = 1.0

    def candidates(self, k: int, refine: int, least: int = 1) -> int:
        """How many rows are compared by their exact cosine for k answers, by this default of `refine`."""
        return self.refine * k if self.refine else max(k, round(self.factor * max(least, refine * k)))


OF_APPROXIMATE = ("exact", "nprobes", "refine", "factor")


def options_of(given: Mapping[str, Any]) -> Options:
    """The options that were given by their names. Raises RequestError."""
    options = checks_types(Options)(**given)
    for name, least in (("nprobes", 1), ("refine", 1), ("factor", 0)):
        number = getattr(options, name)
        if number is not None and not (number and least <= number <= MOST_EFFORT):
            expected = "above 0" if name == "factor" else "at least 1"
            raise RequestError(f"{name}: expected a number {expected}, at most {MOST_EFFORT:,}, got {number}")
    return options


EFFORTS: dict[str, dict[str, Any]] = {  # options, by what `raycase search --effort` is given
    "low": {"nprobes": NPROBES // 4, "factor": 0.25},
    "usual": {},
    "high": {"nprobes": NPROBES * 4, "factor": 4.0},
    "exact": {"exact": True},
}
