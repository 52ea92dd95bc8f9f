"""Condition pooling with its encoder trained along: what is trained and saved, what passes through the encoder."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import rated_rows, to_csv
from safetensors.torch import load_file
from uncached import Uncached, open_trainer

import raycase
from raycase.heads.condition_head import ConditionHead
from raycase.io.rated import read_rated
from raycase.io.vectors import cosines, pair_cosines
from raycase.training import job as jobs
from raycase.training.condition_head_fit import (
    HeadCosine,
    UnfrozenEncoder,
    fit_condition_head,
    head_pair_vectors,
    head_vectors,
)
from raycase.training.condition_head_job import ConditionPoolingJob, best_head, pair_states
from raycase.training.condition_pairs import PairTokens
from raycase.training.condition_teachers import further_pairs, pseudo_labelled_pairs
from raycase.training.loop import FitState
from raycase.training.losses import correlations

train = partial(jobs.train, open_trainer=open_trainer)
RECIPE = {"layers": (0.0, 1.0), "heads": 4, "head_dim": 16, "dim": 32, "epochs": 2, "batch_size": 32, "dropout": 0.1}
RECIPE |= {"unfreeze": True}


@pytest.fixture(scope="module")
def job(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfrozen")
    data = {
        "train": to_csv(rated_rows(100, 0), folder / "train.csv"),
        "validation": to_csv(rated_rows(30, 1), folder / "validation.csv"),
    }
    return ConditionPoolingJob(**data, **RECIPE, model=str(tiny_model), compute="float32", output=str(folder / "a"))


@pytest.fixture(scope="module")
def metrics(job):
    return train(job)


@pytest.fixture(scope="module")
def along(job):
    """The tiny encoder with a random head."""
    config = job.config()
    torch.manual_seed(0)
    head = ConditionHead(job.recipe.head(config.states_dim)).state_dict()
    return UnfrozenEncoder(config=config, head=head, compute=torch.float32)


@pytest.fixture(scope="module")
def tokens(job):
    return [PairTokens.of(job.config(), rated) for rated in job.read_parts()]


def test_the_saved_model_gives_the_reported_figures(job, metrics):
    loaded = raycase.load(job.output, dtype=torch.float32, device="cpu")
    rated = read_rated(job.validation, "")
    found = loaded.embed([*rated.sentences1, *rated.sentences2], [*rated.conditions] * 2)
    found = pair_cosines(found, np.arange(len(found)).reshape(2, -1).T)
    assert correlations(found, rated.ratings)["spearman"] == pytest.approx(metrics["validation"]["spearman"], abs=0.3)
    assert metrics["epochs"] == 3 and metrics["frozen"]["spearman"] != metrics["validation"]["spearman"]
    assert train(job) == json.loads(json.dumps(metrics)), "it runs once"


def test_all_of_the_encoder_is_trained_but_its_embeddings_of_tokens(job, metrics, tiny_model):
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (tiny_model, f"{job.output}/encoder"))
    same = {name for name in after if torch.allclose(before[name], after[name], 0, 0, equal_nan=True)}
    assert {name for name in same if "pooler" not in name} == {"embeddings.word_embeddings.weight"}
    plain = raycase.load(job.output).embed(["dog people"], None)
    assert np.abs(plain - raycase.load(f"condition-pooling:{tiny_model}").embed(["dog people"], None)).max() > 1e-3


def test_vectors_are_those_of_stored_states(job, along, tokens):
    module = HeadCosine(ConditionHead(job.recipe.head(along.config.states_dim)), along.open()).eval()
    rated = job.read_parts()[1]
    stored = pair_states(rated, along.config, Uncached(), job)
    rows = np.random.default_rng(0).permutation(len(rated))
    found, wanted = (head_pair_vectors(module.head, module.read(pairs), rows) for pairs in (tokens[1], stored))
    torch.testing.assert_close(found, wanted, rtol=0, atol=5e-3)  # stored in float16


def test_a_resumed_fit_equals_an_undisturbed_one(job, along, tokens):
    fitting = partial(fit_condition_head, *tokens, replace(job.recipe.unfrozen, epochs=3), unfrozen=along, seed=3)
    every = [FitState.from_bytes(state.to_bytes()) for state in fitting()]
    *_, resumed = fitting(state=every[0])
    assert len(every) == len(resumed.history) == 3
    found, wanted = resumed.weights, every[-1].weights
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
    assert any(name.startswith("encoder.") for name in found)


def test_with_teachers_the_encoder_learns_what_they_say_too(job, along, tokens):
    """Of further pairs, whose numbers are those of the stored states."""
    stored = pair_states(job.read_parts()[0], along.config, Uncached(), job)
    numbered = tokens[0].numbered_as(stored)
    assert (numbered.sentence_index == stored.sentence_index).all()
    for mine, others, index, former in (
        (numbered.sentences, tokens[0].sentences, numbered.sentence_index, tokens[0].sentence_index),
        (numbered.conditions, tokens[0].conditions, numbered.condition_index, tokens[0].condition_index),
    ):
        for row in (0, 7, 99):
            new, old = (np.ravel(places[row])[0] for places in (index, former))
            assert (mine.padded(np.array([new]), 0) == others.padded(np.array([old]), 0)).all()
    further = further_pairs(stored, 0)
    taught = pseudo_labelled_pairs(further, [np.ones(len(further.ratings))])
    recipe, found = replace(job.recipe.unfrozen, dropout=0.0, learning_rate=3e-3), []
    for pseudo_labelled in (None, taught):
        *_, state = fit_condition_head(numbered, tokens[1], recipe, unfrozen=along, pseudo_labelled=pseudo_labelled)
        state = replace(state, best=state.weights)
        pairs = replace(numbered, reader=along.trained(state), compute=along.compute, **vars(taught))
        head = best_head(state, job.recipe, along.config.states_dim)
        found.append(float(cosines(*head_vectors(head, pairs)).mean()))
    assert found[1] > found[0] + 0.2, found
