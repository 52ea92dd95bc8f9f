"""Sketches of stored words: pooling them is pooling the centroids that stand for the tokens."""

import numpy as np
import pytest
import storing
import torch
import torch.nn.functional as F
from helpers import cosines

import raycase
from raycase.data.stored_words import Ragged, StoredWords
from raycase.errors import RequestError
from raycase.systems import word_sketch
from raycase.systems.word_codes import fit_codes, typical_conditions
from raycase.systems.word_pooling import WordPooler, unpack_words
from raycase.systems.word_sketch import SketchPooler, WordSketch

SENTENCES = [row["text"] for row in storing.texts(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = storing.model_folder(tmp_path_factory.mktemp("sketch"))
    return raycase.load(folder, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def codes(model):
    typical = model.questions(typical_conditions())
    return fit_codes(model.head, model.words(SENTENCES), typical, dim=model.dim, token_bytes=storing.ENOUGH)


@pytest.fixture(scope="module")
def stored(model, codes):
    return StoredWords.concat([codes.code(model.words([sentence])[0]) for sentence in SENTENCES])


def sketched(stored, sketch, codes):
    flat = sketch.code(codes, stored.codes.flat)
    kept = StoredWords(
        form=stored.form, codes=Ragged(flat=flat, offsets=stored.codes.offsets), part=stored.part, finite=stored.finite
    )
    return unpack_words(kept, None)


def asked(model):
    return model.questions(["what they wear on their heads"]), model.head.temperatures.detach()


def exact(model, codes, stored):
    """By the words themselves, in the order of shortest first."""
    return WordPooler(codes, *asked(model)).pool(unpack_words(stored, codes))[:, 0]


def test_centroids_that_are_the_tokens_give_their_very_vectors(model, codes, stored):
    """Few distinct tokens: each one can be a centroid of the first level, and nothing is left for the others."""
    few = stored.take(np.arange(12))
    z = torch.from_numpy(np.unique(codes.unpack(few.codes.flat), axis=0)) * codes.steps
    first = F.pad(z, (0, 0, 0, 256 - len(z)))
    sketch = WordSketch(centroids=torch.stack([first, torch.zeros_like(first)]))
    words = sketched(few, sketch, codes)
    assert len(words.with_part), "expected some texts with a plain part"
    pooler = SketchPooler(sketch, codes, *asked(model))
    torch.testing.assert_close(pooler.pool(words), exact(model, codes, few), atol=1e-5, rtol=1e-4)
    axes = torch.linalg.qr(torch.randn(11, 11)).Q  # turned, they keep their cosines
    turned = pooler.along(axes).pool(words) @ axes.T
    torch.testing.assert_close(turned, exact(model, codes, few), atol=1e-5, rtol=1e-4)


def test_sketches_are_near_the_words_they_stand_for(model, codes, stored, monkeypatch):
    """In any split; and the axes of a condition keep what its vectors vary by."""
    sketch = WordSketch.fit(codes, stored.codes.flat)
    again = WordSketch.from_bytes(sketch.to_bytes(), "s")
    words = sketched(stored, again, codes)
    pooler = SketchPooler(again, codes, *asked(model))
    found = pooler.pool(words)
    assert cosines(found.numpy(), exact(model, codes, stored).numpy()).min() > 0.98
    monkeypatch.setattr(word_sketch, "TOKENS_AT_ONCE", 5)
    torch.testing.assert_close(pooler.pool(words), found)
    monkeypatch.setattr(word_sketch, "AXES", 8)
    axes = word_sketch.principal_axes(pooler.pool(words.sample(2)))
    assert axes.shape == (11, 8)
    lengths = torch.linalg.vector_norm(pooler.along(axes).pool(words), dim=1) / torch.linalg.vector_norm(found, dim=1)
    assert (lengths > 0.9).all() and (lengths < 1 + 1e-5).all()


def test_what_is_no_sketch_is_refused():
    with pytest.raises(RequestError, match="expected the centroids of stored words, got: "):
        WordSketch.from_bytes(b"nonsense", "a.safetensors")
