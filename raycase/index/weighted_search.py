"""Search under several conditions at once. Each has a weight, and the score of an id is a weighted mean of its cosines:

    score(i) = sum_p w_p cos(q_p, v_ip) / sum_p |w_p|

over the conditions p under which the id has a vector. A search without a condition is the case in which every condition
of the index weighs 1.

Shapes: P conditions, Q queries, N rows of I distinct ids, B rows in a block, D dimensions, k neighbours, H answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycase.errors import MOST_LABEL, RequestError, normal_words, visible
from raycase.index.topk import Block, exact_top_k
from raycase.io.schema import ASKED, CONDITION

PARTS_TYPE = pa.struct(
    [(ASKED, pa.string()), (CONDITION, pa.string()), ("weight", pa.float64()), ("cosine", pa.float32())]
)
PAIRS = 4096  # of a query and a row whose cosines are computed at a time in float64

At = Callable[[Any, np.ndarray], Tensor]  # a condition, row offsets (H,) -> unit vectors (H, D) float64
BlocksOf = Callable[[Any], Iterable[Block]]  # a condition -> offsets and vectors of rows; an id has at most one row


class Weighted(NamedTuple):
    """A condition that is asked (None: unconditional) with a weight, and this as a share of the sum of all weights'
    sizes. phrase: what answers it, instead of the query; condition: the one that is searched."""

    asked: str | None
    weight: float = 1.0
    share: float = 1.0
    phrase: str | None = None
    condition: str | None = None


@dataclass(frozen=True, kw_only=True)
class Term:
    """A condition that is searched (None: unconditional), its share, and the queries' unit vectors, (Q, D) float32."""

    condition: str | None
    share: float
    vectors: np.ndarray


def weights_of(conditions: Sequence[str]) -> dict[str, float]:
    """The weights of conditions, 1 for one without. Raises RequestError."""
    weights: dict[str, float] = {}
    for given in conditions:
        name, _, number = given.rpartition("=") if "=" in given else (given, "", "1")
        if (normal := normal_words(name)) in weights:
            raise RequestError(f"--condition: expected each condition once, got {visible(normal, MOST_LABEL)!r} twice")
        try:
            weights[normal] = float(number)
        except ValueError as error:
            got = visible(repr(given), MOST_LABEL)
            raise RequestError(f"--condition: expected a number after '=', as in \"color=2\", got {got}") from error
    return weights


def check_weights(
    conditions: Mapping[str, Any], spelled: Callable[[str], str | None] = normal_words
) -> tuple[Weighted, ...]:
    """Conditions with weights, or with a phrase and a weight. Raises RequestError for wrong ones, one that stands
    twice, as an index has it `spelled`, and only zeros."""
    found: dict[str, Weighted] = {}
    for asked, value in conditions.items():
        phrase, weight = value if isinstance(value, (tuple, list)) and len(value) == 2 else ("", value)
        number, of_kinds = math.nan, isinstance(weight, Real) and not isinstance(weight, bool)
        with suppress(TypeError, ValueError, OverflowError):  # NumPy's numbers would overflow in comparisons
            number = float(weight)
        if not (of_kinds and math.isfinite(number) and isinstance(phrase, str) and isinstance(asked, str)):
            got = visible(f"{value!r} for {asked!r}", MOST_LABEL)
            raise RequestError(f"conditions: expected finite numbers as weights, or phrases with them, got {got}")
        if (name := str(spelled(asked))) in found:
            raise RequestError(f"conditions: expected each condition once, got {visible(name, MOST_LABEL)!r} twice")
        found[name] = Weighted(name, number, phrase=None if weight is value else normal_words(phrase))
    largest = max((abs(one.weight) for one in found.values()), default=0)  # so that no sum of large ones is infinite
    if not largest:
        raise RequestError(f"conditions: expected a weight other than 0, got {'only zeros' if found else 'none'}")
    total = math.fsum(abs(one.weight / largest) for one in found.values())
    return tuple(one._replace(share=one.weight / largest / total) for one in found.values())


