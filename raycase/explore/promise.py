"""How many labels of a model can be given with a promise of their precision, by answers to rows drawn at random.

Learn then test (Angelopoulos et al., 2021, arXiv:2110.01052): for the labels above each of some confidences, the chance
is computed that the check sample looks so good while more of the labels of the other rows are wrong than promised. The
loosest confidence counts at which that chance is small enough. A corpus is finite, and the check sample may be half of
it, so the distribution is the hypergeometric one, exactly; for many rows it becomes the test of Clopper and Pearson
(1934). As the promise is about the rows that are not checked, and not about all, a chain of tests in a fixed order is
not known to be right; the confidences share the chance of an error (Bonferroni). So do the rounds of asking: who asks
for more answers because those of a round did not suffice looks again.

Shapes: P rows that the model did not learn from, some of them checked.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor, log

import numpy as np
from scipy.stats import binom, hypergeom

DOUBT = 0.05  # chance that a promise fails, over all rounds
STEPS = 10  # confidences at which a promise is tried: of a tenth of the rows, of two tenths …
ENOUGH = 30  # wrong rows of the check sample at the promised precision, by which it is large enough
EPSILON = 1e-9  # of products of shares and rows


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Of the rows with at least this confidence, so many are checked, and so many of these wrong."""

    confidence: float
    checked: int
    wrong: int


def random_order(ids: list[str]) -> np.ndarray:
    """The rows in an order that hangs on their ids alone: (N,)."""
    drawn = [blake2b(each.encode("utf-8", "surrogatepass"), digest_size=8).digest() for each in ids]
    return np.argsort(np.array(drawn, "S8").view(">u8"), kind="stable")


def check_sample(order_N: np.ndarray, drawn_N: np.ndarray, learned_N: np.ndarray) -> np.ndarray:
    """Which rows are checked: those at the unbroken beginning of the random order, from which the model did not learn,
    that were drawn and answered: (N,) bool. learned_N: answered, but not drawn."""
    left_P = order_N[~learned_N[order_N]]
    answered_P = np.append(drawn_N[left_P], False)
    checked_N = np.zeros(len(order_N), bool)
    checked_N[left_P[: int(answered_P.argmin())]] = True
    return checked_N


def level_of(round_: int) -> float:
    """The chance that a promise fails in a round, from 1 on; their sum is DOUBT."""
    return DOUBT * 2 / ((round_ + 1) * (round_ + 2))


def least_checked(share: float, level: float) -> int:
    """Rows to check, all right, before any promise of a share of many rows."""
    return ceil(log(level) / log(share) - EPSILON)


def steps_of(confidence_P: np.ndarray) -> list[float]:
    """The confidences at which a promise is tried, strictest first."""
    ordered_P = np.sort(confidence_P)[::-1]
    places = [ceil(len(ordered_P) * step / STEPS) - 1 for step in range(1, STEPS + 1)] if len(ordered_P) else []
    return sorted(set(ordered_P[places].tolist()), reverse=True)


def promise_precision(
    confidence_P: np.ndarray, checked_P: np.ndarray, right_P: np.ndarray, share: float, level: float
) -> Promise | None:
    """The loosest promise that at least this share of the labels of rows that are not checked is right; None: none can
    be made. right_P: of those that are checked."""
    tries: list[tuple[Promise, int, int]] = []
    for confidence in reversed(steps_of(confidence_P)):  # those with too few checked rows have no share of the chance
        is_in_P = confidence_P >= confidence
        rows, checked = int(is_in_P.sum()), int((is_in_P & checked_P).sum())
        too_many = floor((1 - share) * (rows - checked) + EPSILON) + 1  # wrong ones among those that are not checked
        if rows - checked >= too_many and hypergeom.cdf(0, rows, too_many, checked) <= level / (len(tries) + 1):
            wrong = int((is_in_P & checked_P & ~right_P).sum())
            tries.append((Promise(confidence=confidence, checked=checked, wrong=wrong), rows, too_many))
    for promise, rows, too_many in tries:
        least = min(promise.wrong + too_many, rows)
        if hypergeom.cdf(promise.wrong, rows, least, promise.checked) <= level / len(tries):
            return promise
    return None


def promise_recall(
    steps: list[float], confidence_C: np.ndarray, right_C: np.ndarray, share: float, level: float
) -> float:
    """The strictest of these confidences above which at least this share of rows with a label gets the right one, by C
    checked rows that have one; -inf where no promise can be made. Tested from the loosest, which misses least."""
    kept = -np.inf
    for confidence in reversed(steps):
        missed = len(right_C) - int((right_C & (confidence_C >= confidence)).sum())
        if binom.cdf(missed, len(right_C), 1 - share) > level:
            break
        kept = confidence
    return kept
