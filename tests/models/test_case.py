"""CASE (eq. 1) by hand, what is remembered and refused; the folder that training leaves: read back, cut; its card."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch
from nested_models import NESTED, SAVE

import raycase
from raycase.encoder.loading import load_encoder
from raycase.encoder.model_files import MODEL_FILE
from raycase.encoder.prompts import BUILT_IN, TokenSpan
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.heads.projector import WEIGHTS, Projector, ProjectorConfig
from raycase.io.schema import Reason
from raycase.models import case, model_folder
from raycase.models.configs import sentence_encoder
from raycase.models.model_folder import CARD, METRICS, open_model_folder, write_folder
from raycase.models.pairs import SENTENCE as UNCONDITIONAL
from raycase.models.registry import resolve
from raycase.training.procedure import case_card

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


def test_a_refused_pair_leaves_the_others_as_they_are(system):
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


@pytest.mark.parametrize(("prompt", "subtract"), [("concat-sc+cond", True), ("sent+concat-cs:sentence+cond", False)])
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
    assert json.dumps(before) == json.dumps(resolve(str(folder)).describe())
    next(system.projector.parameters()).data.add_(1)
    write_folder(folder, system.config, system.projector, {}, "")
    assert resolve(str(folder)).describe() != before
    assert replace(config, subtract=False).describe() != config.describe()
    for change in ({"separator": ": "}, {"prompt": "cond+sent"}):
        assert replace(config, encoder=replace(config.encoder, **change)).describe() != config.describe()


METRICS_OF = {
    "history": [],
    "validation": {"loss": 0.08, "spearman": 61.234, "pearson": 58.767, "spearman_rated": 70.005},
    "zero_shot": {"spearman": 41.119, "pearson": 40.0, "spearman_rated": 45.5},
    **{"best_epoch": 17, "epochs": 27, "seed": 31, "workers": 2, "seconds": 98.7},
    "recipe": {"dim": 5, "layers": 1, "loss": "squared", "learning_rate": 0.00123},
    "data": {
        "train": {"file": "learn.csv", "rows": 11342, "not_applicable": 1201, "sha256": "a1" * 32},
        "validation": {"file": "choose.csv", "rows": 2834, "not_applicable": 303, "sha256": "b2" * 32},
    },
    "provenance": {
        "command": "python jobs/train.py case --train 'learn.csv'",
        "commit": "1234abc",
        "versions": {"raycase": "0.1.0"},
        "machine": "a processor, 8 cores, 64 GiB",
        "date": "2025-01-02T03:04:05+00:00",
    },
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A tiny encoder, read in two ways."""
    source = tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "minilm")
    return replace(ENCODERS["minilm"], source=str(source), max_tokens=200, prompt="concat-sc+cond")


def model(spec, **options):
    """The configuration and g of a trained system."""
    torch.manual_seed(2)
    shape = ProjectorConfig(input_dim=64, output_dim=5, **options)
    config = case.CaseConfig(name="tiny", encoder=spec, subtract=True, projector=shape)
    return config, Projector(shape).eval()


def write(folder, spec, fingerprint="one", metrics=METRICS_OF, **options):
    config, projector = model(spec, **options)
    metrics = metrics | {"fingerprint": fingerprint}
    write_folder(folder, config, projector, metrics, case_card(folder.name, config, metrics))
    return folder


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_what_is_written_is_what_is_loaded(tmp_path, spec):
    options = {"layers": 2, "hidden": 6, "dropout": 0.2}
    folder, (config, projector) = write(tmp_path / "new" / "model", spec, **options), model(spec, **options)
    assert sorted(contents(folder)) == sorted([MODEL_FILE, METRICS, CARD, WEIGHTS])
    found = resolve(str(folder))
    assert (found.encoder, found.subtract, found.projector) == (config.encoder, True, projector.config)
    assert found.dim == 5
    trained = case.Case(config=config, encoder=load_encoder(spec, dtype=torch.float32), projector=projector)
    sentences, conditions = ["A woman in a red dress", "Two people"], ["color of the dress", "number of people"]
    vectors = raycase.load(str(folder), dtype=torch.float32).embed(sentences, conditions)
    assert vectors.shape == (2, 5)
    np.testing.assert_array_equal(vectors, trained.embed(sentences, conditions))


