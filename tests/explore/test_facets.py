"""Clusters of vectors: they are found where they were planted, of chosen number, whatever the blocks and the sample."""

import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from raycase.errors import RequestError
from raycase.explore import facets
from raycase.explore.facets import (
    CarriedWord,
    Clusters,
    find_clusters,
    import_sklearn,
    sample,
    score_words,
    themes_of,
)
from raycase.io.vectors import l2_normalize
from raycase.tokens.words import Word

PLANTED = [500, 300, 120, 60, 20]  # rows of each cluster


def planted(noise=0.02, dim=32):
    """Shuffled unit vectors around five directions that share a part, as the vectors of an encoder do; the cluster of
    each."""
    chance = np.random.default_rng(1)
    centres_KD = l2_normalize(chance.normal(size=(len(PLANTED), dim))) + 0.5 / math.sqrt(dim)
    cluster_N = chance.permutation(np.repeat(np.arange(len(PLANTED)), PLANTED))
    return l2_normalize(centres_KD[cluster_N] + noise * chance.normal(size=(len(cluster_N), dim))), cluster_N


def in_blocks(vectors_ND, rows=10**6):
    """A function that gives the vectors in blocks of so many rows; the offset of row i is 3 i."""
    starts = range(0, len(vectors_ND), rows)
    offsets_N = 3 * np.arange(len(vectors_ND))
    return lambda: ((offsets_N[i : i + rows], torch.from_numpy(vectors_ND[i : i + rows])) for i in starts)


@pytest.mark.parametrize("clusters", [None, 5])
def test_planted_clusters_are_found_the_largest_first(clusters):
    vectors_ND, planted_N = planted()
    found = find_clusters(in_blocks(vectors_ND), clusters)
    assert found.sizes.tolist() == PLANTED
    assert np.array_equal(found.cluster, planted_N)
    assert np.array_equal(found.offsets, 3 * np.arange(1000))
    assert np.allclose(found.cosine, (vectors_ND * found.centres[found.cluster]).sum(axis=1), atol=1e-5)
    for cluster, rows in enumerate(found.members()):
        assert sorted(rows) == np.flatnonzero(planted_N == cluster).tolist()
        assert (np.diff(found.cosine[rows]) <= 0).all()


def test_blocks_do_not_matter(monkeypatch):
    vectors_ND, cluster_N = planted()
    count, chosen_SD = sample(in_blocks(vectors_ND)(), 50)
    assert (count, len(np.unique(chosen_SD, axis=0))) == (1000, 50)
    for rows in (7, 40, 999):
        assert np.array_equal(sample(in_blocks(vectors_ND, rows)(), 50)[1], chosen_SD)
    for name, value in {"FITTED": 200, "PER_CLUSTER": 1, "TRIED": 200}.items():
        monkeypatch.setattr(facets, name, value)
    few = find_clusters(in_blocks(vectors_ND, 64))
    monkeypatch.undo()
    assert np.array_equal(few.cluster, cluster_N), "expected every row assigned though a sample is fitted"
    whole, cut = find_clusters(in_blocks(vectors_ND), 7), find_clusters(in_blocks(vectors_ND, 9), 7)
    assert np.array_equal(whole.cluster, cut.cluster)


def test_equal_vectors_make_no_empty_clusters():
    few_ND = np.eye(4, dtype=np.float32)[np.repeat([2, 0, 1], [5, 3, 9])]
    found = find_clusters(in_blocks(few_ND), 6)
    assert found.sizes.tolist() == [9, 5, 3] and np.allclose(found.cosine, 1)
    same = find_clusters(in_blocks(few_ND[:5]))
    assert same.sizes.tolist() == [5]
    assert find_clusters(in_blocks(few_ND), 17).sizes.sum() == 17


def test_too_few_rows_are_refused_and_a_package_to_install_is_named(monkeypatch):
    vectors_ND, _ = planted()
    assert len(find_clusters(in_blocks(vectors_ND[:3])).sizes) == 2
    with pytest.raises(RequestError, match="--clusters: expected at most the 4 rows there are to group, got 5"):
        find_clusters(in_blocks(vectors_ND[:4]), 5)
    with pytest.raises(RequestError, match="--clusters: expected a number for 2 rows"):
        find_clusters(in_blocks(vectors_ND[:2]))
    for clusters in (None, 5):
        with pytest.raises(RequestError, match="--stated: expected rows that state something"):
            find_clusters(in_blocks(vectors_ND[:0]), clusters)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(RequestError, match=r"pip install 'raycase\[facets\]'"):
        import_sklearn()


