"""Approximate search by Lance's index of a vector column (HNSW, IVF-PQ or IVF-RQ). What it finds is compared by the
vectors themselves, in the format of the output that was indexed.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raycase.data.schema import CONDITION, PLAIN, VECTOR
from raycase.search.column_indices import kind_of
from raycase.search.filters import Filter
from raycase.search.lance_files import OFFSET, offsets_of, sql_equals
from raycase.search.metadata import IndexMetadata

if TYPE_CHECKING:
    from lance import LanceDataset

NPROBES = 10  # partitions searched
EF = 100  # candidates that an HNSW search holds
REFINE = {"hnsw": 3, "ivf-pq": 10, "ivf-rq": 10}  # times k: candidates compared by their exact cosine


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a search uses an approximate index; the answers of an exact index do not depend on them."""

    exact: bool = False  # compare every vector, whatever the index
    nprobes: int = NPROBES
    ef: int = EF
    refine: int | None = None  # default: `REFINE` of the index's kind, times `factor`
    factor: float = 1.0

    def candidates(self, k: int, refine: int, least: int = 1) -> int:
        """How many rows are compared by their exact cosine for k answers, by this default of `refine`."""
        return self.refine * k if self.refine else max(k, round(self.factor * max(least, refine * k)))


DEFAULT_OPTIONS = Options()
EFFORTS = {  # of `raycase search --effort`
    "low": Options(nprobes=NPROBES // 4, ef=EF // 4, factor=0.25),
    "usual": DEFAULT_OPTIONS,
    "high": Options(nprobes=NPROBES * 4, ef=EF * 4, factor=4.0),
    "exact": Options(exact=True),
}


def approximate_nearest(
    dataset: LanceDataset,
    metadata: IndexMetadata,
    vectors_QD: np.ndarray,
    condition: str | None,
    k: int,
    where: Filter | None,
    options: Options,
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows nearest to unit vectors under a condition (None: plain vectors), best first, among those that the
    filter leaves: (Q, D) -> cosines (Q, k), row offsets (Q, k); -inf and -1 where there are fewer."""
    filters = [] if metadata.rows_under(condition) == metadata.rows else [sql_equals(CONDITION, condition)]
    filters += [where] if where else []
    kind = kind_of(metadata.approximate_kind, vectors_QD.shape[1])
    refine = math.ceil(options.candidates(k, REFINE[kind]) / k)
    nearest = {
        "column": PLAIN if condition is None else VECTOR,
        "q": vectors_QD if len(vectors_QD) > 1 else vectors_QD[0],
        "k": k,
        "metric": "dot",  # for columns with too few vectors to train an index, where Lance would default to L2
        "refine_factor": refine,
    }
    if kind == "hnsw":
        nearest["ef"] = max(options.ef, k * refine)
    for probes in ({"nprobes": options.nprobes}, {"minimum_nprobes": options.nprobes}):
        rows = dataset.to_table(
            columns=[OFFSET, "_distance"],
            nearest=nearest | probes,
            filter=" AND ".join(filters) or None,
            prefilter=bool(filters),
        )
        if len(rows) == k * len(vectors_QD):  # else rows that pass the filter lie in partitions further off
            break
    scores_Qk = np.full((len(vectors_QD), k), -np.inf, dtype=np.float32)
    offsets_Qk = np.full((len(vectors_QD), k), -1, dtype=np.int64)
    queries = rows["query_index"].to_numpy() if "query_index" in rows.column_names else np.zeros(len(rows), int)
    ranks = np.arange(len(rows)) - np.searchsorted(queries, queries)
    scores_Qk[queries, ranks] = 1 - rows["_distance"].to_numpy()  # Lance's distance is 1 - dot product
    offsets_Qk[queries, ranks] = offsets_of(rows)
    return scores_Qk, offsets_Qk
