"""Block-wise nearest neighbours against brute force, ties, groups, merging."""

import numpy as np
import pytest
import torch

from raycase.index.topk import exact_top_k, merge_top_k, top_k
from raycase.io.vectors import l2_normalize


def brute(queries, vectors, k):
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


@pytest.fixture
def case():
    random = np.random.default_rng(0)
    return l2_normalize(random.standard_normal((7, 8))), l2_normalize(random.standard_normal((100, 8)))


@pytest.mark.parametrize("cuts", [[], [1], [3, 50], list(range(1, 100))])
@pytest.mark.parametrize("block", [4, 100])
def test_any_cut_gives_what_brute_force_gives(case, cuts, block):
    queries, vectors = case
    blocks = [torch.from_numpy(v) for v in np.split(vectors, cuts)]
    scores, rows = top_k(torch.from_numpy(queries), blocks, 5, block_rows=block)
    wanted_scores, wanted = brute(queries, vectors, 5)
    assert np.array_equal(rows, wanted)
    assert np.allclose(scores, wanted_scores, atol=1e-6)


def test_of_equal_scores_the_earlier_row_wins():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 5)
    assert top_k(vectors[:1], [vectors], 4, block_rows=3)[1].tolist() == [[0, 2, 4, 6]]
    assert top_k(vectors[:1], [vectors], 7, block_rows=3)[1].tolist() == [[0, 2, 4, 6, 8, 1, 3]]


def test_vectors_of_the_same_group_are_left_out(case):
    queries, vectors = case
    groups, query_groups = np.arange(100) % 10, np.arange(7)
    scores = queries @ vectors.T
    scores[query_groups[:, None] == groups[None, :]] = -np.inf
    blocks = [torch.from_numpy(vectors[:30]), torch.from_numpy(vectors[30:])]
    of = {"query_groups": torch.from_numpy(query_groups), "groups": torch.from_numpy(groups)}
    _, rows = top_k(torch.from_numpy(queries), blocks, 5, **of)
    assert np.array_equal(rows, np.argsort(-scores, axis=1, kind="stable")[:, :5])
    alone = torch.zeros(100, dtype=torch.int64)
    every = top_k(torch.from_numpy(queries), [torch.from_numpy(vectors)], 5, query_groups=alone[:7], groups=alone)
    assert (every[1] == -1).all()


def test_parts_are_merged_into_what_all_give(case):
    queries, vectors = map(torch.from_numpy, case)
    parts = []
    for start, end in ((0, 40), (40, 43), (43, 100)):
        scores, rows = top_k(queries, [vectors[start:end]], 5)
        parts.append((scores, np.where(rows < 0, -1, rows + start)))
    scores, rows = parts[1]  # of three vectors
    assert (rows[:, 3:] == -1).all() and np.isneginf(scores[:, 3:]).all() and (top_k(queries, [], 2)[1] == -1).all()
    whole = top_k(queries, [vectors], 5)
    assert np.array_equal(merge_top_k(parts)[1], whole[1])
    assert np.allclose(merge_top_k(parts)[0], whole[0], atol=1e-6)


def exactly(queries, vectors, k, cuts=(), numbers=None, error=0.0):
    """By blocks whose float32 vectors are off by an error, and the rows' numbers."""
    numbers = np.arange(len(vectors)) if numbers is None else numbers
    place = np.argsort(numbers)
    first = l2_normalize(vectors + error * np.random.default_rng(0).standard_normal(vectors.shape)).astype(np.float32)

    def blocks():
        return zip(np.split(numbers, cuts), map(torch.from_numpy, np.split(first, cuts)), strict=True)

    def at(some):
        return torch.from_numpy(vectors[place[np.searchsorted(numbers[place], some)]]).double()

    return exact_top_k(queries, blocks, k, at)


@pytest.mark.parametrize("same", [11, 900])
def test_exact_scores_are_the_same_bits_in_any_blocks_and_order_and_for_any_queries_at_once(same):
    random = np.random.default_rng(0)
    queries, vectors = (l2_normalize(random.standard_normal((n, 384))) for n in (9, 3000))
    vectors[100 : 99 + same] = vectors[7]
    queries[0] = vectors[7]
    plain = [top_k(torch.from_numpy(queries[1:end]), [torch.from_numpy(vectors)], 20)[0][0] for end in (2, 9)]
    assert not np.array_equal(*plain), "expected products in float32 that depend on how many are made at once"
    wanted_scores, wanted = exactly(queries, vectors, 20)
    assert wanted[0, :11].tolist() == [7, *range(100, 110)]
    for cuts in ([1, 50, 999], range(0, 3000, 7)):
        for some in (slice(0, 9), slice(0, 1), slice(3, 5)):
            scores, numbers = exactly(queries[some], vectors, 20, cuts)
            assert np.array_equal(scores, wanted_scores[some]) and np.array_equal(numbers, wanted[some])
    order = random.permutation(3000)
    scores, numbers = exactly(queries, vectors[order], 20, [1000], numbers=order)
    assert np.array_equal(scores, wanted_scores) and np.array_equal(numbers, wanted)


@pytest.mark.parametrize("error", [1e-3, 0.1])
def test_first_scores_that_are_far_off_change_no_answer(case, error):
    queries, vectors = case
    scores, numbers = exactly(queries, vectors, 5, error=error)
    assert np.array_equal(numbers, brute(queries, vectors, 5)[1])
    assert np.allclose(scores, brute(queries, vectors, 5)[0], atol=1e-6)
    assert (exactly(queries, vectors[:3], 5)[1][:, 3:] == -1).all()
    assert (exactly(queries, vectors[:0], 2)[1] == -1).all()