@pytest.mark.parametrize("before", [False, True])
def test_without_its_last_file_it_is_no_model(tmp_path, spec, monkeypatch, before):
    """Killed before the weights are whole: neither the new model nor half of the old one is there."""
    folder = tmp_path / "model"
    if before:
        write(folder, spec, "old")

    def killed(projector, file):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_folder, "save_weights", killed)
    with pytest.raises(KeyboardInterrupt):
        write(folder, spec, "new")
    assert sorted(contents(folder)) == sorted([METRICS, CARD, WEIGHTS])
    with pytest.raises(RequestError):
        resolve(str(folder))
    assert open_model_folder(folder, "new") is None  # the same command trains again
    with pytest.raises(RequestError, match="--output"):
        open_model_folder(folder, "old")
    monkeypatch.undo()
    write(folder, spec, "new")
    assert open_model_folder(folder, "new")["fingerprint"] == "new"


def table(card):
    """The rows of every table of two columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_the_card_has_the_figures_of_the_metrics_and_what_the_model_is(tmp_path, spec):
    options = {"layers": 2, "hidden": 6, "dropout": 0.25}
    card = (write(tmp_path / "my-model", spec, **options) / CARD).read_text(encoding="utf-8")
    rows = table(card)
    assert (rows["spearman"], rows["pearson"]) == ("61.23", "58.77")
    assert rows["spearman, the same vectors without projector"] == "41.12"
    assert {name: rows[name] for name in METRICS_OF["recipe"]} == {k: str(v) for k, v in METRICS_OF["recipe"].items()}
    assert (rows["seed"], rows["workers"]) == ("31", "2") and card.startswith("# my-model\n")
    wanted = ["epoch 17 of 27", "python jobs/train.py case --train 'learn.csv'", "1234abc", "98.7 s", "8 cores"]
    wanted += [f"| train | learn.csv | 11342 | `{'a1' * 8}` |", model(spec, **options)[0].describe()["weights"]]
    assert [value for value in wanted if value not in card] == []
    # of many files, and of a long command
    data = {str(n): {"file": f"{n}.csv", "rows": 10, "sha256": "a1" * 32} for n in range(6)}
    command = "python jobs/train.py case --train " + "learn.csv " * 60
    metrics = METRICS_OF | {"data": data, "provenance": METRICS_OF["provenance"] | {"command": command}}
    card = (write(tmp_path / "model", spec, metrics=metrics) / CARD).read_text(encoding="utf-8")
    assert "| 3 | 3.csv | 10 |" in card and "| 2 more | | 20 | |" in card and "4.csv" not in card
    assert card.count("learn.csv") < 30 and " learn.csv ...\n" in card


TEXTS = ["a red dress", "two people play with a dog", "two people play with a dog"]
ASKED = ["color", "number of people", "color"]


@pytest.fixture(scope="module", params=SAVE)
def folder(request, tmp_path_factory, tiny_model):
    return SAVE[request.param](tmp_path_factory.mktemp(request.param), tiny_model)


@pytest.mark.parametrize("dim", NESTED)
def test_a_cut_gives_the_first_columns_and_leaves_plain_vectors_whole(folder, dim):
    whole, cut = (raycase.load(folder, dtype=torch.float32, dim=d) for d in (None, dim))
    vectors = whole.embed(TEXTS, ASKED)
    assert (whole.dim, cut.dim, cut.config.unconditional_dim) == (8, dim, 32)
    assert vectors.shape == (3, 8) and vectors.std() > 0.01
    np.testing.assert_allclose(cut.embed(TEXTS, ASKED), vectors[:, :dim], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(cut.embed(TEXTS, None), whole.embed(TEXTS, None))


@pytest.mark.parametrize("dim", [0, 3, 8])
def test_a_dimension_that_was_not_trained_is_refused(folder, dim):
    with pytest.raises(RequestError, match=rf"^dim: expected .* {folder} was trained with .2, 4.*, got {dim};"):
        raycase.load(folder, dim=dim)


def test_a_model_without_nested_dimensions_is_not_cut(tmp_path, tiny_model):
    folders = {system: save(tmp_path / system, tiny_model, nested=()) for system, save in SAVE.items()}
    tuned = sentence_encoder(str(tiny_model), pooling="mean").trainable()
    tuned.save(tmp_path / "tuned")
    for name in (*folders.values(), str(tmp_path / "tuned"), "condition-pooling:minilm"):
        with pytest.raises(RequestError, match=rf"^--dim: expected .* {name} was trained with .it has none., got 4"):
            resolve(name, dim=4)
    with pytest.raises(RequestError, match=r"^--dim: .*it has none"):
        resolve(str(tiny_model), prompt="concat-sc", pooling="mean", dim=4)
