"""Search under several conditions at once. Each has a weight, and the score of an id is a weighted mean of its cosines:

    score(i) = sum_p w_p cos(q_p, v_ip) / sum_p |w_p|

over the conditions p under which the id has a vector. A search without a condition is the case in which every condition
of the index weighs 1.

Shapes: P conditions, Q queries, N rows of I distinct ids, B rows in a block, D dimensions, k neighbours, H answers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.exact import Block, exact_nearest
from raycase.index.lance_files import OFFSET, sql_in
from raycase.index.metadata import IndexMetadata
from raycase.io.schema import ASKED, CONDITION, ID
from raycase.io.stored_tokens import BASIS

if TYPE_CHECKING:
    from lance.dataset import LanceScanner

PARTS_TYPE = pa.struct(
    [(ASKED, pa.string()), (CONDITION, pa.string()), ("weight", pa.float64()), ("cosine", pa.float32())]
)
PAIRS = 4096  # of a query and a row whose cosines are computed at a time in float64

At = Callable[[str, np.ndarray], Tensor]  # a condition, row offsets (B,), ascending -> unit vectors (B, D) float64


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A condition that is asked with a weight. phrase: what answers it, instead of the query."""

    asked: str
    weight: float
    phrase: str | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A condition that is searched (None: unconditional), its share of all weights, and the queries' unit vectors under
    it, (Q, D) float32."""

    condition: str | None
    share: float
    vectors: np.ndarray


def weights_of(conditions: Sequence[str]) -> dict[str, float]:
    """The weights of conditions, 1 for one without. Raises RequestError."""
    weights: dict[str, float] = {}
    for given in conditions:
        name, _, number = given.rpartition("=") if "=" in given else (given, "", "1")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            got = visible(repr(given), MOST_LABEL)
            raise RequestError(f"--condition: expected a finite number after '=', as in \"color=2\", got {got}")
        name = name.strip()
        if name in weights:
            raise RequestError(f"--condition: expected each condition once, got {visible(name, MOST_LABEL)!r} twice")
        weights[name] = weight
    return weights


def check_weights(conditions: Mapping[str, Any]) -> list[Weighted]:
    """Conditions with their weights, or with pairs of a phrase and a weight. Raises RequestError for a weight that is
    no finite number, and where none differs from 0."""
    found = []
    for asked, value in conditions.items():
        phrase, weight = value if isinstance(value, (tuple, list)) and len(value) == 2 else (None, value)
        of_kinds = isinstance(weight, Real) and not isinstance(weight, bool) and isinstance(phrase, str | None)
        if not of_kinds or not abs(weight) <= sys.float_info.max:  # as NaN is not
            got = visible(f"{value!r} for {asked!r}", MOST_LABEL)
            raise RequestError(f"conditions: expected finite numbers as weights, or phrases with them, got {got}")
        found.append(Weighted(asked=asked, weight=float(weight), phrase=phrase))
    if not any(one.weight for one in found):
        raise RequestError(f"conditions: expected a weight other than 0, got {'only zeros' if found else 'none'}")
    return found


def shares(weighted: Sequence[Weighted]) -> list[float]:
    """Each weight as a share of the sum of their sizes."""
    largest = max(abs(one.weight) for one in weighted)  # so that no sum of large ones is infinite
    total = math.fsum(abs(one.weight / largest) for one in weighted)
    return [one.weight / largest / total for one in weighted]


def rows_under(
    scan: Callable[..., LanceScanner],
    metadata: IndexMetadata,
    parts: Sequence[Part],
    where: str | None,
    ids: Iterable[str | int] | None = None,
) -> pa.Table:
    """Id, condition and offset of the rows under these conditions that pass the filter, in the order of the dataset:
    null as the condition of rows with stored tokens, where some condition is pooled from these. ids: only theirs."""
    stored = [name for part in parts if (name := part.condition) is not None and name in metadata.conditions]
    of_kind = [sql_in(CONDITION, stored)] + [f"{BASIS} IS NOT NULL"] * (len(stored) < len(parts))
    filters = [f"({' OR '.join(of_kind)})", *([where] if where else []), *([] if ids is None else [sql_in(ID, ids)])]
    return scan(columns=[ID, CONDITION, OFFSET], filter=" AND ".join(filters)).to_table()


def numbers_of(ids: pa.ChunkedArray) -> np.ndarray:
    """A number of each id, in the order of their first rows: (N,)."""
    numbers: np.ndarray = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    return numbers


class Sums:
    """The weighted sums of cosines of each id, in float32, and where its rows are.

    offsets: those of the rows that count, ascending, (N,). ids: `numbers_of` theirs, (N,). blocks: offsets and vectors
    of the rows under a condition; an id has at most one row under each.
    """

    def __init__(
        self, parts: Sequence[Part], offsets: np.ndarray, ids: np.ndarray, blocks: Callable[[Any], Iterable[Block]]
    ) -> None:
        self.first_I = offsets[np.unique(ids, return_index=True)[1]]
        self.row_PI = np.full((len(parts), len(self.first_I)), -1)  # offset of the id's row under each condition
        self.sums_QI = np.zeros((len(parts[0].vectors), len(self.first_I)), np.float32)
        for part, row_I in zip(parts, self.row_PI, strict=True):
            for offsets_B, vectors_BD in blocks(part.condition):
                id_B = ids[np.searchsorted(offsets, offsets_B)]
                row_I[id_B] = offsets_B
                self.sums_QI[:, id_B] += np.float32(part.share) * (part.vectors @ vectors_BD.numpy().T)
        self.total_I = np.abs([part.share for part in parts]) @ (self.row_PI >= 0)

    def means(self) -> tuple[np.ndarray, Tensor]:
        """Which ids have conditions that do not all weigh 0, (J,), and their weighted means, (Q, J) float32."""
        id_J = np.flatnonzero(self.total_I)
        return id_J, torch.from_numpy(self.sums_QI[:, id_J] / self.total_I[id_J].astype(np.float32))


def best_ids(
    parts: Sequence[Part],
    offsets: np.ndarray,
    ids: np.ndarray,
    blocks: Callable[[Any], Iterable[Block]],
    at: At,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k ids with the largest weighted means, of rows as `Sums` takes them, best first: scores (Q, k), offsets
    (Q, k) of each id's first row, and of its row under each condition (P, Q, k); -inf and -1 where there are none.

    Scores are those in float64, rounded to float32, in whatever blocks the rows come; of equal ones the earlier row
    wins.
    """
    sums = Sums(parts, offsets, ids, blocks)

    def exact(offsets_B: np.ndarray) -> Tensor:
        id_B = np.searchsorted(sums.first_I, offsets_B)
        sums_BQ = np.zeros((len(id_B), len(sums.sums_QI)))
        for part, row_I in zip(parts, sums.row_PI, strict=True):
            there_B = row_I[id_B] >= 0
            vectors_HD = _vectors(part, row_I[id_B[there_B]], at)
            queries_QD = part.share * part.vectors.astype(np.float64)
            sums_BQ[there_B] += np.einsum("hd,qd->hq", vectors_HD, queries_QD)
        return torch.from_numpy(sums_BQ / sums.total_I[id_B, None])

    # an id's means are its vector along the queries, and each query is an axis
    (id_J, means_QJ), axes_QQ = sums.means(), np.eye(len(sums.sums_QI), dtype=np.float32)
    scores_Qk, offsets_Qk = exact_nearest(axes_QQ, lambda: [(sums.first_I[id_J], means_QJ.T)], k, exact)
    row_PQk = np.full((len(parts), *offsets_Qk.shape), -1)
    row_PQk[:, offsets_Qk >= 0] = sums.row_PI[:, np.searchsorted(sums.first_I, offsets_Qk[offsets_Qk >= 0])]
    return scores_Qk, offsets_Qk, row_PQk


