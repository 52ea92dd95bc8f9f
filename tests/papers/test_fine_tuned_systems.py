"""What holds for every fine-tuned system: training and embedding agree, and a saved folder loads as what was saved."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from small import EVERY, SENTENCES, close, system

import raycase
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.io.schema import Reason
from raycase.models.configs import EmbedderConfig, score_pairs, sentence_encoder
from raycase.models.fine_tuned import pair_scores
from raycase.models.registry import resolve
from raycase.papers.baselines import Compose
from raycase.papers.baselines.model import TriEncoderConfig, bi_encoder, cross_encoder, lora
from raycase.papers.csr import Asks, Router
from raycase.papers.csr.model import csr
from raycase.papers.dualcse import DualCseForm
from raycase.papers.dualcse.model import dualcse
from raycase.papers.mixsp.model import mixsp

CONCAT = {"prompt": "concat-cs", "pooling": Pooling.MEAN}
EMBED = {
    "bi": bi_encoder,
    "bi of the condition": lambda model: bi_encoder(model, prompt="concat-sc:condition"),
    "tri": TriEncoderConfig.untrained,
    "tri concat": lambda model: TriEncoderConfig.untrained(model, compose=Compose.CONCAT, pooling=Pooling.CLS),
    "csr": csr,
    "csr hidden": lambda model: csr(model, router=Router.HIDDEN, asks=Asks.WORDS, routed=2),
    "lora": lambda model: lora(model, rank=4, **CONCAT),
}
SYSTEMS = EMBED | {
    "cross": cross_encoder,
    "dualcse": dualcse,
    "dualcse bi": lambda model: dualcse(model, form=DualCseForm.BI),
    "mixsp": mixsp,
    "sentence": sentence_encoder,
}


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """By name: the figures of a system whose weights were changed, and the folder that it was saved in."""
    made = {}

    def save(name, seed=0):
        if (name, seed) not in made:
            system = small.disturb(SYSTEMS[name](bert).trainable(), seed).eval()
            found = small.figures(system)
            folder = tmp_path_factory.mktemp("trained") / "model"
            system.save(folder)
            made[name, seed] = found, folder
        return made[name, seed]

    return save


@pytest.mark.parametrize("name", EMBED)
def test_a_score_of_training_is_the_cosine_under_the_condition(bert, name):
    config, rated = EMBED[name](bert), small.rated()
    module = pair_scores(small.disturb(config.trainable(dropout=0.0), scale=0.02).eval())
    first, second = (module.system.embed(s, rated.conditions) for s in (rated.sentences1, rated.sentences2))
    wanted = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    texts = config.rated(rated)
    close(module.scores(texts), wanted)
    rows = np.array([5, 0, 5, 17])
    close(module(texts.take(rows)).detach(), wanted[rows])


@pytest.mark.parametrize("name", EMBED)
def test_a_pair_that_is_refused_leaves_the_others_and_a_long_one_is_cut(bert, name):
    config = EMBED[name](bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=16))
    loaded = system(config)
    pairs = [EVERY[0], ("\u200b", "dog"), ("a dog " * 20, "dog"), (SENTENCES[0], " "), EVERY[0], ("\u200b", "people")]
    found = loaded.encode_prepared(config.prepare(*map(list, zip(*pairs, strict=True))))
    empty = Reason.EMPTY_TEXT
    assert found.refused == [None, empty, None, Reason.EMPTY_CONDITION, None, empty]
    assert found.truncated.tolist() == [False, False, True, False, False, False]
    assert np.isnan(found.vectors[[1, 3, 5]]).all()
    close(found.vectors[[0, 4]], small.vectors(loaded, [EVERY[0]] * 2), atol=5e-6)
    none = loaded.encode_prepared(config.prepare(["\u200b", " "], ["dog", "dog"]))
    assert none.refused == [empty] * 2 and none.vectors.shape == (2, config.dim)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_saved_system_is_what_it_was(trained, bert, name):
    wanted, folder = trained(name)
    loaded = raycase.load(str(folder), dtype=torch.float32)
    close(small.figures(loaded), wanted, atol=5e-6)
    assert not np.allclose(small.figures(system(SYSTEMS[name](bert))), wanted, atol=1e-3)
    kept = SYSTEMS[name](bert)
    assert (loaded.config.SYSTEM, loaded.config.label) == (kept.SYSTEM, kept.label)
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in kept.load().parameters())
    assert json.loads((folder / "raycase.json").read_text())["system"] == kept.SYSTEM
    assert isinstance(loaded.config, EmbedderConfig) == (name not in ("cross", "mixsp"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_description_goes_with_the_weights_and_not_with_the_place(trained, bert, name, tmp_path):
    _, folder = trained(name)
    described = resolve(str(folder)).describe()
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert resolve(str(tmp_path / "elsewhere")).describe() == described
    assert resolve(str(trained(name, seed=1)[1])).describe() != described
    assert SYSTEMS[name](bert).describe() != described
    assert str(folder) not in json.dumps(described)
    json.dumps(described)


def test_a_trained_model_is_no_encoder_to_begin_with_but_its_encoder_is(trained):
    _, folder = trained("csr")
    for begin in (bi_encoder, TriEncoderConfig.untrained, cross_encoder, csr):
        with pytest.raises(RequestError, match=f"got the trained model {folder}; its encoder is {folder}/encoder$"):
            begin(str(folder))
        begin(str(folder / "encoder"))


def scored(system, firsts, seconds, conditions):
    under = conditions if system.config.known_conditions is None else None
    return score_pairs(system, system.config.prepare_pairs(firsts, seconds, under))


@pytest.mark.parametrize(("name", "figures"), [("bi", 1), ("cross", 1), ("dualcse", 3), ("mixsp", 3)])
def test_a_pair_that_is_refused_has_no_score_and_equal_pairs_are_scored_once(bert, name, figures):
    loaded = system(SYSTEMS[name](bert))
    firsts, seconds = ["a dog", "a dog", "a dog", "a dog"], ["people", " ", "people", "a bar " * 900]
    found = scored(loaded, firsts, seconds, ["number"] * 4)
    assert found.vectors.shape == (4, figures) and found.distinct == 3
    assert np.isnan(found.vectors).any(axis=1).tolist() == [False, True, False, False]
    assert np.array_equal(found.vectors[0], found.vectors[2])
    assert [str(reason) for reason in found.refused] == ["None", "empty text", "None", "None"]
    assert found.truncated.tolist() == [False, False, False, True]
    assert found.work.tokens > 0
    none = scored(loaded, [], [], [])
    assert (none.vectors.shape, none.refused, none.distinct) == ((0, figures), [], 0)
