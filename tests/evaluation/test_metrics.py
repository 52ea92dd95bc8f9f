"""Correlations against SciPy, intervals against theory, and isotropy (CASE, eq. 5 and appendix C) by hand."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from raycase.evaluation.metrics import (
    auc,
    cosines_to_mean,
    estimate,
    estimate_difference,
    isotropy,
    mean_of,
    pearson,
    spearman,
)


def scored(rows, noise, seed=0):
    """Scores that follow ratings of 1 to 5 with some noise."""
    random = np.random.default_rng(seed)
    ratings = random.integers(1, 6, rows).astype(np.float32)
    return ratings + random.normal(0, noise, rows), ratings


@pytest.mark.parametrize("decimals", [1, 9])
def test_correlations_are_scipys(decimals):
    scores, ratings = scored(60, 1.5)
    scores = scores.round(decimals)
    assert (len(set(scores)) < 60) == (decimals < 9)  # ties, or none
    assert spearman(scores, ratings) == pytest.approx(spearmanr(scores, ratings).statistic, abs=1e-12)
    assert pearson(scores, ratings) == pytest.approx(pearsonr(scores, ratings).statistic, abs=1e-7)


@pytest.mark.parametrize("correlation", [spearman, pearson])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7])
def test_a_constant_has_no_correlation(correlation, value):
    constant, varied = np.full(3, value), np.array([1.0, 2.0, 5.0])
    assert math.isnan(correlation(constant, varied))
    assert math.isnan(correlation(varied, constant))
    assert math.isnan(correlation(varied[:0], varied[:0]))


def test_auc_by_hand():
    scores, labels = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([0, 0, 1, 1, 1])
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(scores, np.ones(5)))


def test_the_interval_is_that_of_theory():
    scores, ratings = scored(400, 1.0)
    found = estimate(mean_of, scores, ratings, resamples=4000)
    mean, error = 100 * scores.mean(), 100 * scores.std() / np.sqrt(400)
    bounds = {"low": mean - 1.96 * error, "high": mean + 1.96 * error}
    assert found == pytest.approx(bounds | {"value": mean}, abs=0.15 * error)


def test_a_clearly_better_system_is_found_better():
    scores, ratings = scored(300, 0.5)
    others, _ = scored(300, 3.0)
    found = estimate_difference(spearman, scores, others, ratings, resamples=200)
    assert found["difference"] == 100 * (spearman(scores, ratings) - spearman(others, ratings))
    assert 0 < found["low"] < found["difference"] < found["high"]
    assert found["p"] < 0.02
    swapped = estimate_difference(spearman, others, scores, ratings, resamples=200)
    assert swapped == {
        "difference": -found["difference"],
        "low": pytest.approx(-found["high"]),
        "high": pytest.approx(-found["low"]),
        "p": found["p"],
    }


def isotropy_by_loops(vectors, directions, seed):
    sums = []
    for direction in np.random.default_rng(seed).standard_normal((directions, len(vectors[0]))):
        u = direction / math.sqrt(sum(x * x for x in direction))
        total = 0.0
        for vector in vectors:
            length = math.sqrt(sum(float(x) ** 2 for x in vector))
            total += math.exp(sum(float(x) / length * y for x, y in zip(vector, u, strict=True)))
        sums.append(total)
    return min(sums) / max(sums)


@pytest.mark.parametrize("seed", [0, 3])
def test_isotropy_is_eq_5(seed):
    vectors = [[3.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    found = isotropy(np.array(vectors), directions=40, seed=seed)
    assert found == pytest.approx(isotropy_by_loops(vectors, 40, seed), rel=1e-9)
    assert found != pytest.approx(isotropy(np.array(vectors), directions=40, seed=seed + 1), rel=1e-9)


def test_cosines_to_the_mean_by_hand():
    right_angle = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(cosines_to_mean(right_angle), [math.sqrt(0.5)] * 2)
    # The mean is not of unit vectors: (2, 0) and (0, 1) have (1, 0.5).
    np.testing.assert_allclose(
        cosines_to_mean(np.array([[2, 0], [0, 1]], dtype=np.float32)), [2 / math.sqrt(5), 1 / math.sqrt(5)]
    )
    np.testing.assert_allclose(cosines_to_mean(np.array([[1.0, 0.0], [-1.0, 0.0]])), [0, 0])
