"""Fitting g (CASE, section 3.2): what its flags refuse, what is learned from and scored, and a task that is learned."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import fit_by, last, worst
from random_pairs import vector_pairs as pairs
from scipy.stats import pearsonr, spearmanr
from torch import nn

from raycase.commands.train import ProjectorFlags
from raycase.errors import RequestError
from raycase.heads.projector import Projector
from raycase.io.vectors import pair_cosines
from raycase.models.pairs import PairVectors
from raycase.training.projector import best_projector, pair_loss, projector_correlations
from raycase.training.recipe import Loss


def job_of(**flags):
    return ProjectorFlags(train="", validation="", output="", **flags)


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("dim", [0, -1, 2**40], "1 to 65,536"),
        ("dropout", [1.0, -0.1, math.nan], r"a share in \[0, 1\)"),
        ("learning_rate", [0.0, -1e-3, math.inf, math.nan], "a number above 0"),
        ("batch_size", [0], "at least 1"),
        ("epochs", [0], "at least 1"),
        ("nested", [(0,), (64, 512)], "dimensions below 512"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_flag(name, values, wanted):
    for value in values:
        said = f"^--{name.replace('_', '-')}: expected {wanted}, got {re.escape(str(value))}$"
        with pytest.raises(RequestError, match=said):
            job_of(**{name: value}).check()


def test_the_loss_of_a_batch_is_eq_2():
    data = pairs(ratings=(1, 2, 3, 4, 5))
    job = job_of(dim=4, layers=1)
    torch.manual_seed(0)
    g = Projector(job.shape(8)).eval()
    batch = np.array([3, 70, 8])
    total = 0.0
    for row in batch:
        x1, x2 = (torch.tensor(data.vectors[place]) for place in data.pair_index[row])
        cosine = (g(x1) @ g(x2)) / (g(x1).norm() * g(x2).norm())
        total += (cosine.item() - (data.ratings[row] - 1) / 4) ** 2
    assert pair_loss(data, job.shape(8), job.loss, g, batch).item() == pytest.approx(total / 3, rel=1e-5)


def test_the_loss_is_the_mean_over_the_nested_dimensions_and_all():
    job = job_of(dim=2, layers=0, nested=(1,))
    g = Projector(job.shape(2)).eval()
    [weight] = g.parameters()
    weight.data.copy_(torch.eye(2))
    data = PairVectors(
        vectors=np.array([[3, 4], [3, 0], [2, 2], [2, -2]], dtype=np.float32),
        pair_index=np.array([[0, 1], [2, 3]]),
        ratings=np.array([5, 1], dtype=np.float32),  # targets 1 and 0
    )
    # cosines of the first dimension: 1 and 1; of both: 9 / (5 * 3) = 0.6 and 0
    first, both = (0 + 1) / 2, (0.4**2 + 0) / 2
    assert pair_loss(data, job.shape(2), job.loss, g, np.arange(2)).item() == pytest.approx((first + both) / 2)
    alone = replace(job, nested=())
    assert pair_loss(data, alone.shape(2), job.loss, g, np.arange(2)).item() == pytest.approx(both)


def test_pairs_without_a_rating_are_not_trained_on():
    data, job = pairs(), job_of(dim=4, epochs=2, batch_size=16)
    without = data.applicable()
    assert 0 < (data.ratings == -1).sum() == len(data.ratings) - len(without.ratings)
    kept = [i for i, rating in enumerate(data.ratings) if rating != -1]
    np.testing.assert_array_equal(without.pair_index, data.pair_index[kept])
    np.testing.assert_array_equal(without.ratings, data.ratings[kept])
    fitted, wanted, rated = (
        last(fit_by(job, train, pairs(30, 1))) for train in (data, without, replace(data, ratings=np.abs(data.ratings)))
    )
    assert worst(fitted.weights, wanted.weights) == 0
    assert fitted.line == wanted.line | {name: fitted.line[name] for name in ("seconds", "mib")}
    assert worst(fitted.weights, rated.weights) > 0


def test_figures_over_all_pairs_and_over_those_with_a_rating():
    data = pairs()
    rated = data.ratings != -1
    first, second = data.vectors[data.pair_index].astype(np.float64).transpose(1, 0, 2)
    scores = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    vectors = data.vectors[:, :2]
    nested = 100 * spearmanr(pair_cosines(vectors, data.pair_index), data.ratings).statistic
    assert projector_correlations(nn.Identity(), data, (2,))["spearman_2"] == pytest.approx(nested)
    found = projector_correlations(nn.Identity(), data)
    assert found == {
        "spearman": pytest.approx(100 * spearmanr(scores, data.ratings).statistic),
        "pearson": pytest.approx(100 * pearsonr(scores, data.ratings).statistic),
        "spearman_rated": pytest.approx(100 * spearmanr(scores[rated], data.ratings[rated]).statistic),
    }
    assert found["spearman"] != pytest.approx(found["spearman_rated"], abs=0.01)


def planted(rows, seed):
    """Pairs rated by the cosine of two dimensions, which ten louder ones drown; it is the target of g's cosine."""
    random = np.random.default_rng(seed)
    signal = random.standard_normal((rows, 2, 2))
    noise = 2 * random.standard_normal((rows, 2, 10))
    cosines = (signal[:, 0] * signal[:, 1]).sum(-1) / np.linalg.norm(signal, axis=-1).prod(-1)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]  # nothing lies along an axis
    vectors = np.concatenate([signal, noise], axis=-1).reshape(-1, 12) @ turn
    return PairVectors(
        vectors=vectors.astype(np.float32),
        pair_index=np.arange(2 * rows).reshape(-1, 2),
        ratings=(1 + 4 * cosines).astype(np.float32),
    )


@pytest.mark.parametrize("loss", Loss)
def test_similarity_hidden_in_a_few_dimensions_is_learned(loss):
    train, validation, held_out = (planted(rows, seed) for seed, rows in enumerate((1500, 300, 300), start=1))
    assert projector_correlations(nn.Identity(), held_out)["spearman"] < 30
    shape = {"dim": 12, "layers": 0, "dropout": 0.0}
    job = job_of(**shape, loss=loss, learning_rate=0.02, batch_size=100, epochs=12)
    state = last(fit_by(job, train, validation))
    assert projector_correlations(best_projector(state, job.shape(12)), held_out)["spearman"] > 95
