"""Which sequences go through the encoder together.

Length-sorted batches under a token budget; prefix trees for causal encoders belong here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def token_budget_batches(lengths: Sequence[int], budget: int) -> Iterator[np.ndarray]:
    """Cut sequences, longest first, into batches of at most `budget` tokens, padding counted.

    Yields index arrays that hold every position of `lengths` once. A sequence above the budget is a batch of its own.
    Raises ValueError for a budget below 1.
    """
    if budget < 1:
        raise ValueError(f"batch tokens: wanted at least 1, found {budget}")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, budget // max(1, int(sizes[order[start]])))
        yield order[start : start + rows]
        start += rows
