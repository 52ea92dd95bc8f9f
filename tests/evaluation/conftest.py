"""Rated pairs, model folders on one tiny encoder, and an evaluation of them."""

import sys
from functools import partial

import numpy as np
import pytest
import tiny
from helpers import ROOT, sentences, write_csv
from nested_models import save_case

from raycase.io.rated_pairs import read_rated

sys.path.append(str(ROOT))  # benchmarks of models are tested beside the tasks
CONDITIONS = ["color of the dress", "number of people", "type of dog"]
RATINGS = [-1, 1, 2, 3, 4, 5]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A file of 40 rated pairs over 10 sentences and 3 conditions."""
    texts = sentences(10, seed=5)
    every = [(a, b, c) for i, a in enumerate(texts) for b in texts[:i] for c in CONDITIONS]
    random = np.random.default_rng(3)
    rows = [[*every[k], RATINGS[i % len(RATINGS)]] for i, k in enumerate(random.permutation(len(every))[:40])]
    columns = ["sentence1", "sentence2", "condition", "label"]
    return write_csv(tmp_path_factory.mktemp("pairs") / "pairs.csv", columns, rows)


@pytest.fixture(scope="session")
def rated_pairs(pairs):
    """The same, read."""
    return read_rated(pairs, "--data")


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a tiny bidirectional encoder of 32 dimensions."""
    return tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "minilm")


@pytest.fixture(scope="session")
def save_model(encoder):
    """Saves a model folder with a random projector on the tiny encoder."""

    def save(folder, seed=0, **options):
        save_case(folder, encoder, (), seed, **options)
        return folder

    return save


@pytest.fixture(scope="session")
def models(tmp_path_factory, save_model):
    """Two model folders on the same encoder."""
    home = tmp_path_factory.mktemp("models")
    return [save_model(home / name, seed) for seed, name in enumerate(("first", "second"))]


@pytest.fixture
def evaluation(evaluation, pairs):
    """Makes a job that evaluates models on the pairs."""
    return partial(evaluation, data=pairs)
