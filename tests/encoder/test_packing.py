"""Token-budget batches, prefix trees, rows without padding."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycase.encoder import packing
from raycase.encoder.attention import whole_chunks
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


def paths(row):
    """The index in the row of each sequence's tokens."""
    return np.split(row.paths.flat, row.paths.offsets[1:-1])


def sees(row):
    """Token i sees token j, as the row says: (T, T) bool."""
    place = np.arange(len(row))[:, None]
    return (row.first <= place) & (place < row.end)


def rows_of(sequences, budget, causal=True):
    forest = Forest.of(Ragged.of_ids(sequences), causal=causal)
    return [forest.lay(cut) for cut in forest.cuts(budget, whole_chunks)]


tokens = st.lists(st.integers(1, 4), min_size=1, max_size=9)
few = st.lists(tokens, min_size=1, max_size=30)


@pytest.fixture(scope="module", autouse=True)
def laid_out_in_several_parts():
    with patch.object(packing, "AT_ONCE", 3):
        yield


@given(few, st.integers(1, 40), st.booleans())
@settings(deadline=None, max_examples=50)
def test_each_sequence_sees_its_own_tokens_alone(sequences, budget, shared):
    rows = rows_of(sequences, budget, shared)
    assert sorted(np.concatenate([row.sequences for row in rows]).tolist()) == list(range(len(sequences)))
    for row in rows:
        seen = sees(row)
        for sequence, path in zip(row.sequences, paths(row), strict=True):
            assert row.ids[path].tolist() == sequences[sequence]
            assert row.position[path].tolist() == list(range(len(path)))
            for depth, node in enumerate(path):
                assert np.flatnonzero(seen[node]).tolist() == (path[: depth + 1] if shared else path).tolist()


def test_a_long_prefix_stays_in_one_row_above_the_budget():
    sequences = [[*range(100), 200 + c] for c in range(25)]
    [row] = rows_of(sequences, 50)
    assert len(row) == 125
