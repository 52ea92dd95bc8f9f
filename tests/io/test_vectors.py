"""Vectors of length 1, whatever their length was, and cosines."""

import numpy as np
import pytest

from raycase.io.vectors import cosines, l2_normalize


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-23, 1e-13, 1e-11, 1, 1e17, 1e19, 8e37])
def test_every_finite_length_becomes_1(scale):
    vectors = np.array([[3, 4], [1, 1], [0, 0], [0, -2]], np.float32)
    scaled = (np.array([[3, 4], [1, 1], [0, 0], [0, -2]]) * scale).astype(np.float32)
    exact = scaled.astype(np.float64) / np.maximum(np.linalg.norm(scaled.astype(np.float64), axis=1), 1e-300)[:, None]
    assert np.abs(l2_normalize(scaled) - exact).max() < 2e-7
    assert l2_normalize(vectors).tobytes() == (vectors / np.array([[5], [2**0.5], [1], [2]], np.float32)).tobytes()


def test_what_is_not_finite_stays_so_and_leaves_the_others_alone():
    vectors = np.array([[np.nan, 1], [np.inf, 1], [0.1, 0.7]], np.float32)
    found = l2_normalize(vectors)
    assert np.isnan(found[:2]).any(axis=1).all() and found[2].tobytes() == l2_normalize(vectors[2:]).tobytes()


def test_a_cosine_never_passes_1():
    vectors = np.random.default_rng(0).normal(size=(1000, 7))
    assert cosines(vectors, vectors * 3).max() <= 1 and cosines(vectors, -vectors).min() >= -1