class Sums:
    """The weighted sums of cosines of each id, in float32, and where its rows are.

    offsets: those of the rows that count, ascending, (N,). ids: numbers of theirs, in the order of their first rows.
    """

    def __init__(self, terms: Sequence[Term], offsets: np.ndarray, ids: np.ndarray, blocks: BlocksOf) -> None:
        self.first_I = offsets[np.unique(ids, return_index=True)[1]]
        self.row_PI = np.full((len(terms), len(self.first_I)), -1)  # offset of the id's row under each condition
        self.sums_QI = np.zeros((len(terms[0].vectors), len(self.first_I)), np.float32)
        for term, row_I in zip(terms, self.row_PI, strict=True):
            for offsets_B, vectors_BD in blocks(term.condition):
                id_B = ids[np.searchsorted(offsets, offsets_B)]
                row_I[id_B] = offsets_B
                self.sums_QI[:, id_B] += np.float32(term.share) * (term.vectors @ vectors_BD.numpy().T)
        self.total_I = np.abs([term.share for term in terms]) @ (self.row_PI >= 0)

    def means(self) -> tuple[np.ndarray, Tensor]:
        """Which ids have conditions that do not all weigh 0, (J,), and their weighted means, (Q, J) float32."""
        id_J = np.flatnonzero(self.total_I)
        return id_J, torch.from_numpy(self.sums_QI[:, id_J] / self.total_I[id_J].astype(np.float32))


def best_ids(
    terms: Sequence[Term], offsets: np.ndarray, ids: np.ndarray, blocks: BlocksOf, at: At, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k ids with the largest weighted means, of rows as `Sums` takes them, best first: scores (Q, k), offsets
    (Q, k) of each id's first row, and of its row under each condition (P, Q, k); -inf and -1 where there are none. As
    in `exact_top_k`, scores are those in float64, rounded to float32, in whatever blocks the rows come."""
    sums = Sums(terms, offsets, ids, blocks)

    def exact(offsets_B: np.ndarray) -> Tensor:
        id_B = np.searchsorted(sums.first_I, offsets_B)
        sums_BQ = np.zeros((len(id_B), len(sums.sums_QI)))
        for term, row_I in zip(terms, sums.row_PI, strict=True):
            there_B = row_I[id_B] >= 0
            if there_B.any():
                queries_QD = term.share * term.vectors.astype(np.float64)
                vectors_HD = at(term.condition, row_I[id_B[there_B]]).numpy()
                sums_BQ[there_B] += np.einsum("hd,qd->hq", vectors_HD, queries_QD)
        return torch.from_numpy(sums_BQ / sums.total_I[id_B, None])

    # an id's means are its vector along the queries, and each query is an axis
    (id_J, means_QJ), axes_QQ = sums.means(), np.eye(len(sums.sums_QI), dtype=np.float32)
    scores_Qk, offsets_Qk = exact_top_k(axes_QQ, lambda: [(sums.first_I[id_J], means_QJ.T)], k, exact)
    row_PQk = np.full((len(terms), *offsets_Qk.shape), -1)
    row_PQk[:, offsets_Qk >= 0] = sums.row_PI[:, np.searchsorted(sums.first_I, offsets_Qk[offsets_Qk >= 0])]
    return scores_Qk, offsets_Qk, row_PQk


def candidate_rows(terms: Sequence[Term], offsets: np.ndarray, blocks: BlocksOf, most: int) -> np.ndarray:
    """The offsets of the rows with the largest weighted means, so many for each query, each once, by sketches along
    the axes of each condition: (N,), ascending. offsets: those of the rows that count, ascending."""
    row_J, means_QJ = Sums(terms, offsets, np.arange(len(offsets)), blocks).means()
    return offsets[row_J[np.unique(means_QJ.topk(min(most, len(row_J))).indices.numpy())]]


def parts_column(
    weighted: Sequence[Weighted], terms: Sequence[Term], query_H: np.ndarray, row_PH: np.ndarray, at: At
) -> pa.Array:
    """The cosines of answers under each condition, from the query and the rows of each: a list of `PARTS_TYPE` with as
    many as there are conditions, null where the id has no vector under one."""
    cosines_HP = np.full((len(query_H), len(terms)), np.nan, np.float32)
    for i, (term, row_H) in enumerate(zip(terms, row_PH, strict=True)):
        there_T = np.flatnonzero(row_H >= 0)
        for start in range(0, len(there_T), PAIRS):
            some = there_T[start : start + PAIRS]
            queries_SD = term.vectors[query_H[some]].astype(np.float64)
            vectors_SD = at(term.condition, row_H[some]).numpy()
            cosines_HP[some, i] = np.einsum("sd,sd->s", vectors_SD, queries_SD).clip(-1, 1)
    values = [
        pa.array([one.asked for one in weighted] * len(query_H), pa.string()),
        pa.array([term.condition for term in terms] * len(query_H), pa.string()),
        pa.array([one.weight for one in weighted] * len(query_H), pa.float64()),
        pa.array(cosines_HP.reshape(-1), pa.float32(), from_pandas=True),
    ]
    ends = pa.array(np.arange(0, cosines_HP.size + 1, len(terms), dtype=np.int32))
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(values, fields=list(PARTS_TYPE)))
