"""Figures of one system on rated pairs, and the difference of two."""

import numpy as np

from raycase.data.rated import RatedPairs
from raycase.evaluation.scores import correlation_differences, correlation_estimates


def make_pairs(ratings):
    """Pairs of sentences that are all different, with these ratings."""
    numbers = [str(i) for i in range(len(ratings))]
    return RatedPairs(uri="", sentences1=numbers, sentences2=numbers, conditions=numbers, ratings=ratings)


def test_what_does_not_vary_has_no_correlation():
    ratings = np.array([-1.0, 3, 3, 3])
    found = correlation_estimates(np.array([0.1, 0.2, 0.3, 0.4]), make_pairs(ratings), resamples=100, seed=0)
    assert found["spearman"] is not None
    assert found["spearman_rated"] is None


def test_the_difference_is_above_zero_for_the_better_one():
    random = np.random.default_rng(0)
    ratings = random.integers(1, 6, 200).astype(float)
    good, bad = ratings + random.normal(size=200), random.normal(size=200)
    rated = make_pairs(ratings)
    found = correlation_differences(good, bad, rated, resamples=200, seed=0)["spearman"]
    assert 0 < found["low"] < found["difference"] < found["high"]
    assert found["p"] < 0.05
    assert correlation_differences(bad, good, rated, resamples=200, seed=0)["spearman"]["high"] < 0
