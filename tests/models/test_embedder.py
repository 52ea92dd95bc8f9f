"""`encode`, `encode_grid` and `similarity` of a loaded system: shapes, what is no text, as `embed`, in threads."""

import os
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import small
import torch
from helpers import in_threads, wait_for

import raycase
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.embedder import Embedder
from raycase.models.registry import resolve
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.csr.model import csr

SENTENCES = ["a red dog", "two people play", "a man and a woman run"]
CONDITIONS = ["color", "people"]
NO_LIST = "expected a list or a column of strings"


@pytest.fixture(scope="module", params=["case", "condition pooling"])
def model(request, tiny_model):
    if request.param == "case":
        return raycase.load(tiny_model, prompt="concat-sc", pooling="mean", dtype=torch.float32)
    return raycase.load(f"condition-pooling:{tiny_model}", pooling="mean", dtype=torch.float32)


@pytest.mark.parametrize("made", [list, tuple, np.array, pd.Series, pa.array, lambda x: pa.chunked_array([x])])
def test_one_text_or_many_of_any_type(model, made):
    wanted = model.embed(SENTENCES, "color")
    assert model.encode(made(SENTENCES), "color") == pytest.approx(wanted)
    assert model.encode(made(SENTENCES), made(["color"] * 3)) == pytest.approx(wanted)
    assert model.encode(made(SENTENCES)) == pytest.approx(model.embed(SENTENCES, None))
    assert model.encode(SENTENCES[0], "color") == pytest.approx(wanted[0])
    assert model.encode(SENTENCES[0]).shape == (model.config.unconditional_dim,)


def test_a_wrong_argument_is_named(model, tiny_model):
    wrong = {
        "^normalize: expected bool, got 'no'": lambda: model.encode("a", normalize="no"),
        "^expected one vector, or a row for each, got an array of 3 axes": lambda: model.similarity([[[1]]], [1]),
        r"^sentences\[0\]: expected a string, got 5": lambda: model.word_weights([5], "color"),
        "^dtype: expected .*, got .*float16": lambda: raycase.embed("a", "b", conditions="c", dtype=np.float16),
        "^expected other arguments, got: .*'foo'": lambda: raycase.load(tiny_model, foo=1),
        "^batch_tokens: expected int | None, got '5'": lambda: raycase.Embed(model=str(tiny_model), batch_tokens="5"),
        "^model: expected str | PathLike, got 5": lambda: raycase.load(5),
        "^batch_tokens: expected at least 1, got -5": lambda: raycase.load(tiny_model, batch_tokens=-5),
        "^device: expected one of torch, got: ": lambda: raycase.load(tiny_model, device="gpu"),
        "^expected a path or a URI, got ''": lambda: raycase.Index.open(""),
    }
    for said, work in wrong.items():
        with pytest.raises(ValueError, match=said.replace("|", r"\|")) as error:
            work()
        assert "\n" not in str(error.value)


def test_a_grid_has_every_sentence_under_every_condition(model):
    grid = model.encode_grid(SENTENCES, CONDITIONS, normalize=True)
    assert grid.shape == (3, 2, model.dim)
    assert np.linalg.norm(grid, axis=-1) == pytest.approx(np.ones((3, 2)))
    for row, condition in enumerate(CONDITIONS):
        assert grid[:, row] == pytest.approx(model.encode(SENTENCES, condition, normalize=True), abs=1e-6)
    assert model.encode_grid([], CONDITIONS).shape == (0, 2, model.dim)
    assert model.encode_grid(SENTENCES, []).shape == (3, 0, model.dim)


def test_spellings_of_one_condition_are_computed_once(model, monkeypatch):
    pairs, compute = [], model.encode_prepared
    monkeypatch.setattr(
        model, "encode_prepared", lambda prepared: pairs.append(prepared.condition) or compute(prepared)
    )
    grid = model.encode_grid(SENTENCES, ["color", " color\n", "people"])
    assert [len(each) for each in pairs] == [6] and np.array_equal(grid[:, 0], grid[:, 1])


