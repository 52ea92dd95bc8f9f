"""Vectors in the forms that are written, and their cosines. Shapes: N vectors or pairs, P distinct ones, D numbers."""

import numpy as np

MOST_INT8 = 127  # the largest magnitude of every vector of int8: -128 is never written


def l2_normalize(vectors_ND: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1: (N, D) -> (N, D) float32; a vector of zeros stays, its cosine to any other is 0."""
    vectors_ND = np.asarray(vectors_ND, dtype=np.float32)
    with np.errstate(over="ignore"):
        norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    is_odd_N1 = ~((norms_N1 > 1e-12) & (norms_N1 < 1e18))  # where float32 may not hold the squares
    if is_odd_N1.any():
        vectors_ND = np.where(is_odd_N1, peak_normalize(vectors_ND), vectors_ND)
        norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)


def peak_normalize(vectors_ND: np.ndarray) -> np.ndarray:
    """Scale each to a largest magnitude of 1, so that float32 holds squares: (N, D) -> (N, D); zeros stay, else NaN."""
    vectors_ND = np.asarray(vectors_ND, dtype=np.float32)
    peaks_N1 = np.abs(vectors_ND).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return vectors_ND / np.where(peaks_N1 == 0, 1, peaks_N1)


def int8_numbers(vectors_ND: np.ndarray) -> np.ndarray:
    """127 x / max |x| of each vector, rounded to the nearest, of two to the even one: (N, D) finite -> (N, D) int8."""
    return np.rint(MOST_INT8 * peak_normalize(vectors_ND)).astype(np.int8)


def sign_bits(vectors_ND: np.ndarray) -> np.ndarray:
    """A bit for each number, 1 where it is above 0, the first dimension highest: (N, D) -> (N, D / 8) uint8."""
    return np.packbits(vectors_ND > 0, axis=1)


def cosines(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Cosine of each row of a with the same row of b: (N, D), (N, D) or (D,) -> (N,) float64; 0 for zero vectors."""
    a_ND, b_ND = np.asarray(a_ND, dtype=np.float64), np.asarray(b_ND, dtype=np.float64)
    norms_N = np.linalg.norm(a_ND, axis=-1) * np.linalg.norm(b_ND, axis=-1)
    return ((a_ND * b_ND).sum(-1) / np.where(norms_N == 0, 1, norms_N)).clip(-1, 1)


def pair_cosines(vectors_PD: np.ndarray, pair_index_N2: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors, given by index: (P, D), (N, 2) -> (N,) float64."""
    return cosines(vectors_PD[pair_index_N2[:, 0]], vectors_PD[pair_index_N2[:, 1]])
