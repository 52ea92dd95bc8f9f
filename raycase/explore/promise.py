"""How many labels of a model can be given with a promise of their precision, by answers to rows drawn at random.

Learn then test (Angelopoulos et al., 2021, arXiv:2110.01052), with tests in a fixed order: for the rows above one
confidence after another, looser and looser, the chance is computed that the check sample looks so good while the model
is wrong more often than promised. The first test that fails ends them, so they need not share the chance of an error.
They begin where the model's own probabilities make success likeliest, of which the check sample knows nothing. A corpus
is finite, so the distribution is the hypergeometric one, exactly; for many rows it becomes the test of Clopper and
Pearson (1934). What is tested is how often the model is right for all rows above a confidence, those of the check
sample included, whose labels are then people's. Rounds of asking share the chance of an error (Bonferroni): who asks
for more answers because those of a round did not suffice looks again. A round in which no test could succeed is no
look.

Shapes: P rows that the model did not learn from, some of them checked.
"""

from hashlib import blake2b
from itertools import takewhile
from math import ceil, floor, log

import numpy as np
from scipy.stats import binom, hypergeom

DOUBT = 0.05  # chance that a promise fails, over all rounds
STEPS = 20  # confidences at which a promise is tried: of a twentieth of the rows, of two twentieths …
ENOUGH = 30  # wrong rows of the check sample at the promised precision, by which it is large enough
EPSILON = 1e-9  # of products of shares and rows


def random_order(ids: list[str]) -> np.ndarray:
    """The rows in an order that depends on their ids alone: (N,)."""
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


def level_of(look: int) -> float:
    """The chance that a promise fails at a look, from 1 on; their sum is DOUBT."""
    return DOUBT * 2 / ((look + 1) * (look + 2))


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
) -> float | None:
    """The loosest confidence from which on the model is right for at least this share of rows; infinity: no such
    promise; None: no test could succeed. right_P: of those that are checked."""
    tests: list[tuple[float, float, float]] = []  # the chance that is expected, the one that is found, the confidence
    for confidence in steps_of(confidence_P):
        is_in_P = confidence_P >= confidence
        of_checked = is_in_P & checked_P
        rows, checked, wrong = int(is_in_P.sum()), int(of_checked.sum()), int((of_checked & ~right_P).sum())
        too_many = floor((1 - share) * rows + EPSILON) + 1
        if hypergeom.cdf(0, rows, too_many, checked) <= level:
            doubt = checked * (1 - confidence_P[is_in_P].mean())
            expected, found = (float(hypergeom.cdf(count, rows, too_many, checked)) for count in (round(doubt), wrong))
            tests.append((expected, found, confidence))
    if not tests:
        return None
    begin = np.argmin([expected for expected, _, _ in tests])
    passed = [*takewhile(lambda test: test[1] <= level, tests[begin:])]
    return passed[-1][2] if passed else np.inf


def promise_recall(
    steps: list[float], confidence_C: np.ndarray, right_C: np.ndarray, share: float, level: float
) -> float:
    """The strictest of these confidences above which at least this share of rows with a label gets the right one, by C
    checked rows that have one; -inf where no promise can be made. Tested from the loosest, which misses least."""

    def doubt(confidence: float) -> float:
        right = int((right_C & (confidence_C >= confidence)).sum())
        return float(binom.cdf(len(right_C) - right, len(right_C), 1 - share))

    return max(takewhile(lambda confidence: doubt(confidence) <= level, reversed(steps)), default=-np.inf)
