"""Stored words: what is pooled from them equals what is embedded, within the rounding; packing; any split."""

import numpy as np
import pytest
import storing
import torch
from helpers import cosines
from safetensors.torch import load, save

import raycase
from raycase.data.stored_words import StoredWords
from raycase.errors import RequestError
from raycase.systems import word_pooling
from raycase.systems.word_codes import WordCodes, fit_codes, typical_conditions
from raycase.systems.word_pooling import WordPooler, unpack_words

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
    return fit_codes(model.head, model.words(SENTENCES), typical, dim=dim or model.dim, token_bytes=token_bytes)


def coded(model, codes, sentences=SENTENCES):
    """Stored words, in the order of the sentences: one batch each."""
    return StoredWords.concat([codes.code(model.words([sentence])[0]) for sentence in sentences])


def pooled(model, codes, stored):
    pooler = WordPooler(codes, model.questions(CONDITIONS), model.head.temperatures.detach())
    words = unpack_words(stored, codes)
    return pooler.pool(words).numpy()[np.argsort(words.order)]


def embedded(model, condition):
    return model.embed(SENTENCES, condition)


def test_pooled_equals_embedded_within_the_rounding(model):
    codes = basis(model)
    stored = coded(model, codes)
    assert 0 < len(stored.part.flat) < len(SENTENCES), "expected some texts with a plain part"
    found = pooled(model, codes, stored)
    for i, condition in enumerate(CONDITIONS):
        wanted = embedded(model, condition)
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
        errors.append(1 - cosines(pooled(model, codes, stored)[:, 0], embedded(model, CONDITIONS[0])).mean())
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


def test_a_cut_model_stores_the_cut(folder):
    model = raycase.load(folder, dtype=torch.float32, device="cpu", dim=6)
    codes = basis(model)
    stored = coded(model, codes)
    assert stored.form.dim == 6
    found = cosines(pooled(model, codes, stored)[:, 0], embedded(model, CONDITIONS[0]))
    assert found[stored.part.counts == 0].min() > 0.999
    assert found.mean() > 0.98, "a plain part is scaled by the mean length of what was cut off"


def test_any_split_gives_the_same(model, monkeypatch):
    """Groups of few tokens, texts in another order, several conditions at once or one."""
    codes = basis(model)
    stored = coded(model, codes)
    whole = pooled(model, codes, stored)
    monkeypatch.setattr(word_pooling, "TOKENS_AT_ONCE", 5)
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    np.testing.assert_allclose(pooled(model, codes, stored.take(order)), whole[order], atol=1e-5)
    one = WordPooler(codes, model.questions(CONDITIONS[1:2]), model.head.temperatures.detach())
    words = unpack_words(stored, codes)
    np.testing.assert_allclose(one.pool(words)[:, 0].numpy(), whole[words.order, 1], atol=1e-5)


def test_a_basis_is_read_back_and_another_file_is_refused(model):
    whole = basis(model)
    assert WordCodes.from_bytes(whole.to_bytes(), "b").form == whole.form
    for data, said in ((b"nonsense", ""), (save(load(whole.to_bytes()) | {"more": torch.ones(1)}), "unexpected")):
        with pytest.raises(RequestError, match=f"b: expected the basis of stored words, got: .*{said}"):
            WordCodes.from_bytes(data, "b")
