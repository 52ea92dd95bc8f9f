"""What a token sees, by chunks and by FlexAttention's blocks, is what the row says."""

import numpy as np
import pytest
import torch

from raycase.encoder.attention import RowMasks, attend, block_mask, whole_chunks
from raycase.encoder.packing import Forest, Ragged


def random_rows(seed, kind, length):
    """A row of random sequences with shared prefixes, in whole chunks or blocks."""
    random = np.random.default_rng(seed)
    stems = [random.integers(0, 3, random.integers(1, 90)).tolist() for _ in range(4)]
    tail = lambda: random.integers(0, 3, random.integers(0, 60)).tolist()  # noqa: E731 one line
    sequences = [[*stems[random.integers(4)], *tail()] for _ in range(30)]
    forest = Forest.of(Ragged.of_ids(sequences), causal=kind == "tree")
    row = forest.lay(forest.cuts(length, whole_chunks)[0])
    return row.padded(-(-len(row) // 128) * 128, 0)


def dense(row, window=None):
    """(T, T) bool."""
    place = np.arange(len(row))[:, None]
    seen = (row.first <= place) & (place < row.end)
    return seen if window is None else seen & (row.position[:, None] - row.position < window)


def places(row):
    """What FlexAttention's masks are made of."""
    return [torch.from_numpy(a).int() for a in (row.first, row.end, row.position)]


KINDS = ["tree", "sequences"]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "size"), [(0, 128), (1, 128), (4, 64)])
def test_blocks_hold_what_is_seen_and_full_ones_hold_nothing_else(seed, size, kind, window):
    row = random_rows(seed, kind, 700)
    mask = block_mask(*places(row), window, size=size)
    seen = dense(row, window).reshape(len(row) // size, size, -1, size).transpose(0, 2, 1, 3)
    some, every = seen.any((2, 3)), seen.all((2, 3))
    partial, full = np.zeros_like(some), np.zeros_like(some)
    of_full = (full, mask.full_kv_num_blocks, mask.full_kv_indices)
    for marked, count, which in ((partial, mask.kv_num_blocks, mask.kv_indices), of_full):
        for query, number in enumerate(count[0, 0].tolist()):
            marked[query, which[0, 0, query, :number].tolist()] = True
    assert not (full & ~every).any()
    assert not (partial & full).any()
    assert not (some & ~(partial | full)).any(), "a block that is seen is computed"
    if window is None:
        assert (full == every).all()
        assert (partial | full == some).all()
        assert not some.all(), "expected blocks that nobody sees"


def case(row, window):
    """Random queries, keys and values, their options, and what they give under a dense mask."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, len(row), 16), *torch.randn(2, 1, 2, len(row), 16).unbind()
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    shares = scores.masked_fill(~torch.from_numpy(dense(row, window)), float("-inf")).softmax(-1)
    wanted = (shares @ value.repeat_interleave(2, 1)).transpose(1, 2)
    return (None, query, key, value, None), {"scaling": 0.3, "sliding_window": window}, wanted


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 20])
def test_compiled_for_a_processor_it_is_that_of_a_dense_mask(window):
    """Both shapes of blocks, three lengths of rows."""
    for size, tokens in ((64, 300), (128, 300), (64, 600)):
        row = random_rows(7, "tree", tokens)
        arguments, options, wanted = case(row, window)
        mask = block_mask(*places(row), window, size=size)
        with torch.inference_mode():
            found, _ = attend(*arguments, row=RowMasks(every=mask, windowed=mask), **options)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
