"""Positions of rows: neighbours stay together, and points move little from one map to the next."""

from importlib.util import find_spec

import numpy as np
import pytest

from raycase.explore.condition_map import place
from raycase.index.topk import nearest_others
from raycase.io.vectors import l2_normalize

# not imported here: it takes seconds, in each of pytest's workers
NO_UMAP = pytest.mark.skipif(find_spec("umap") is None, reason="pip install 'raycase[explore]'")
pytestmark = [pytest.mark.cluster, NO_UMAP]


def groups(seed, noise=0.3, count=120, dim=16):
    """Unit vectors around three directions, and the direction of each."""
    draw = np.random.default_rng(seed)
    group = np.arange(count) % 3
    vectors = np.eye(3, dim)[group] + noise * draw.normal(size=(count, dim)) / np.sqrt(dim)
    return l2_normalize(vectors.astype(np.float32)), group


def placed(vectors, start=None):
    cosines, rows = nearest_others(vectors, 14)
    return place(vectors, cosines, rows, start)


def test_alike_rows_stand_together_and_again_at_the_same_places():
    vectors, group = groups(0)
    positions = placed(vectors)
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (group[apart.argmin(axis=1)] == group).mean() > 0.95
    assert np.abs(positions).max() <= 1 and positions.shape == (120, 2)
    assert (placed(vectors) == positions).all()


def test_points_start_from_the_map_before_and_lie_as_it_does():
    positions, others = placed(groups(0)[0]), groups(1)[0]
    for mirror in ([1, 1], [-1, 1]):
        before = positions * mirror
        moved = placed(others, before)
        assert np.linalg.norm(moved - before) < 0.8 * np.linalg.norm(moved - before * [-1, 1])


@pytest.mark.parametrize("count", [3, 4, 20])
def test_few_rows_and_equal_rows_have_places(count):
    for vectors in (groups(0, count=count)[0], np.tile(np.eye(1, 8, dtype=np.float32), (count, 1))):
        assert np.isfinite(placed(vectors)).all()
