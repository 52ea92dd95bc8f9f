"""Token-budget batches, prefix trees, rows without padding."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycase.encoder import packing
from raycase.encoder.packing import (
    Forest,
    Ragged,
    padded_lengths,
    row_lengths,
    rows_without_padding,
    token_budget_batches,
)


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


def rows_of(sequences, budget):
    forest = Forest.of(Ragged.of_ids(sequences))
    return [forest.lay(cut) for cut in forest.cuts(budget)]


def test_a_tree_worked_by_hand():
    """abc, abd, ae and b: a token for each node, depth-first."""
    [row] = rows_of([[1, 2, 3], [2], [1, 5], [1, 2, 4]], 100)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 2]
    assert row.position.tolist() == [0, 1, 2, 2, 1, 0]
    assert row.end.tolist() == [5, 4, 3, 4, 5, 6]
    assert row.sequences.tolist() == [0, 3, 2, 1]
    assert [p.tolist() for p in paths(row)] == [[0, 1, 2], [0, 1, 3], [0, 4], [5]]


tokens = st.lists(st.integers(1, 4), min_size=1, max_size=9)
few = st.lists(tokens, min_size=1, max_size=30)


@pytest.fixture(scope="module", autouse=True)
def laid_out_in_several_parts():
    with patch.object(packing, "AT_ONCE", 3):
        yield


@given(few, st.integers(1, 40))
@settings(deadline=None)
def test_each_sequence_sees_its_own_tokens_alone(sequences, budget):
    rows = rows_of(sequences, budget)
    assert sorted(np.concatenate([row.sequences for row in rows]).tolist()) == list(range(len(sequences)))
    for row in rows:
        seen = sees(row)
        for sequence, path in zip(row.sequences, paths(row), strict=True):
            assert row.ids[path].tolist() == sequences[sequence]
            assert row.position[path].tolist() == list(range(len(path)))
            for depth, node in enumerate(path):
                assert np.flatnonzero(seen[node]).tolist() == path[: depth + 1].tolist()


@given(few, st.integers(1, 40))
@settings(deadline=None)
def test_nothing_is_in_a_row_twice_and_rows_keep_to_the_budget(sequences, budget):
    for row in rows_of(sequences, budget):
        prefixes = {tuple(sequences[s][: n + 1]) for s in row.sequences for n in range(len(sequences[s]))}
        assert len(row) == len(prefixes)
        first = len(sequences[row.sequences[0]])
        assert len(row) <= max(budget, first + budget // 2)


def test_a_long_prefix_stays_in_one_row_above_the_budget():
    sequences = [[*range(100), 200 + c] for c in range(25)]
    [row] = rows_of(sequences, 50)
    assert len(row) == 125


@given(few, st.integers(1, 40))
@settings(deadline=None)
def test_without_sharing_each_sequence_stands_alone(sequences, budget):
    rows = list(rows_without_padding(Ragged.of_ids(sequences), budget))
    assert [s for row in rows for s in row.sequences.tolist()] == list(range(len(sequences)))
    for row in rows:
        seen = sees(row)
        assert len(row) <= budget or len(row.sequences) == 1
        for sequence, path in zip(row.sequences, paths(row), strict=True):
            assert row.ids[path].tolist() == sequences[sequence]
            assert row.position[path].tolist() == list(range(len(path)))
            for node in path:
                assert np.flatnonzero(seen[node]).tolist() == path.tolist()


def test_padding_sees_itself_alone():
    [row] = rows_of([[1, 2], [1, 3]], 10)
    padded = row.padded(6, 9)
    assert padded.ids.tolist() == [1, 2, 3, 9, 9, 9]
    assert (sees(padded)[3:] == np.eye(6, dtype=bool)[3:]).all()
    assert (sees(padded)[:3, :3] == sees(row)).all()


@given(few, st.data())
@settings(deadline=None)
def test_taking_sequences(sequences, data):
    ragged = Ragged.of_ids(sequences)
    index = data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=20))
    start = [data.draw(st.integers(0, len(sequences[i]))) for i in index]
    found = ragged.take(np.array(index, dtype=np.int64), np.array(start, dtype=np.int64))
    parts = [found.flat[a:b].tolist() for a, b in pairwise(found.offsets)]
    assert parts == [sequences[i][s:] for i, s in zip(index, start, strict=True)]


@pytest.mark.parametrize("budget", [1, 100, 128, 1000, 1024, 4096, 16384, 32768])
def test_rows_have_at_most_six_lengths(budget):
    lengths = row_lengths(budget)
    assert 1 <= len(lengths) <= 6
    assert lengths == sorted(lengths, reverse=True)
    assert all(length % 128 == 0 for length in lengths)
    assert budget <= lengths[0] < budget + 128
    tokens = np.arange(1, 3 * lengths[0])
    found = padded_lengths(tokens, lengths)
    assert (found >= tokens).all()
    assert set(found[tokens <= lengths[0]].tolist()) == set(lengths)
    assert set(found[tokens > lengths[0]].tolist()) == {2 * lengths[0], 4 * lengths[0]}
    for length, below in zip(lengths, [*lengths[1:], 0], strict=True):
        assert (found[(tokens > below) & (tokens <= length)] == length).all()


@pytest.mark.parametrize(("words", "conditions"), [(15, 8), (1000, 1)])
def test_rows_are_full(words, conditions):
    """Captions and documents, with what is repeated counted."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, 50, random.integers(words // 2, 2 * words)).tolist() for _ in range(120_000 // words)]
    ends = [[60 + c] * 5 for c in range(conditions)]
    forest = Forest.of(Ragged.of_ids([[1, 2, 3, *text, *end] for text in texts for end in ends]))
    lengths = row_lengths(16384)
    cuts = forest.cuts_filling(lengths)
    assert [cut.start for cut in cuts] + [len(forest.order)] == [0, *(cut.stop for cut in cuts)]
    computed = padded_lengths(np.array([cut.tokens for cut in cuts]), lengths).sum()
    assert computed < 1.06 * (forest.sequences.counts - forest.shared).sum()
    for cut in cuts:
        row = forest.lay(cut)
        assert (len(row), row.paths.counts.max()) == (cut.tokens, cut.deepest)


def test_sequences_above_every_length_are_cut_too():
    sequences = Ragged.of_ids([[1] * 300, [1] * 290 + [2], [3] * 10, [4] * 700])
    forest = Forest.of(sequences)
    cuts = forest.cuts_filling(row_lengths(128))
    assert [(cut.start, cut.stop) for cut in cuts][-1][1] == 4
    assert sum(len(forest.lay(cut).paths) for cut in cuts) == 4
