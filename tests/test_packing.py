"""Token-budget batches."""

from itertools import pairwise

import numpy as np
import pytest

from raycase.packing import token_budget_batches


@pytest.mark.parametrize("seed", range(20))
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


def test_longest_first_equal_ones_in_their_order():
    assert [b.tolist() for b in token_budget_batches([1, 3, 2, 3, 1], 6)] == [[1, 3], [2, 0, 4]]


def test_a_sequence_above_the_budget_goes_alone():
    assert [b.tolist() for b in token_budget_batches([5, 40, 5], 10)] == [[1], [0, 2]]


def test_nothing_gives_no_batch():
    assert list(token_budget_batches([], 10)) == []


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_below_one_is_refused(budget):
    with pytest.raises(ValueError, match=f"wanted at least 1, found {budget}"):
        list(token_budget_batches([1], budget))
