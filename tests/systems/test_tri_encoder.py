"""The tri-encoder by hand, on the library's own model; each text is encoded once."""

import numpy as np
import pytest
import small
from small import CONDITIONS, EVERY, SENTENCES, close, system

from raycase.encoder.pooling import Compose, Pooling
from raycase.systems.baselines import tri_encoder
from raycase.systems.fine_tuned_module import pair_scores
from raycase.systems.pairs import Memory


@pytest.mark.parametrize("how", Compose)
def test_a_tri_encoder_composes_two_vectors(bert, how):
    apart = [(small.mean(bert, s), small.mean(bert, c)) for s, c in EVERY]
    wanted = [s * c for s, c in apart] if how is Compose.HADAMARD else [[*s, *c] for s, c in apart]
    config = tri_encoder(bert, compose=how)
    close(small.vectors(system(config)), wanted)
    assert config.dim == len(wanted[0])
    assert config.plain_dim == small.DIM


def test_a_tri_encoder_by_cls_takes_the_first_state(bert):
    s, c = (small.states(bert, text)[0].numpy() for text in EVERY[1])
    close(small.vectors(system(tri_encoder(bert, pooling=Pooling.CLS)), EVERY[1:2]), [s * c])


def encoded_tokens(loaded, monkeypatch):
    """Tokens of each batch that the encoder is given."""
    tokens, original = [], loaded.encoder.encode

    def encode(batch):
        tokens.append(int(batch.lengths.sum()))
        return original(batch)

    monkeypatch.setattr(loaded.encoder, "encode", encode)
    return tokens


def test_a_tri_encoder_encodes_each_text_once_and_remembers_conditions(bert, monkeypatch):
    loaded = system(tri_encoder(bert))
    tokens = encoded_tokens(loaded, monkeypatch)
    first = small.vectors(loaded)
    assert tokens == [small.length(bert, SENTENCES), small.length(bert, CONDITIONS)]
    tokens.clear()
    again = loaded.embed([SENTENCES[0], *SENTENCES[:2]], [CONDITIONS[0], CONDITIONS[1], "people"])
    assert tokens == [small.length(bert, SENTENCES[:2]), small.length(bert, ["people"])]
    np.testing.assert_allclose(again[:2], first[:2], atol=2e-6)
    tokens.clear()
    loaded.embed(SENTENCES, "people")
    assert tokens == [small.length(bert, SENTENCES)]


def test_the_memory_of_conditions_is_bounded(bert):
    """Room for four: one more begins anew, and every vector is right."""
    fresh = small.vectors(system(tri_encoder(bert)))
    loaded = system(tri_encoder(bert))
    loaded.memory = Memory(small.DIM, max_bytes=4 * small.DIM * 4)
    loaded.embed(SENTENCES[:3], ["people", "red", "woman"])
    assert list(loaded.memory.vectors) == ["people", "red", "woman"]
    loaded.embed(SENTENCES[:1], "people")
    assert len(loaded.memory.vectors) == 3
    close(small.vectors(loaded), fresh)
    assert list(loaded.memory.vectors) == CONDITIONS


def test_training_encodes_each_text_once(bert, monkeypatch):
    config = tri_encoder(bert)
    module = pair_scores(config.trainable(dropout=0.0))
    tokens = small.seen(module.system.encoder, monkeypatch)
    rated = small.rated(rows=12)
    rows = np.array([0, 1, 4, 7])
    module(config.rated(rated).take(rows))
    sentences = {texts[row] for row in rows for texts in (rated.sentences1, rated.sentences2)}
    assert len(sentences) < 8
    assert sum(tokens) == small.length(bert, sentences) + small.length(bert, {rated.conditions[row] for row in rows})
