"""Search under several conditions at once. Each has a weight, and the score of an id is a weighted mean of its cosines:

    score(i) = sum_p w_p cos(q_p, v_ip) / sum_p |w_p|

over the conditions p under which the id has a vector.

Shapes: P conditions, Q queries, N rows of I distinct ids, B rows in a block, D dimensions, k neighbours, H answers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycase.errors import MOST_LABEL, RequestError, check_problems, expecting, normal_words, visible
from raycase.index.answers import ASKED
from raycase.index.filters import Filter
from raycase.index.options import Options
from raycase.index.topk import DIGITS, Block, top_k
from raycase.io.reader import distinct_words
from raycase.io.schema import CONDITION

PARTS_TYPE = pa.struct(
    [(ASKED, pa.string()), (CONDITION, pa.string()), ("weight", pa.float64()), ("cosine", pa.float32())]
)
MOST_COMBINED = 64  # conditions whose cosines are averaged
PAIRS = 2**16  # of a query and a row whose cosines are computed at a time

At = Callable[[str | None, np.ndarray], Tensor]  # a condition, row offsets (H,) -> unit vectors (H, D)
BlocksOf = Callable[[Any], Iterable[Block]]  # a condition -> offsets and vectors of rows; an id has at most one row


@dataclass(frozen=True, kw_only=True)
class Term:
    """A condition of a question (None: unconditional), and how much it weighs."""

    asked: str | None = None
    weight: float = 1.0
    share: float = 1.0  # the weight over the sum of all weights' sizes
    phrase: str | None = None  # what answers it, instead of the query
    condition: str | None = None  # the one that is searched for it
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))  # of the queries: (Q, D), unit


@dataclass(frozen=True, kw_only=True)
class Question:
    """Sentences, each under a term or under several with weights, and which rows may answer."""

    sentences: Sequence[str]
    terms: Sequence[Sequence[Term]]
    weighted: bool
    where: Filter | None
    options: Options


def weights_of(conditions: Sequence[str]) -> dict[str, float]:
    """The weights of conditions, 1 for one without."""
    pairs = [given.rpartition("=") if "=" in given else (given, "", "1") for given in conditions]
    names = distinct_words((name for name, _, _ in pairs), "--condition")
    with expecting("--condition: expected a number after '=', as in \"color=2\"", ValueError):
        return {name: float(number) for name, (_, _, number) in zip(names, pairs, strict=True)}


def check_weights(conditions: Mapping[str, Any], spelled: Callable[[str], str | None] = normal_words) -> Sequence[Term]:
    """Conditions with weights, or with a phrase and a weight, as an index has them `spelled`."""
    found: dict[str, Term] = {}
    for asked, value in conditions.items():
        phrase, weight = value if isinstance(value, (tuple, list)) and len(value) == 2 else ("", value)
        number, is_real = math.nan, isinstance(weight, Real) and not isinstance(weight, bool)
        with suppress(TypeError, ValueError, OverflowError):  # NumPy's numbers would overflow in comparisons
            number = float(weight)
        if not (is_real and math.isfinite(number) and isinstance(phrase, str) and isinstance(asked, str)):
            got = visible(f"{value!r} for {asked!r}", MOST_LABEL)
            raise RequestError(f"conditions: expected finite numbers as weights, or phrases with them, got {got}")
        if (name := str(spelled(asked))) in found:
            raise RequestError(f"conditions: expected each condition once, got {visible(name, MOST_LABEL)!r} twice")
        found[name] = Term(asked=name, weight=number, phrase=None if weight is value else normal_words(phrase))
    largest = max((abs(one.weight) for one in found.values()), default=0)  # so that no sum of large ones is infinite
    zero = f"conditions: expected a weight other than 0, got {'only zeros' if found else 'none'}"
    many = f"condition: expected one, or no more than the {MOST_COMBINED} that are combined, got {len(found):,}"
    check_problems({zero: not largest, many: len(found) > MOST_COMBINED})
    total = math.fsum(abs(one.weight / largest) for one in found.values())
    return tuple(replace(one, share=one.weight / largest / total) for one in found.values())


def best_ids(
    terms: Sequence[Term], offsets: np.ndarray, ids: np.ndarray, blocks: BlocksOf, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k ids with the largest weighted means, best first: scores (Q, k), offsets (Q, k) of each id's first row, and
    of its row under each condition (P, Q, k); -inf and -1 where there are none.

    offsets: of the rows that count, ascending, (N,); ids: numbers of theirs, in the order of their first rows.
    """
    first_I = offsets[np.unique(ids, return_index=True)[1]]
    row_PI = np.full((len(terms), len(first_I)), -1)  # offset of the id's row under each condition
    sums_QI = np.zeros((len(terms[0].vectors), len(first_I)), np.float32)
    for term, row_I in zip(terms, row_PI, strict=True):
        for offsets_B, vectors_BD in blocks(term.condition):
            id_B = ids[np.searchsorted(offsets, offsets_B)]
            row_I[id_B] = offsets_B
            sums_QI[:, id_B] += np.float32(term.share) * (term.vectors @ vectors_BD.numpy().T)
    total_I = (np.abs([term.share for term in terms]) @ (row_PI >= 0)).astype(np.float32)
    id_J = np.flatnonzero(total_I)  # those whose conditions do not all weigh 0
    means_JQ = torch.from_numpy((sums_QI[:, id_J] / total_I[id_J]).T)
    # a mean is the product of an id's means with the axis of a query
    scores_Qk, place_Qk = top_k(torch.eye(len(sums_QI)), [means_JQ], k, digits=DIGITS)
    id_Qk = np.append(id_J, -1)[place_Qk]
    return scores_Qk, np.append(first_I, -1)[id_Qk], np.append(row_PI, np.full((len(terms), 1), -1), 1)[:, id_Qk]


def parts_column(terms: Sequence[Term], query_H: np.ndarray, row_PH: np.ndarray, at: At) -> pa.Array:
    """The cosines of answers under each condition, lists of `PARTS_TYPE`: null where the id has no vector under one."""
    cosines_HP = np.full((len(query_H), len(terms)), np.nan, np.float32)
    for i, (term, row_H) in enumerate(zip(terms, row_PH, strict=True)):
        there_T = np.flatnonzero(row_H >= 0)
        for start in range(0, len(there_T), PAIRS):
            some = there_T[start : start + PAIRS]
            vectors_SD = at(term.condition, row_H[some]).numpy()
            cosines_HP[some, i] = np.einsum("sd,sd->s", vectors_SD, term.vectors[query_H[some]]).round(DIGITS)
    values = [
        pa.array([term.asked for term in terms] * len(query_H), pa.string()),
        pa.array([term.condition for term in terms] * len(query_H), pa.string()),
        pa.array([term.weight for term in terms] * len(query_H), pa.float64()),
        pa.array(cosines_HP.reshape(-1), pa.float32(), from_pandas=True),
    ]
    ends = pa.array(np.arange(0, cosines_HP.size + 1, len(terms), dtype=np.int32))
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(values, fields=list(PARTS_TYPE)))
