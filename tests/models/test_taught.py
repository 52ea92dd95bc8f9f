"""Taught conditions: what answers do to the vectors under one, and the file that holds it."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import storing
import torch
from helpers import in_threads
from safetensors.numpy import save
from storing import answers

import raycase
from raycase.errors import RequestError
from raycase.io.vectors import l2_normalize
from raycase.models.taught import Taught
from raycase.models.teaching import is_gain

ASKED = "what they wear"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return storing.model_folder(tmp_path_factory.mktemp("taught"), **storing.TEACHABLE)


@pytest.fixture(scope="module")
def model(folder):
    return opened(folder)


@pytest.fixture(scope="module")
def taught(model):
    return model.teach(*answers(250), ASKED)


def opened(folder, **options):
    return raycase.load(folder, dtype=torch.float32, device="cpu", **options)


def apart(vectors, labels):
    """By how much texts of one label are nearer to each other than those of different ones."""
    stated = [i for i, label in enumerate(labels) if label]
    unit, labels = l2_normalize(vectors)[stated], [labels[i] for i in stated]
    same = np.equal.outer(labels, labels)
    found = unit @ unit.T
    return found[same & ~np.eye(len(found), dtype=bool)].mean() - found[~same].mean()


def test_other_texts_of_one_label_come_nearer(model, taught):
    texts, labels = answers(60, first=1000)
    named, after = model.encode(texts, ASKED), model.encode(texts, taught)
    assert taught.gained and taught.answers == 201 and taught.condition == ASKED
    assert apart(after, labels) > 1.2 * apart(named, labels)
    assert taught.figures.taught.share > taught.figures.named.share
    assert np.array_equal(model.encode(texts, ASKED), named)  # the model itself learns nothing


def test_teaching_is_deterministic_and_starts_from_the_words(model, taught):
    texts, labels = answers(250)
    assert model.with_taught(taught).teach([*texts, "a woman"], [*labels, None], f" {ASKED} ") == taught


def test_a_view_knows_it_by_its_words(model, taught, folder):
    texts, view = answers(9, first=200)[0], model.with_taught(taught)
    wanted = model.encode(texts, taught)
    assert np.array_equal(view.encode(texts, ASKED.replace(" ", "  ")), wanted)
    assert np.array_equal(view.encode(texts, "dog"), model.encode(texts, "dog"))
    assert view.word_weights(texts, ASKED) == model.word_weights(texts, taught) != model.word_weights(texts, ASKED)
    assert np.array_equal(view.stated(texts, ASKED), model.stated(texts, taught))
    assert view.encoder is model.encoder and view.head is model.head and view.lock is model.lock
    config = pickle.loads(pickle.dumps(view.config))  # noqa: S301 as Ray sends it
    assert config == view.config != model.config and hash(config) == hash(view.config)
    assert config.describe() == model.config.describe() and config.choices == model.config.choices
    assert np.allclose(config.load(dtype=torch.float32, device="cpu").encode(texts, ASKED), wanted, atol=1e-6)
    cut = opened(folder, dim=6)  # the state has all numbers
    assert np.allclose(cut.encode(texts, taught), wanted[:, :6], atol=1e-6)
    found = in_threads(lambda each: each.encode(texts, ASKED), [model, view] * 8)
    assert all(np.allclose(each, wanted, atol=1e-6) == (i % 2 == 1) for i, each in enumerate(found))


def test_nothing_gained_keeps_the_words(model):
    texts, labels = answers(250)
    shuffled = np.random.default_rng(0).permutation(labels).tolist()
    found = model.teach(texts, shuffled, ASKED)
    assert not found.gained
    assert np.allclose(model.encode(texts, found), model.encode(texts, ASKED), atol=1e-6)


@pytest.mark.parametrize(
    ("more", "gained"),
    [
        ([0.1] * 9, True),
        ([0.1, 0.3, 0.1, 0.2], True),
        ([0.5, -0.3, 0.2, -0.1], False),
        ([0.0] * 9, False),
        ([-0.1] * 9, False),
    ],
)
def test_the_rule_of_a_gain(more, gained):
    assert is_gain(np.array(more)) == gained


def test_copies_of_a_text_are_one_answer(model, taught):
    once = answers(250)
    twice = model.teach(*(each * 2 for each in once), ASKED)
    assert (twice.answers, twice.figures, twice.gained) == (taught.answers, taught.figures, taught.gained)
    with pytest.raises(ValueError, match="expected two labels with two texts each"):
        model.teach(["red a"] * 4 + ["dog a"] * 4, ["r"] * 4 + ["d"] * 4, ASKED)


def test_few_answers_and_many(model, taught, monkeypatch):
    few = model.teach(["red a", "red b", "dog a", "dog b"], ["r", "r", "d", "d"], ASKED)
    assert few.answers == 4 and np.isfinite(few.numbers).all()
    monkeypatch.setattr("raycase.models.teaching.MOST_TOKENS", 200)
    some = model.teach(*answers(250), ASKED)
    assert some.answers == 201 and some.state != taught.state


def test_without_training(folder):
    model = opened(f"condition-pooling:{folder.removesuffix('model')}bert")
    assert model.encode("a red dress", model.teach(*answers(60), ASKED)).shape == (32,)


@pytest.mark.parametrize(
    ("texts", "labels", "condition", "words"),
    [
        (["a", "b"], ["x"], ASKED, "labels: expected one for each of 2 texts, got 1"),
        (["a", "b", "c"], ["x", "x", None], ASKED, "two labels with two texts each, or more of both, got 1 of 1"),
        (["a", "b", "c"], ["x", "x", "y"], ASKED, "got 1 of 2 labels"),
        ([], [], ASKED, "got none"),
        (["a", "b", "c", " "], ["x", "x", "y", "y"], ASKED, "pair 3: "),
        (["a", "b", "c", "d"], ["x", "x", "y", "y"], "  ", "condition: expected words that .* can read"),
        (["a", "b", "c", "d"], ["x", "x", "y", 3], ASKED, "labels.3.: expected a string or None, got 3"),
        ("a red dress", "x", ASKED, "two labels"),
        (["a", "b", "c", "d"], ["x", "x", "y", "y"], None, "condition: expected str, got None"),
    ],
)
def test_bad_answers(model, texts, labels, condition, words):
    with pytest.raises(RequestError, match=words) as error:
        model.teach(texts, labels, condition)
    assert "\n" not in str(error.value)


def test_other_systems_have_none(tiny_model, taught):
    model = raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean")
    with pytest.raises(RequestError, match="expected a model of condition pooling for a taught condition"):
        model.encode("a", taught)


def test_the_file(taught, tmp_path):
    file = tmp_path / "wear.taught"
    taught.save(file)
    assert Taught.load(file) == taught and Taught.load(str(file)).to_bytes() == file.read_bytes()
    assert file.stat().st_size < 2000
    with pytest.raises(RequestError, match=r"wear.taught: .*got"):
        Taught.load(tmp_path / "none" / "wear.taught")


def test_another_model_refuses_it(taught, tmp_path):
    other = opened(storing.model_folder(tmp_path, heads=2))
    words = rf"'{ASKED}': expected the model that this condition was taught to, .*taught.*/model \(\w{{8}}\), got .*"
    half = replace(taught, model=other.config.identity, state=taught.state[:4])
    for each in (taught, half):
        with pytest.raises(RequestError, match=words):
            other.with_taught(each)
    for work in (lambda: other.encode("a", taught), replace(other.config, taught=(taught,)).load):
        with pytest.raises(RequestError, match=words):
            work()


def test_damaged_files(taught, tmp_path):
    good, state, file = taught.to_bytes(), taught.numbers, tmp_path / "x.taught"
    record = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])["__metadata__"]["raycase"]

    def changed(**values):
        return save({"state": state}, metadata={"raycase": json.dumps(json.loads(record) | values)})

    bad = {
        "text": b"id,label\n1,red\n",
        "cut": good[:-5],
        "cut header": good[:40],
        "no record": save({"state": state}),
        "other tensors": save({"weights": state}, metadata={"raycase": record}),
        "not finite": save({"state": np.where(np.arange(len(state)), state, np.nan)}, metadata={"raycase": record}),
        "none": save({"state": state[:0]}, metadata={"raycase": record}),
        "halves": save({"state": state.astype(np.float16)}, metadata={"raycase": record}),
        "not normal": changed(condition="a  b"),
        "a list": changed(condition=["a"]),
    }
    for name, data in bad.items():
        file.write_bytes(data)
        with pytest.raises(RequestError, match=r"x\.taught: expected a condition that `raycase teach` wrote") as error:
            Taught.load(file)
            pytest.fail(name)
        assert "\n" not in str(error.value)
