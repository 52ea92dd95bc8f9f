"""Figures of one system on rated pairs, and the difference of two."""

import numpy as np

from raycase.data.rated import RatedPairs
from raycase.evaluation.scores import by_rating, compare, correlations, worst_pairs


def test_the_worst_pairs_are_those_ranked_most_wrongly(rated_pairs):
    scores = rated_pairs.ratings / 5 + np.arange(len(rated_pairs)) * 1e-6
    low, high = np.flatnonzero(rated_pairs.ratings == 1)[2], np.flatnonzero(rated_pairs.ratings == 5)[1]
    scores[low], scores[high] = 2.0, -2.0
    scores[rated_pairs.ratings == -1] = 3.0  # no rating, so never wrong
    worst = worst_pairs(scores, rated_pairs)
    assert {pair["row"] for pair in worst[:2]} == {low, high}
    assert len(worst) == 10
    assert all(pair["rating"] != -1 for pair in worst)
    first = next(pair for pair in worst if pair["row"] == low)
    assert (first["sentence1"], first["condition"]) == (rated_pairs.sentences1[low], rated_pairs.conditions[low])
    assert (first["rating"], first["cosine"], first["cosine_rank"]) == (1, 2.0, 100)


def test_fine_grained_ratings_share_the_nearest_whole_one():
    ratings = np.linspace(1, 5, 41)
    rows = by_rating(ratings / 5, ratings)
    assert [row["rating"] for row in rows] == [1, 2, 3, 4, 5]
    assert sum(row["pairs"] for row in rows) == 41


def make_pairs(ratings):
    """Pairs of sentences that are all different, with these ratings."""
    numbers = [str(i) for i in range(len(ratings))]
    return RatedPairs(uri="", sentences1=numbers, sentences2=numbers, conditions=numbers, ratings=ratings)


def test_what_does_not_vary_has_no_correlation():
    ratings = np.array([-1.0, 3, 3, 3])
    found = correlations(np.array([0.1, 0.2, 0.3, 0.4]), make_pairs(ratings), resamples=100, seed=0)
    assert found["spearman"] is not None
    assert found["spearman_rated"] is None


def test_the_difference_is_above_zero_for_the_better_one():
    random = np.random.default_rng(0)
    ratings = random.integers(1, 6, 200).astype(float)
    good, bad = ratings + random.normal(size=200), random.normal(size=200)
    rated = make_pairs(ratings)
    found = compare(good, bad, rated, resamples=200, seed=0)["spearman"]
    assert 0 < found["low"] < found["difference"] < found["high"]
    assert found["p"] < 0.05
    assert compare(bad, good, rated, resamples=200, seed=0)["spearman"]["high"] < 0
