"""Vectors of length 1, whatever their length was, and cosines."""

import numpy as np
import pytest

from raycase.io.vectors import cosines, l2_normalize


@pytest.mark.parametrize("scale", [1e-45, 1e-23, 1, 1e19, 8e37])
def test_every_finite_length_becomes_1(scale):
    scaled = (np.array([[3, 4], [1, 1], [0, 0], [0, -2]]) * scale).astype(np.float32)
    exact = scaled.astype(np.float64) / np.maximum(np.linalg.norm(scaled.astype(np.float64), axis=1), 1e-300)[:, None]
    assert np.abs(l2_normalize(scaled) - exact).max() < 2e-7


def test_a_cosine_never_passes_1():
    vectors = np.random.default_rng(0).normal(size=(1000, 7))
    assert cosines(vectors, vectors * 3).max() <= 1 and cosines(vectors, -vectors).min() >= -1
