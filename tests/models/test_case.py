"""CASE (eq. 1) by hand, what is remembered, what is saved, and what is refused."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch

from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import BUILT_IN, TokenSpan
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.io.schema import Reason
from raycase.models import case
from raycase.models.model_folder import write_folder
from raycase.models.pairs import SENTENCE as UNCONDITIONAL
from raycase.models.registry import resolve

SENTENCES = ["A woman in a red dress", "Two people play with a dog", "A woman in a red dress"]
CONDITIONS = ["color of the dress", "number of people", "number of people"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "minilm")
    spec = replace(ENCODERS["minilm"], source=str(folder), max_tokens=64)
    return case.CaseConfig(name=str(folder), encoder=spec, subtract=True)


@pytest.fixture(scope="module")
def encoder(config):
    return load_encoder(config.encoder, dtype=torch.float32)


@pytest.fixture
def system(config, encoder):
    return case.Case(config=config, encoder=encoder)


def with_projector(system, **options):
    """The same system with a random g."""
    torch.manual_seed(1)
    shape = ProjectorConfig(input_dim=system.config.views_dim, output_dim=7, **options)
    config = replace(system.config, projector=shape)
    return case.Case(config=config, encoder=system.encoder, projector=Projector(shape).eval())


def encode(system, sentences, conditions):
    """Vectors, refusals and counts of pairs."""
    return system.encode_prepared(system.config.prepare(sentences, conditions))


def f(system, template, sentence, condition):
    """The pooled vector of one prompt."""
    return system.encoder.pool(tiny.tokens(system.encoder.tokenize, [template.render(sentence, condition)]))[0]


def eq1(system):
    prompts = system.config.prompts[0]
    pairs = zip(SENTENCES, CONDITIONS, strict=True)
    return np.stack([f(system, prompts.pair, s, c) - f(system, prompts.base, "", c) for s, c in pairs])


@pytest.mark.parametrize("style", BUILT_IN)
@pytest.mark.parametrize("span", TokenSpan)
def test_the_vector_is_the_pair_minus_its_base(config, style, span):
    spec = replace(config.encoder, prompt=style, span=span, max_tokens=200)
    system = replace(config, encoder=spec).load(dtype=torch.float32)
    wanted = eq1(system)
    assert np.abs(wanted).max() > 0.1
    found = system.embed(SENTENCES, CONDITIONS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_without_conditions_there_is_neither_base_nor_g(system):
    projected = with_projector(system)
    wanted = np.stack([f(system, UNCONDITIONAL, s, "") for s in SENTENCES])
    np.testing.assert_allclose(projected.embed(SENTENCES, None), wanted, rtol=1e-5, atol=1e-5)
    assert projected.config.unconditional_dim == 32
    assert not projected.memory.vectors


def test_equal_pairs_are_encoded_once_and_bases_remembered(system):
    def tokens(sentence, condition):
        template = system.config.prompts[0].pair if sentence else system.config.prompts[0].base
        return len(tiny.tokens(system.encoder.tokenize, [template.render(sentence, condition)])[0].ids)

    first = encode(system, SENTENCES * 2, CONDITIONS * 2)
    assert first.distinct == 3
    pairs = sum(tokens(s, c) for s, c in zip(SENTENCES, CONDITIONS, strict=True))
    bases = tokens("", CONDITIONS[0]) + tokens("", CONDITIONS[1])
    assert first.work.tokens == pairs + bases
    np.testing.assert_array_equal(first.vectors[:3], first.vectors[3:])
    again = encode(system, SENTENCES, CONDITIONS)
    assert again.work.tokens == pairs
    np.testing.assert_allclose(again.vectors, first.vectors[:3], rtol=1e-5, atol=1e-6)
    assert encode(system, SENTENCES, None).distinct == 2


@pytest.mark.parametrize(("style", "projected"), [("cond", False), ("concat-sc", True)])
def test_a_refused_pair_leaves_the_others_as_they_are(config, style, projected):
    system = replace(config, encoder=replace(config.encoder, prompt=style)).load(dtype=torch.float32)
    if projected:
        system = with_projector(system)
    sentences = ["dress", "\u200b", "dress", "dress", "dog"]
    conditions = ["color", "color", "\u200b", "color " * 70, "color"]
    encoded = encode(system, sentences, conditions)
    assert encoded.refused == [None, Reason.EMPTY_TEXT, Reason.EMPTY_CONDITION, Reason.NO_ROOM, None]
    assert np.isnan(encoded.vectors[1:4]).all()
    good = system.embed(["dress", "dog"], ["color", "color"])
    np.testing.assert_allclose(encoded.vectors[[0, 4]], good, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"pair 1: empty text: '\\u200b' under 'color'"):
        system.embed(sentences, conditions)


VIEWS = ["concat-sc+cond", "cond+concat-sc", "sent+concat-cs:sentence+concat-cs:condition", "concat-sc:all+concat-sc"]


@pytest.mark.parametrize("prompt", VIEWS)
@pytest.mark.parametrize("subtract", [True, False])
def test_the_views_stand_side_by_side(config, encoder, prompt, subtract):
    spec = replace(config.encoder, prompt=prompt, max_tokens=200)
    read = replace(encoder, spec=spec, tokenize=load_tokenizer(spec))
    system = case.Case(config=replace(config, encoder=spec, subtract=subtract), encoder=read)
    found = system.embed(SENTENCES, CONDITIONS)
    apart = [case.Case(config=c, encoder=system.encoder) for c in system.config.views_apart]
    assert len(apart) == prompt.count("+") + 1
    assert found.shape == (3, 32 * len(apart)) == (3, system.dim)
    vectors = [view.embed(SENTENCES, CONDITIONS) for view in apart]
    np.testing.assert_allclose(found, np.concatenate(vectors, axis=1), rtol=1e-5, atol=1e-5)
    assert all(np.abs(a - b).max() > 0.1 for a, b in pairwise(vectors))


@pytest.fixture
def saved(system, tmp_path):
    """A saved system with g, and the system."""
    system = with_projector(system, layers=2, hidden=9)
    write_folder(tmp_path, system.config, system.projector, {}, "")
    return tmp_path, system


@pytest.mark.parametrize(
    "spoil",
    [
        lambda values: "{",
        lambda values: values | {"system": "other"},
        lambda values: {k: v for k, v in values.items() if k != "subtract"},
        lambda values: values | {"encoder": {**values["encoder"], "unknown": 1}},
        lambda values: values | {"projector": {"layers": 1}},
    ],
)
def test_a_spoilt_folder_is_refused(saved, spoil):
    folder, _ = saved
    file = folder / "raycase.json"
    values = spoil(json.loads(file.read_text()))
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    with pytest.raises(RequestError, match=r"raycase\.json: expected what training saved, got: "):
        resolve(str(folder))


def test_the_description_says_what_changes_the_vectors(saved, config):
    folder, system = saved
    before = resolve(str(folder)).describe()
    assert before == resolve(str(folder)).describe()
    json.dumps(before)
    next(system.projector.parameters()).data.add_(1)
    write_folder(folder, system.config, system.projector, {}, "")
    assert resolve(str(folder)).describe() != before
    assert replace(config, subtract=False).describe() != config.describe()
    for change in ({"separator": ": "}, {"prompt": "cond+sent"}):
        assert replace(config, encoder=replace(config.encoder, **change)).describe() != config.describe()
