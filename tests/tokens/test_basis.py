"""Stored tokens: what is pooled from them equals what is embedded, within the rounding; packing; any split. What is
pooled from their sketches is pooled from the centroids that stand for the tokens."""

from dataclasses import replace

import numpy as np
import pytest
import storing
import torch
from helpers import cosines
from safetensors.torch import load, save

import raycase
from raycase.errors import RequestError
from raycase.io.ragged import Ragged
from raycase.models.registry import resolve
from raycase.tokens import pooling as token_pooling
from raycase.tokens.basis import TokenBasis, fit_codes, typical_conditions
from raycase.tokens.pooling import SketchPooler, TokenPooler, unpack_tokens
from raycase.tokens.sketch import TokenSketch
from raycase.tokens.stored import StoredTokens

CONDITIONS = ["what they wear on their heads", "dog", "number of people"]
SENTENCES = [row["text"] for row in storing.texts(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return storing.model_folder(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def model(folder):
    return raycase.load(folder, dtype=torch.float32, device="cpu")


def basis(model, token_bytes=storing.ENOUGH, dim=None):
    typical = model.questions(typical_conditions())
    return fit_codes(model.head, model.keys_values(SENTENCES), typical, dim=dim or model.dim, token_bytes=token_bytes)


def coded(model, codes, sentences=SENTENCES):
    """Stored tokens, in the order of the sentences: one batch each."""
    return StoredTokens.concat([codes.code(model.keys_values([sentence])[0]) for sentence in sentences])


@pytest.fixture(scope="module")
def codes(model):
    return basis(model)


@pytest.fixture(scope="module")
def stored(model, codes):
    return coded(model, codes)


def asked(model, conditions=CONDITIONS):
    return model.questions(conditions), model.head.temperatures.detach()


def pooled(model, codes, stored):
    words = unpack_tokens(stored, codes)
    return TokenPooler(codes, *asked(model)).pool(words).numpy()[np.argsort(words.order)]


def test_pooled_equals_embedded_within_the_rounding(model, codes, stored):
    assert 0 < len(stored.part.flat) < len(SENTENCES), "expected some texts with a plain part"
    found = pooled(model, codes, stored)
    for i, condition in enumerate(CONDITIONS):
        wanted = model.embed(SENTENCES, condition)
        assert cosines(found[:, i], wanted).min() > 0.999
        np.testing.assert_allclose(np.linalg.norm(found[:, i], axis=1), np.linalg.norm(wanted, axis=1), rtol=0.05)


def test_more_bytes_are_closer(model):
    """And never more than were asked for."""
    errors = []
    for token_bytes in (3, 8, 20):
        codes = basis(model, token_bytes)
        stored = coded(model, codes)
        assert codes.form.token_bytes <= token_bytes
        assert stored.codes.flat.shape[1] == codes.form.token_bytes
        errors.append(1 - cosines(pooled(model, codes, stored)[:, 0], model.embed(SENTENCES, CONDITIONS[0])).mean())
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


def test_a_cut_model_stores_the_cut(folder):
    model = raycase.load(folder, dtype=torch.float32, device="cpu", dim=6)
    codes = basis(model)
    stored = coded(model, codes)
    assert stored.form.dim == 6
    found = cosines(pooled(model, codes, stored)[:, 0], model.embed(SENTENCES, CONDITIONS[0]))
    assert found[stored.part.counts == 0].min() > 0.999
    assert found.mean() > 0.98, "a plain part is scaled by the mean length of what was cut off"


def test_any_split_gives_the_same(model, codes, stored, monkeypatch):
    """Groups of few tokens, texts in another order, several conditions at once or one."""
    whole = pooled(model, codes, stored)
    monkeypatch.setattr(token_pooling, "TOKENS_AT_ONCE", 5)
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    np.testing.assert_allclose(pooled(model, codes, stored.take(order)), whole[order], atol=1e-5)
    words = unpack_tokens(stored, codes)
    one = TokenPooler(codes, *asked(model, CONDITIONS[1:2])).pool(words)
    np.testing.assert_allclose(one[:, 0].numpy(), whole[words.order, 1], atol=1e-5)


def test_texts_whose_batch_lacked_memory_are_stored_once(folder, codes, monkeypatch):
    """The batch comes again, in parts if need be."""
    config = resolve(folder)
    system, prepared = config.load(dtype=torch.float32, device="cpu"), config.prepare(SENTENCES, None)
    wanted = system.tokens(prepared, codes).kept.codes
    code, calls = TokenBasis.code, []

    def fails_at_first(codes, words):
        calls.append(words)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return code(codes, words)

    monkeypatch.setattr(TokenBasis, "code", fails_at_first)
    found = system.tokens(prepared, codes).kept.codes
    assert len(calls) > 1
    np.testing.assert_array_equal(found.offsets, wanted.offsets)
    np.testing.assert_array_equal(found.flat, wanted.flat)


def test_a_basis_is_read_back_and_another_file_is_refused(codes):
    data = codes.to_bytes()
    assert TokenBasis.from_bytes(data, "b").form == codes.form
    for wrong, said in ((b"nonsense", ""), (save(load(data) | {"more": torch.ones(1)}), "unexpected")):
        with pytest.raises(RequestError, match=f"b: expected the basis of stored tokens, got: .*{said}"):
            TokenBasis.from_bytes(wrong, "b")
    with pytest.raises(RequestError, match="expected centroids of stored tokens, got: "):
        TokenSketch.from_bytes(b"nonsense", "a.safetensors")


def test_sketches_are_near_the_words_they_stand_for(model, codes, stored, monkeypatch):
    """In any split; and the axes of a condition keep what its vectors vary by."""
    sketch = TokenSketch.fit(codes.quantizer, stored.codes.flat)
    again = TokenSketch.from_bytes(sketch.to_bytes(), "s")
    coded = Ragged(flat=again.code(codes.quantizer, stored.codes.flat), offsets=stored.codes.offsets)
    words = unpack_tokens(replace(stored, codes=coded), None)
    pooler = SketchPooler(again, codes, *asked(model, CONDITIONS[:1]))
    found = pooler.pool(words)
    exact = TokenPooler(codes, *asked(model, CONDITIONS[:1])).pool(unpack_tokens(stored, codes))[:, 0]
    assert cosines(found.numpy(), exact.numpy()).min() > 0.99
    monkeypatch.setattr(token_pooling, "SKETCHED_AT_ONCE", 5)
    torch.testing.assert_close(pooler.pool(words), found)
    monkeypatch.setattr(token_pooling, "AXES", 8)
    axes = token_pooling.principal_axes(pooler.pool(words.sample(2)))
    assert axes.shape == (11, 8)
    lengths = torch.linalg.vector_norm(pooler.along(axes).pool(words), dim=1) / torch.linalg.vector_norm(found, dim=1)
    assert (lengths > 0.9).all() and (lengths < 1 + 1e-5).all()
