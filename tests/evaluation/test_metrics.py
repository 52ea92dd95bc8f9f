"""Correlations against SciPy, and intervals against theory."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from raycase.evaluation.metrics import auc, estimate, estimate_difference, mean_of, pearson, spearman


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