def weighed(text, *weights):
    """A text whose words, between spaces, have these weights."""
    spans = [(text.index(word), text.index(word) + len(word)) for word in text.split()]
    return text, [Word(*span, weight) for span, weight in zip(spans, weights, strict=True)]


def test_words_are_scored_by_the_weight_that_other_clusters_do_not_give_them():
    sport = [weighed("Men play (soccer).", 0.1, 0.2, 0.7), weighed("Soccer, men", 0.5, 0.5)]
    food = [weighed("men eat", 0.4, 0.6), weighed("men eat -", 0.4, 0.5, 0.1)]
    first, second = score_words([sport, food], 5)
    tf = {"soccer": 0.6, "men": 0.3, "play": 0.1}
    assert [word.word for word in first] == ["soccer", "men", "play"]
    assert first[0].score == pytest.approx(tf["soccer"] * math.log(1 + 1 / tf["soccer"]))
    assert first[1].score == pytest.approx(tf["men"] * math.log(1 + 1 / (tf["men"] + 0.8 / 1.9)))
    assert [word.word for word in second] == ["eat", "men"]
    assert [len(words) for words in score_words([sport, food], 1)] == [1, 1]


def test_a_word_of_one_text_comes_after_those_of_several():
    texts = [weighed("rare red", 0.8, 0.2), weighed("red", 1.0), weighed("dog", 1.0)]
    assert [word.word for word in score_words([texts, []], 3)[0]] == ["red", "dog", "rare"]
    assert score_words([[("", [])]], 3) == [[]]
    assert isinstance(score_words([texts], 1)[0][0], CarriedWord)


def test_words_near_the_centre_come_first_and_those_away_from_it_not_at_all():
    texts = [weighed("Wept envy coat told", 0.3, 0.2, 0.4, 0.1)]
    cosine = {"wept": 0.8, "envy": 1.0, "coat": 0.1, "told": -0.5}
    asked = []

    def cosines(words):
        asked.append(words)
        return np.array([[cosine[word] for word in words]])

    [found] = score_words([texts], 5, cosines)
    assert asked == [["coat", "envy", "told", "wept"]] and [word.word for word in found] == ["envy", "wept", "coat"]
    assert found[1].score == pytest.approx(0.3 * math.log(1 + 1 / 0.3) * 0.8**2)
    assert [word.word for word in score_words([texts], 5)[0]] == ["coat", "wept", "envy", "told"]


def test_a_word_counts_together_with_its_plural_and_is_shown_as_most_texts_have_it():
    texts = [weighed("weeks", 0.5), weighed("week soon", 0.1, 0.2), weighed("Weeks", 0.2), weighed("months", 1.0)]
    first = score_words([texts, [weighed("soon", 1.0)]], 5)[0]
    assert [word.word for word in first] == ["weeks", "months", "soon"]
    assert first[0].score == pytest.approx(0.8 / 2 * math.log(1 + 1 / 0.4))


def test_two_words_that_stand_side_by_side_in_most_texts_are_one():
    three = [
        weighed("my credit card", 0, 0.5, 0.5),
        weighed("Credit cards!", 0.5, 0.5),
        weighed("a credit card", 0, 0.4, 0.6),
    ]
    assert [word.word for word in score_words([[*three, weighed("card", 1.0)]], 5)[0]] == ["credit card"]
    apart = [
        weighed("credit , card", 0.5, 0, 0.5),
        weighed("credit the card", 0.4, 0.2, 0.4),
        weighed("dog dog", 0.5, 0.5),
    ]
    for texts in (three[:2], [*three, *[weighed("card", 1.0)] * 4], apart * 3):  # too few, too rare, not side by side
        assert not [word.word for word in score_words([texts], 5)[0] if " " in word.word]


def test_many_clusters_have_themes_the_largest_first():
    centres = l2_normalize(
        np.repeat(np.eye(3, 8), [2, 4, 6], axis=0) + 0.05 * np.random.default_rng(0).normal(size=(12, 8))
    )
    cluster_N = np.repeat(np.arange(12), [9, 9, *[1] * 10])
    some = Clusters(offsets=np.arange(28), cluster=cluster_N, cosine=np.ones(28), centres=centres)
    assert [own.tolist() for own in themes_of(some)] == [[0, 1], [*range(6, 12)], [*range(2, 6)]]
    assert themes_of(replace(some, centres=centres[:10])) == []


def test_a_letter_that_an_apostrophe_leaves_is_no_word():
    text = "it wasn\u2019t l'eau 'x 6'2 c"
    words = [Word(*match.span(), 1.0) for match in re.finditer(r"\w+", text)]
    assert {word.word for word in score_words([[(text, words)]], 9)[0]} == {"eau", "x", "6", "2", "c"}
