"""Block-wise nearest neighbours against brute force, ties, groups."""

import numpy as np
import pytest
import torch

from raycase.index.topk import nearest_rows, top_k
from raycase.io.vectors import l2_normalize


def brute(queries, vectors, k):
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def test_of_equal_scores_the_earlier_row_wins():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 5)
    assert top_k(vectors[:1], [vectors], 4, block_rows=3)[1].tolist() == [[0, 2, 4, 6]]
    assert top_k(vectors[:1], [vectors], 7, block_rows=3)[1].tolist() == [[0, 2, 4, 6, 8, 1, 3]]


def test_vectors_of_the_same_group_are_left_out():
    random = np.random.default_rng(0)
    queries, vectors = (l2_normalize(random.standard_normal((n, 8))) for n in (7, 100))
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


@pytest.mark.parametrize("same", [11, 900])
def test_nearest_rows_and_scores_do_not_depend_on_blocks_order_or_other_queries(same):
    random = np.random.default_rng(0)
    queries, vectors = (l2_normalize(random.standard_normal((n, 384))).astype(np.float32) for n in (9, 3000))
    vectors[100 : 99 + same] = vectors[7]
    queries[0] = vectors[7]
    numbers = np.arange(3000)

    def found(some=slice(0, 9), cuts=(), order=numbers):
        blocks = zip(np.split(order, cuts), map(torch.from_numpy, np.split(vectors[order], cuts)), strict=True)
        return nearest_rows(queries[some], blocks, 20)

    scores, rows = found()
    wanted_scores, wanted = brute(queries.astype(np.float64), vectors, 20)
    assert np.array_equal(rows[1:], wanted[1:]) and np.allclose(scores, wanted_scores, atol=1e-6)
    assert rows[0, :11].tolist() == [7, *range(100, 110)] and scores[0, 0] == 1
    for given in ({"cuts": [1, 50, 999]}, {"cuts": range(0, 3000, 7)}, {"some": slice(3, 5)}, {"cuts": [1000]}):
        some = given.get("some", slice(0, 9))
        again = found(**given)
        assert np.array_equal(again[1], rows[some]) and np.allclose(again[0], scores[some], atol=1.1e-6)
    shuffled = found(order=random.permutation(3000))
    assert np.array_equal(shuffled[1][1:], rows[1:]) and np.allclose(shuffled[0], scores, atol=1.1e-6)
    few = nearest_rows(queries, [(numbers[:3], torch.from_numpy(vectors[:3]))], 5)
    assert (few[1][:, 3:] == -1).all() and (nearest_rows(queries, [], 2)[1] == -1).all()
