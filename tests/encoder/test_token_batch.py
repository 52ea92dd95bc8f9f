"""Batches of tokenised prompts: taken and replaced by rows."""

import numpy as np

from raycase.data.schema import Reason
from raycase.encoder.token_batch import TokenBatch, Tokens


def test_a_batch_of_some_rows():
    batch = TokenBatch.of([Tokens(ids=[n] * n, start=0, end=n) for n in range(1, 6)])
    some = batch.take(np.array([3, 0]))
    assert some.lengths.tolist() == [4, 1]
    assert some.ids(np.array([1, 0])).flat.tolist() == [1, 4, 4, 4, 4]
    other = TokenBatch.of([Tokens(ids=[], start=0, end=0, refused=Reason.NO_ROOM)])
    assert batch.replaced(np.array([1]), other).lengths.tolist() == [1, 0, 3, 4, 5]
    assert batch.replaced(np.array([1]), other).reasons == [None, Reason.NO_ROOM, None, None, None]
