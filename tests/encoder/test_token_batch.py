"""Batches of tokenised prompts: taken by rows."""

import numpy as np

from raycase.encoder.token_batch import NEVER, TokenBatch, Tokens


def test_a_batch_of_some_rows():
    batch = TokenBatch.of([Tokens(ids=[n] * n, start=0, end=n) for n in range(1, 6)])
    some = batch.take(np.array([3, 0]))
    assert some.lengths.tolist() == [4, 1]
    assert some.ids(np.array([1, 0])).flat.tolist() == [1, 4, 4, 4, 4]
    assert batch.second is None and "second" not in batch.arrays()


def test_types_go_with_their_prompts():
    batch = TokenBatch.of([Tokens(ids=[7] * 4, start=0, end=4, second=n) for n in (2, 3, NEVER)])
    assert batch.second.tolist() == [2, 3, NEVER]
    again = TokenBatch.from_arrays(batch.take(np.array([2, 0])).arrays())
    assert again.second.tolist() == [NEVER, 2]
