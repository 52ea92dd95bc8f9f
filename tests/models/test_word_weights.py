"""Weights of words are those of their tokens, of many sentences in few batches."""

import numpy as np
import pytest
import small
import tiny

from raycase.models.condition_pooling import condition_pooling

TEXTS = [
    "A woman in a red dress",
    "  two people play with a dog at the bar ",
    "dog",
    "a dog - a woman . two [SEP] people",
    "caf\u00e9 cafe\u0301 na\u00efve",
    "two people {play} 😀",
]


@pytest.mark.parametrize("name", ["minilm", "e5-large-instruct", "qwen3-embedding-0.6b"])
def test_words_cover_the_text_and_weigh_1_together(name, tmp_path):
    system = small.system(condition_pooling(str(tiny.save_encoder(tmp_path, name))))
    texts, conditions = map(list, zip(*[(s, c) for s in TEXTS for c in small.CONDITIONS], strict=True))
    for text, words in zip(texts, system.word_weights(texts, conditions), strict=True):
        assert sum(word.weight for word in words) == pytest.approx(1, abs=1e-5)
        covered = "".join(text[w.start : w.end] for w in words)
        assert small.no_signs(covered) == small.no_signs(text)


def test_the_vector_is_the_sum_of_the_words(bert):
    """Without training: sum_t w_t(c) h_t over the tokens of the text."""
    system, text, conditions = small.system(condition_pooling(bert)), "A woman in a red dress", list(small.CONDITIONS)
    states_TD = small.states(bert, text)[1:-1].numpy()
    vectors_CD = system.embed([text] * len(conditions), conditions)
    for condition, vector_D in zip(conditions, vectors_CD, strict=True):
        (words,) = system.word_weights([text], condition)
        small.close(np.array([w.weight for w in words]) @ states_TD, vector_D, atol=1e-5)
