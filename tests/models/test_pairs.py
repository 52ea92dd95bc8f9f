"""Prepared pairs: each distinct one is found once, in the order they come in; taken by rows, refused with reasons."""

from dataclasses import replace

import numpy as np
import pytest

from raycase.encoder.table import ENCODERS
from raycase.models.pairs import CONDITION, SENTENCE, Indexed, prepare


@pytest.fixture
def spec(tiny_model):
    return replace(ENCODERS["minilm"], source=str(tiny_model), max_tokens=64)


@pytest.mark.parametrize("count", [0, 60])
@pytest.mark.parametrize("conditional", [True, False])
def test_distinct_pairs_are_those_of_a_dictionary(spec, count, conditional):
    random = np.random.default_rng(0)
    sentences = [f"dog {i}" for i in random.integers(0, 7, count)]
    conditions = [f"cat {i}" for i in random.integers(0, 4, count)] if conditional else None
    plain = prepare(spec, sentences, conditions, of_sentences=[SENTENCE], of_conditions=[CONDITION])
    texts = list(zip(sentences, conditions or [""] * count, strict=True))
    pairs = list(dict.fromkeys(texts))
    known = list(dict.fromkeys(s for s, _ in pairs)), list(dict.fromkeys(c for _, c in pairs))
    assert plain.rows.tolist() == [pairs.index(text) for text in texts]
    assert plain.conditions == (known[1] if conditional else None)
    assert plain.sentence.tolist() == [known[0].index(s) for s, _ in pairs]
    assert plain.condition.tolist() == [known[1].index(c) for _, c in pairs]
    # values in any order, one of them unused
    values = [f"dog {i}" for i in random.permutation(8)], [f"cat {i}" for i in random.permutation(5)]
    given = zip(values, (sentences, conditions or []), strict=True)
    indexed = [Indexed(values=v, codes=np.array([v.index(t) for t in ts], np.int64)) for v, ts in given]
    under = indexed[1] if conditional else None
    again = prepare(spec, indexed[0], under, of_sentences=[SENTENCE], of_conditions=[CONDITION])
    assert again.to_bytes() == plain.to_bytes()
