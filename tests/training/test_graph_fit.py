"""Completing a graph by fine-tuned encoders: the loss of a batch, the temperature, learning, the job, its report."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import vectors_of
from uncached import open_local_runner

import raycase
from raycase.data.graph import read_graph
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate as evaluate_task
from raycase.systems.baselines import bi_encoder, tri_encoder
from raycase.systems.csr import csr
from raycase.training.encoder_fit import fit_tuned
from raycase.training.graph_fit import Contrast, GraphObjective, GraphTexts
from raycase.training.job import train
from raycase.training.loop import restore
from raycase.training.losses import contrastive_loss
from raycase.training.rated_jobs import BiEncoderJob, CsrJob
from raycase.training.recipe import TuneRecipe

NAMES = ["dog", "woman", "dress", "bar", "people", "color", "number", "red", "blue", "green"]
SYSTEMS = {"bi-encoder": bi_encoder, "tri-encoder": tri_encoder, "csr": csr}

fine_tune = partial(train, open_runner=open_local_runner)


@pytest.fixture
def folder(tmp_path):
    """Ten entities; each is beside the next one, and is seen from the one after that."""
    ids = [f"e{i}" for i in range(10)]
    rows = [
        f"{i}\t{name}\t{name} at the {NAMES[(n * 3) % 10]}" for n, (i, name) in enumerate(zip(ids, NAMES, strict=True))
    ]
    (tmp_path / "entities.tsv").write_text("id\tname\tdefinition\n" + "\n".join(rows) + "\n")
    (tmp_path / "relations.tsv").write_text("_next\tplay with\n_seen\tred dress\n")
    train = [f"{ids[i]}\t_next\t{ids[(i + 1) % 10]}" for i in range(10)] + [
        f"{ids[i]}\t_seen\t{ids[i - 2]}" for i in range(8)
    ]
    (tmp_path / "train.tsv").write_text("\n".join(train) + "\n")
    (tmp_path / "validation.tsv").write_text(f"{ids[8]}\t_seen\t{ids[6]}\n{ids[9]}\t_seen\t{ids[7]}\n")
    return tmp_path


@pytest.fixture
def texts(folder):
    def of(config):
        graph = read_graph(folder, "")
        return GraphTexts.of(
            config, graph, [graph.triples(str(folder / f"{p}.tsv"), "") for p in ("train", "validation")]
        )

    return of


def objective_of(config):
    return GraphObjective(config=config, margin=0.02)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_loss_of_a_batch_is_that_of_each_vector_alone(name, tiny_model, folder, texts):
    config = SYSTEMS[name](str(tiny_model))
    train, _ = texts(config)
    module = Contrast(config.trainable(0.0)).eval()
    batch = np.array([0, 11, 3, 20, 35])
    found = objective_of(config).batch_loss(train, TuneRecipe())(module, batch)
    graph, rows = read_graph(folder, ""), train.triples.rows[batch]

    def unit(*texts_of):
        return F.normalize(torch.from_numpy(np.concatenate([module.system.embed(s, c) for s, c in texts_of])), dim=1)

    queries = unit(*(([graph.entities[h]], graph.relations[r]) for h, r, _ in rows)) / 0.05
    tails, heads = (unit(*(([graph.entities[row[i]]], None) for row in rows)) for i in (2, 0))
    known = {tuple(row) for row in train.triples.rows.tolist()}
    known_BB = torch.tensor([[(h, r, t) in known for t in rows[:, 2]] for h, r, _ in rows.tolist()])
    self_known_B = torch.tensor([(h, r, h) in known for h, r, _ in rows.tolist()])
    wanted = contrastive_loss(queries, tails, heads, known_BB, self_known_B, 0.02)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize(
    "name", ["bi-encoder", *(pytest.param(name, marks=pytest.mark.cluster) for name in ("tri-encoder", "csr"))]
)
def test_it_learns(name, tiny_model, texts, monkeypatch):
    monkeypatch.setattr(TuneRecipe, "PATIENCE", 10)
    config = SYSTEMS[name](str(tiny_model))
    data = texts(config)
    recipe = TuneRecipe(epochs=10, batch_size=12, learning_rate=3e-3, dropout=0.0)
    *_, state = fit_tuned(*data, recipe, objective := objective_of(config), seed=1)
    assert state.history[-1]["loss"] < 0.9 * state.history[0]["loss"]
    module = Contrast(config.trainable())
    restore(module, state.best)
    best = state.history[state.best_epoch - 1]
    assert objective.evaluation(*data)(module.eval())["mrr"] == pytest.approx(best["mrr"], abs=1e-4)


def job_of(kind, folder, tiny_model, tmp_path, **options):
    parts = {part: str(folder / f"{part}.tsv") for part in ("train", "validation")}
    output = str(tmp_path / "graph-model")
    settings = {"task": "kgc", "model": str(tiny_model), "output": output, "compute": "float32"} | parts | options
    return kind(**settings)


def test_the_job_saves_a_model_whose_report_has_its_figures(folder, tiny_model, tmp_path):
    job = job_of(CsrJob, folder, tiny_model, tmp_path, epochs=2, batch_size=12)
    metrics = fine_tune(job)
    assert metrics == json.loads(json.dumps(fine_tune(job))), "the same command does nothing"
    assert raycase.load(job.output, dtype=torch.float32).embed(["dog"], "red dress").shape == (1, 32)
    asked = EvaluateJob(
        model=(job.output,),
        data=str(folder),
        output=str(tmp_path / "report"),
        task="kgc",
        compute="float32",
        resamples=100,
    )
    report = evaluate_task(asked, vectors_of=vectors_of)
    [system] = report["systems"]
    for name in ("mrr", "hits@1", "hits@3", "hits@10"):
        assert system["figures"]["both ways"][name]["value"] == pytest.approx(metrics["validation"][name], abs=1e-3)
    assert "the true entity among all" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (BiEncoderJob, {"train": "nowhere/train.tsv"}, "nowhere/entities.tsv"),
    ],
)
def test_wrong_requests_are_refused(folder, tiny_model, tmp_path, kind, options, said):
    with pytest.raises(RequestError, match=said):
        fine_tune(job_of(kind, folder, tiny_model, tmp_path, **options))


def test_validation_triples_are_not_trained_on(folder, tiny_model, tmp_path):
    (folder / "validation.tsv").write_text("e0\t_next\te1\n")
    with pytest.raises(RequestError, match="no triple that is trained on, got 2"):
        fine_tune(job_of(CsrJob, folder, tiny_model, tmp_path))