def candidate_rows(
    parts: Sequence[Part], offsets: np.ndarray, blocks: Callable[[Any], Iterable[Block]], most: int
) -> np.ndarray:
    """The offsets of the rows with the largest weighted means, so many for each query, each once, by sketches along
    the axes of each condition: (N,), ascending. offsets: those of the rows that count, ascending."""
    row_J, means_QJ = Sums(parts, offsets, np.arange(len(offsets)), blocks).means()
    return offsets[row_J[np.unique(means_QJ.topk(min(most, len(row_J))).indices.numpy())]]


def parts_column(
    weighted: Sequence[Weighted], parts: Sequence[Part], row_PQk: np.ndarray, at: At
) -> Callable[[np.ndarray, np.ndarray], pa.Array]:
    """Gives the answers' cosines under each condition, from the query and rank of each: a list of `PARTS_TYPE` with as
    many as there are conditions, null where the id has no vector under one."""

    def column(query_H: np.ndarray, rank_H: np.ndarray) -> pa.Array:
        cosines_HP = np.full((len(query_H), len(parts)), np.nan, np.float32)
        for i, part in enumerate(parts):
            row_H = row_PQk[i, query_H, rank_H]
            there_T = np.flatnonzero(row_H >= 0)
            for start in range(0, len(there_T), PAIRS):
                some = there_T[start : start + PAIRS]
                vectors_HD, queries_HD = _vectors(part, row_H[some], at), part.vectors[query_H[some]]
                cosines_HP[some, i] = np.einsum("hd,hd->h", vectors_HD, queries_HD.astype(np.float64))
        values = [
            pa.array([one.asked for one in weighted] * len(query_H), pa.string()),
            pa.array([part.condition for part in parts] * len(query_H), pa.string()),
            pa.array([one.weight for one in weighted] * len(query_H), pa.float64()),
            pa.array(cosines_HP.reshape(-1), pa.float32(), from_pandas=True),
        ]
        ends = pa.array(np.arange(0, cosines_HP.size + 1, len(parts), dtype=np.int32))
        return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(values, fields=list(PARTS_TYPE)))

    return column


def _vectors(part: Part, row_H: np.ndarray, at: At) -> np.ndarray:
    """The unit vectors of rows, in any order and several times each, in float64: (H, D)."""
    if not len(row_H):
        return np.empty((0, part.vectors.shape[1]))
    offsets_B, place_H = np.unique(row_H, return_inverse=True)
    assert part.condition is not None
    return at(part.condition, offsets_B).numpy()[place_H]