def test_pieces_change_nothing_but_what_is_shown(model, capsys):
    wanted = model.encode(SENTENCES, ["color", "people", "color"])
    assert capsys.readouterr() == ("", "")
    assert model.encode(SENTENCES, ["color", "people", "color"], batch_size=2) == pytest.approx(wanted, abs=1e-6)
    assert model.encode([], "color").shape == (0, model.dim)
    assert model.encode([]).shape == (0, model.config.unconditional_dim)
    with pytest.raises(ValueError, match="pair 2: empty text"):
        model.encode(["a dog", "a cat", " "], "color", batch_size=1)


@pytest.mark.parametrize(
    ("sentences", "condition", "said"),
    [
        (["a dog", None], "color", r"sentences\[1\]: expected a string, got None"),
        (["a dog", "a cat"], ["color", 7], r"condition\[1\]: expected a string, got 7"),
        (["a dog", "a cat"], ["color"], "condition: expected one, or one for each of 2 texts, got 1; encode_grid"),
        (["a dog", " "], "color", "pair 1: empty text"),
        (["a dog", "\ud800"], "color", r"sentences\[1\]: expected text that UTF-8 can hold, got '\\ud800'"),
        (pd.DataFrame({"text": ["a dog"]}), "color", f"sentences: {NO_LIST}, got DataFrame"),
        (["a dog"], {"color"}, f"condition: {NO_LIST}, got set"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(model, sentences, condition, said):
    with pytest.raises(ValueError, match=said):
        model.encode(sentences, condition)


def test_a_text_that_is_cut_is_said_once(model):
    long = "a dog " * 2000
    with pytest.warns(UserWarning, match=rf"1 of 2 texts were cut at {model.config.encoder.max_tokens} tokens"):
        model.encode([long, "a dog"], "color")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode(long, "color")


def test_similarity_is_the_cosine_of_each_to_each(model):
    first, second = [[3, 4], [0, 0]], [[4, 3], [-6, -8], [0, 2]]
    assert model.similarity(first, second) == pytest.approx(np.array([[0.96, -1, 0.8], [0, 0, 0]]))
    assert model.similarity(first[0], second[0]) == pytest.approx(np.array([[0.96]]))


MAKE = {
    "bi-encoder": bi_encoder,
    "csr": csr,
    "cross-encoder": cross_encoder,
    "condition-pooling": ConditionPoolingConfig.untrained,
    "case": lambda folder: resolve(folder, prompt="concat-cs+cond", pooling="mean"),
}
OF_THREADS = [f"{a} {b} {c}" for a, b in (("red", "people"), ("a dog", "dress")) for c in ("0", "1 2 3")]


def ways(model):
    """Every way to ask a model about a text."""
    under = small.CONDITIONS[:2]
    if not isinstance(model, Embedder):
        return [lambda text: model.score([text], [OF_THREADS[0]], under[:1])]
    asked = [lambda text: model.encode(text, under[0]), model.encode]
    asked.append(lambda text: model.encode_grid([text, text[::-1]], under))
    if model.config.weighs_words:
        asked.append(lambda text: [word.weight for word in model.word_weights([text], under[0])[0]])
    if hasattr(model, "embed_phrases"):
        asked.append(lambda text: model.embed_phrases([text], under[1]))
    return asked


@pytest.mark.parametrize("name", MAKE)
def test_eight_threads_get_what_one_gets(name, bert):
    model = MAKE[name](bert).load(dtype=torch.float32)
    asked = [(call, text) for text in OF_THREADS for call in ways(model)]
    found = in_threads(lambda each: each[0](each[1]), asked * 2)
    for (call, text), one, again in zip(asked, found, found[len(asked) :], strict=False):
        wanted = call(text)
        np.testing.assert_allclose(one, wanted, atol=1e-6)
        np.testing.assert_allclose(again, wanted, atol=1e-6)


def test_a_child_that_was_forked_computes(bert):
    """With OpenMP's threads, which do not survive a fork, the child would wait for ever."""
    torch.set_num_threads(2)
    model = ConditionPoolingConfig.untrained(bert).load(dtype=torch.float32)
    wanted = model.encode(OF_THREADS, small.CONDITIONS[0])
    child = os.fork()
    if not child:
        same = np.allclose(model.encode(OF_THREADS, small.CONDITIONS[0]), wanted, atol=1e-6)
        os._exit(0 if same else 1)
    ended = []
    wait_for(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], 60)
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
