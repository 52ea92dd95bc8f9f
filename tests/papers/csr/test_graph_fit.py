"""Completing a graph by fine-tuned encoders: the loss of a batch, the temperature, learning."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raycase.papers.baselines.model import bi_encoder, tri_encoder
from raycase.papers.csr.model import csr
from raycase.papers.csr.task import read_graph
from raycase.papers.csr.train import Contrast, GraphObjective, GraphTexts, contrastive_loss
from raycase.training.encoder_fit import fit_tuned
from raycase.training.loop import restore
from raycase.training.recipe import TuneRecipe

SYSTEMS = {"bi-encoder": bi_encoder, "tri-encoder": tri_encoder, "csr": csr}


@pytest.fixture
def texts(graph):
    def of(config):
        of = read_graph(graph, "")
        return GraphTexts.of(config, [of.triples(f"{graph}/{part}.tsv", "") for part in ("train", "validation")])

    return of


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_loss_of_a_batch_is_that_of_each_vector_alone(name, tiny_model, texts):
    config = SYSTEMS[name](str(tiny_model))
    train, _ = texts(config)
    module = Contrast(config.trainable(0.0)).eval()
    batch = np.array([0, 11, 3, 20, 35])
    found = GraphObjective(config=config).batch_loss(train, TuneRecipe())(module, batch)
    graph, rows = train.triples.graph, train.triples.rows[batch]

    def unit(*texts_of):
        return F.normalize(torch.from_numpy(np.concatenate([module.system.embed(s, c) for s, c in texts_of])), dim=1)

    queries = unit(*(([graph.entities[h]], graph.relations[r]) for h, r, _ in rows)) / 0.05
    tails, heads = (unit(*(([graph.entities[row[i]]], None) for row in rows)) for i in (2, 0))
    known = {tuple(row) for row in train.triples.rows.tolist()}
    known_BB = torch.tensor([[(h, r, t) in known for t in rows[:, 2]] for h, r, _ in rows.tolist()])
    self_known_B = torch.tensor([(h, r, h) in known for h, r, _ in rows.tolist()])
    wanted = contrastive_loss(queries, tails, heads, known_BB, self_known_B)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize(
    "name", ["bi-encoder", *(pytest.param(name, marks=pytest.mark.cluster) for name in ("tri-encoder", "csr"))]
)
def test_it_learns(name, tiny_model, texts, monkeypatch):
    monkeypatch.setattr(GraphObjective, "PATIENCE", 10)
    config = SYSTEMS[name](str(tiny_model))
    data = texts(config)
    recipe = TuneRecipe(epochs=10, batch_size=12, learning_rate=3e-3, dropout=0.0)
    *_, state = fit_tuned(*data, recipe, objective := GraphObjective(config=config), seed=1)
    assert state.history[-1]["loss"] < 0.9 * state.history[0]["loss"]
    module = Contrast(config.trainable())
    restore(module, state.best)
    best = state.history[state.best_epoch - 1]
    assert objective.evaluation(*data)(module.eval())["mrr"] == pytest.approx(best["mrr"], abs=1e-4)
