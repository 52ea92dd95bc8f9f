"""Token-budget batches, prefix trees, rows without padding, and what a token sees in them."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raycase.encoder import packing
from raycase.encoder.attention import attend, block_mask, whole_chunks
from raycase.encoder.packing import Forest, Ragged, token_budget_batches


@pytest.mark.parametrize("seed", range(5))
def test_every_sequence_once_within_the_budget_padding_counted(seed):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 60, size=int(random.integers(1, 200)))
    budget = int(random.integers(60, 500))
    batches = list(token_budget_batches(lengths, budget))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(lengths[b].max() * len(b) <= budget for b in batches)
    for batch, following in pairwise(batches):  # each is full: one row more would not fit
        assert lengths[batch].max() * (len(batch) + 1) > budget
        assert lengths[batch].min() >= lengths[following].max()


@pytest.mark.parametrize(
    ("lengths", "budget", "wanted"),
    [([1, 3, 2, 3, 1], 6, [[1, 3], [2, 0, 4]]), ([5, 40, 5], 10, [[1], [0, 2]]), ([], 10, [])],
)
def test_longest_first_equal_ones_in_their_order_too_long_ones_alone(lengths, budget, wanted):
    assert [b.tolist() for b in token_budget_batches(lengths, budget)] == wanted


def dense(row, window=None):
    """Token i sees token j, as the row says: (T, T) bool."""
    place = np.arange(len(row))[:, None]
    seen = (row.first <= place) & (place < row.end)
    return seen if window is None else seen & (row.position[:, None] - row.position < window)


def rows_of(sequences, budget, causal=True):
    forest = Forest.of(Ragged.of_ids(sequences), causal=causal)
    return [forest.lay(cut) for cut in forest.cuts(budget, whole_chunks)]


@pytest.fixture(scope="module", autouse=True)
def laid_out_in_several_parts():
    with patch.object(packing, "AT_ONCE", 3):
        yield


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=9), min_size=1, max_size=30),
    st.integers(1, 40),
    st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_each_sequence_sees_its_own_tokens_alone(sequences, budget, shared):
    rows = rows_of(sequences, budget, shared)
    assert sorted(np.concatenate([row.sequences for row in rows]).tolist()) == list(range(len(sequences)))
    for row in rows:
        seen = dense(row)
        for sequence, path in zip(row.sequences, np.split(row.paths.flat, row.paths.offsets[1:-1]), strict=True):
            assert row.ids[path].tolist() == sequences[sequence]
            assert row.position[path].tolist() == list(range(len(path)))
            for depth, node in enumerate(path):
                assert np.flatnonzero(seen[node]).tolist() == (path[: depth + 1] if shared else path).tolist()


def test_a_long_prefix_stays_in_one_row_above_the_budget():
    sequences = [[*range(100), 200 + c] for c in range(25)]
    [row] = rows_of(sequences, 50)
    assert len(row) == 125


def random_row(seed, causal, length):
    """A row of random sequences with shared prefixes, in whole chunks or blocks, and what its masks are made of."""
    random = np.random.default_rng(seed)
    stems = [random.integers(0, 3, random.integers(1, 90)).tolist() for _ in range(4)]
    tail = lambda: random.integers(0, 3, random.integers(0, 60)).tolist()  # noqa: E731 one line
    row = rows_of([[*stems[random.integers(4)], *tail()] for _ in range(30)], length, causal)[0]
    row = row.padded(-(-len(row) // 128) * 128, 0)
    return row, [torch.from_numpy(a).int() for a in (row.first, row.end, row.position)]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("seed", "size"), [(0, 128), (1, 128), (4, 64)])
def test_blocks_hold_what_is_seen_and_full_ones_hold_nothing_else(seed, size, causal, window):
    row, places = random_row(seed, causal, 700)
    mask = block_mask(*places, window, size=size)
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


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 20])
def test_compiled_for_a_processor_it_is_that_of_a_dense_mask(window):
    """Both shapes of blocks, three lengths of rows."""
    for size, tokens in ((64, 300), (128, 300), (64, 600)):
        row, places = random_row(7, True, tokens)
        torch.manual_seed(0)
        query, key, value = torch.randn(1, 4, len(row), 16), *torch.randn(2, 1, 2, len(row), 16).unbind()
        scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
        shares = scores.masked_fill(~torch.from_numpy(dense(row, window)), float("-inf")).softmax(-1)
        wanted = (shares @ value.repeat_interleave(2, 1)).transpose(1, 2)
        masks = {each: block_mask(*places, each, size=size) for each in {None, window}}
        with torch.inference_mode():
            found, _ = attend(None, query, key, value, None, scaling=0.3, sliding_window=window, row=masks)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
