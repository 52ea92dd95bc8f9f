"""Scores of pairs of sentences by any system: what is refused has none, no pairs have none, each is scored once."""

import numpy as np
import pytest
import torch

from raycase.models.contracts import score_pairs
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.dualcse.model import dualcse
from raycase.papers.mixsp.model import mixsp

SYSTEMS = {"bi": bi_encoder, "cross": cross_encoder, "dualcse": dualcse, "mixsp": mixsp}
FIGURES = {"bi": 1, "cross": 1, "dualcse": 3, "mixsp": 3}


@pytest.fixture(scope="module")
def loaded(bert):
    torch.manual_seed(0)
    return {name: make(bert).trainable(dropout=0.0).eval() for name, make in SYSTEMS.items()}


def scored(system, firsts, seconds, conditions):
    under = conditions if system.config.known_conditions is None else None
    return score_pairs(system, system.config.prepare_pairs(firsts, seconds, under))


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_refused_has_no_score_and_equal_pairs_are_scored_once(name, loaded):
    system = loaded[name]
    firsts, seconds = ["a dog", "a dog", "a dog", "a dog"], ["people", " ", "people", "a bar " * 900]
    found = scored(system, firsts, seconds, ["number"] * 4)
    assert found.vectors.shape == (4, FIGURES[name]) and found.distinct == 3
    assert np.isnan(found.vectors).any(axis=1).tolist() == [False, True, False, False]
    assert np.array_equal(found.vectors[0], found.vectors[2])
    assert [str(reason) for reason in found.refused] == ["None", "empty text", "None", "None"]
    assert found.truncated.tolist() == [False, False, False, True]
    assert found.work.tokens > 0
    none = scored(system, [], [], [])
    assert (none.vectors.shape, none.refused, none.distinct) == ((0, FIGURES[name]), [], 0)
