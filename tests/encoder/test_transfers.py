"""What is sent arrives in its shapes, and vectors come back to their rows."""

import numpy as np
import torch

from raycase.encoder.transfers import ALIGNED, Collector, packed, send, unpacked

CPU = torch.device("cpu")
ARRAYS = [np.arange(6).reshape(2, 3).T, np.arange(100, 200), np.empty((0, 4), np.int64), np.array([[7]], np.int32)]


def test_arrays_share_one_copy_and_keep_their_shapes():
    flat = packed(ARRAYS, lambda size: torch.full((size,), -1, dtype=torch.int32))
    assert len(flat) == 6 * ALIGNED
    for found in (unpacked(flat, ARRAYS), send(CPU, *ARRAYS)):
        assert all(part.dtype == torch.int32 for part in found)
        for part, array in zip(found, ARRAYS, strict=True):
            np.testing.assert_array_equal(part.numpy(), array)
    assert all(part.storage_offset() % ALIGNED == 0 for part in unpacked(flat, ARRAYS))


def test_vectors_are_put_into_their_rows():
    vectors = torch.arange(12.0).view(6, 2).half()
    collector = Collector(6, like=vectors[:0])
    for rows in (np.array([5, 0]), np.array([], np.int64), np.array([1, 4, 3, 2])):
        collector.add(rows, vectors[rows])
    found = collector.result()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, vectors.numpy())


def test_of_a_batch_only_those_that_are_kept_are_stored():
    collector = Collector(3, like=torch.empty(0, 2))
    collector.add(np.array([2, 0, 0]), torch.arange(6.0).view(3, 2), np.array([True, True, False]))
    collector.add(np.array([1]), torch.tensor([[8.0, 9.0]]))
    np.testing.assert_array_equal(collector.result(), [[2, 3], [8, 9], [0, 1]])
