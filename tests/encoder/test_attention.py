"""What a token sees, by chunks and by FlexAttention's blocks, is what the row says."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from raycase.encoder.attention import BLOCK, CHUNK, attend, blocks, chunks, padded_length
from raycase.encoder.packing import Forest, Ragged, rows_without_padding


def random_rows(seed, kind, length):
    """A row of random sequences with shared prefixes, in whole chunks or blocks."""
    random = np.random.default_rng(seed)
    stems = [random.integers(0, 3, random.integers(1, 90)).tolist() for _ in range(4)]
    sequences = [
        [*stems[random.integers(4)], *random.integers(0, 3, random.integers(0, 60)).tolist()] for _ in range(30)
    ]
    if kind == "tree":
        forest = Forest.of(Ragged.of(sequences))
        row = forest.lay(forest.cuts(length)[0])
    else:
        row = next(rows_without_padding(Ragged.of(sequences), length))
    return row.padded(-(-len(row) // BLOCK) * BLOCK, 0)


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
@pytest.mark.parametrize("seed", range(5))
def test_blocks_hold_what_is_seen_and_full_ones_hold_nothing_else(seed, kind, window):
    row = random_rows(seed, kind, 700)
    found = blocks(*places(row), window)
    assert (found.windowed is None) == (window is None)
    mask = found.mask if window is None else found.windowed
    seen = dense(row, window).reshape(len(row) // BLOCK, BLOCK, -1, BLOCK).transpose(0, 2, 1, 3)
    some, every = seen.any((2, 3)), seen.all((2, 3))
    partial, full = np.zeros_like(some), np.zeros_like(some)
    for marked, count, which in (
        (partial, mask.kv_num_blocks, mask.kv_indices),
        (full, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for query, number in enumerate(count[0, 0].tolist()):
            marked[query, which[0, 0, query, :number].tolist()] = True
    assert not (full & ~every).any()
    assert not (partial & full).any()
    assert not (some & ~(partial | full)).any(), "a block that is seen is computed"
    if window is None:
        assert (full == every).all()
        assert (partial | full == some).all()
        assert not some.all(), "expected blocks that nobody sees"


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_chunks_and_in_blocks_is_that_of_a_dense_mask(kind, window):
    row = random_rows(7, kind, 700)
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, len(row), 16), *torch.randn(2, 1, 2, len(row), 16).unbind()
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    wanted = scores.masked_fill(~torch.from_numpy(dense(row, window)), float("-inf")).softmax(-1)
    wanted = (wanted @ value.repeat_interleave(2, 1)).transpose(1, 2)

    options = {"scaling": 0.3, "sliding_window": window}
    for most in (2**16, 1000, 1):
        sees = chunks(row, torch.device("cpu"), torch.float32, window, part_keys=most)
        found, _ = attend(None, query, key, value, None, row=sees, **options)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert (len(sees.parts) == 1) == (most > 1000)
        assert all(part.keys.numel() <= most or len(part.keys) == 1 for part in sees.parts)
        assert max(part.keys.shape[1] for part in sees.parts) < len(row), "expected chunks that see less than the row"

    held = blocks(*places(row), window)
    mask = held.mask if window is None else held.windowed
    found = flex_attention(query, key, value, block_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_window_matters_to_the_layers_that_have_one_alone():
    row = random_rows(0, "tree", 700)
    sees = chunks(row, torch.device("cpu"), torch.float32, 20)
    query, key, value = torch.randn(3, 1, 2, len(row), 8).unbind()
    with_window, without = (
        attend(None, query, key, value, None, scaling=1.0, sliding_window=w, row=sees)[0] for w in (20, None)
    )
    assert (with_window - without).abs().max() > 0.01
    assert chunks(row, torch.device("cpu"), torch.float32, 1000).parts[0].windowed is None  # all of it lies within


def test_whole_chunks():
    assert [padded_length(n) for n in (1, CHUNK, CHUNK + 1)] == [CHUNK, CHUNK, 2 * CHUNK]
