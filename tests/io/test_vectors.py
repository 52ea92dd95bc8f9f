"""Vectors of length 1, of int8 and of bits, in cases worked by hand."""

import numpy as np

from raycase.io.vectors import int8_numbers, l2_normalize, peak_normalize, sign_bits


def test_int8_numbers_are_127ths_of_the_largest_to_the_nearest():
    vectors = np.array(
        [[1, -2, 0.5, 0], [254, 1, 3, -252.9], [-1e-40, 1e-41, 0, 0], [3e38, -3e38, 1e38, 0]], np.float32
    )
    wanted = [[64, -127, 32, 0], [127, 0, 2, -126], [-127, 13, 0, 0], [127, -127, 42, 0]]  # halves to the even number
    assert int8_numbers(vectors).tolist() == wanted and int8_numbers(vectors).dtype == np.int8


def test_sign_bits_begin_at_the_highest():
    vectors = np.array([[1, -1, 0, 0.1, -5, -0.0, -1e-40, 1e-40], [-1] * 8, [2] * 8], np.float32)
    assert sign_bits(vectors).tolist() == [[0b10010001], [0], [255]]
    assert sign_bits(np.array([[1.0] + [-1.0] * 15])).tolist() == [[128, 0]]


def test_vectors_of_any_size_have_length_one():
    vectors = np.array([[3, -4], [3e38, -3e38], [3e-40, 4e-40], [0, 0]], np.float32)
    unit = l2_normalize(peak_normalize(vectors))
    half = 0.5**0.5
    assert np.allclose(unit, [[0.6, -0.8], [half, -half], [0.6, 0.8], [0, 0]], atol=1e-5)
    assert not np.isfinite(peak_normalize(np.array([[np.inf, 1], [np.nan, 1]], np.float32))).all(axis=1).any()
