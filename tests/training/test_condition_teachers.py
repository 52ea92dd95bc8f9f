"""Heads averaged in one: what the teachers give, in which batches it is learned, and that it is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch
from helpers import fit_by, rated_rows, to_csv, train_here
from random_pairs import JOB, head_of, learned, pairs

from raycase.commands.train import ConditionPoolingFlags
from raycase.errors import RequestError
from raycase.io.rated_pairs import read_rated
from raycase.io.vectors import cosines
from raycase.models.configs import score_pairs
from raycase.models.registry import load
from raycase.training import condition_head, teachers
from raycase.training.head_pairs import head_vectors, indexed_texts
from raycase.training.teachers import FURTHER, further_pairs, on_the_scale_of_ratings, pseudo_labelled_pairs

TRAINED = {"train.csv": 100, "validation.csv": 40}
HEADS = [head_of(seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def train():
    return pairs()


@pytest.fixture(scope="module")
def pseudo_labelled(train):
    further = further_pairs(train, 0)
    under = replace(train, **vars(further))
    return pseudo_labelled_pairs(further, [cosines(*head_vectors(head, under)) for head in HEADS])


def test_the_teachers_give_their_mean_cosine(train, pseudo_labelled):
    count = len(np.unique(train.groups))
    assert len(pseudo_labelled.ratings) == count * FURTHER
    for row in np.random.default_rng(0).permutation(len(pseudo_labelled.ratings))[:20]:
        given = []
        for head in HEADS:
            vectors = []
            for place in (0, 1):
                states, real = train.sentences.padded(pseudo_labelled.sentence_index[[row], place])
                condition = torch.tensor(train.conditions[pseudo_labelled.condition_index[[row]]])
                vectors.append(small.pooled(head, torch.from_numpy(states), torch.from_numpy(real), condition))
            given.append(torch.cosine_similarity(*vectors).item())
        assert pseudo_labelled.ratings[row] == pytest.approx(np.mean(given), abs=1e-5)
    first = np.searchsorted(train.groups, np.unique(train.groups))
    assert (pseudo_labelled.sentence_index == train.sentence_index[first].repeat(FURTHER, axis=0)).all()


def test_a_head_learns_what_the_teachers_give(train, pseudo_labelled, monkeypatch):
    """Wrong ratings, which count little: the head ends closer to its teachers than to the ratings."""
    monkeypatch.setattr(condition_head, "DISTILLED_WEIGHT", 100.0)
    job = replace(JOB, epochs=25, learning_rate=0.02)
    states = fit_by(job, learned(train), pairs(seed=1), pseudo_labelled)
    losses = [state.line["loss"] for state in states]
    assert losses[-1] < 0.3 * losses[0]


@pytest.fixture
def job(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(condition_head, "DISTILLED_EPOCHS", 2)
    data = {n: to_csv(rated_rows(rows, i), tmp_path / n) for i, (n, rows) in enumerate(TRAINED.items())}
    files = {"train": data["train.csv"], "validation": data["validation.csv"], "output": str(tmp_path / "out")}
    shape = {"heads": 2, "head_dim": 8, "dim": 16, "epochs": 1, "batch_size": 32}
    return ConditionPoolingFlags(model=str(tiny_model), **files, **shape)


def test_trained_models_teach_with_heads(job, monkeypatch, capsys):
    """The head learns the mean of what models, on the scale of ratings, and heads give; the models' scores are kept."""
    job = replace(job, compute="float32")
    found, make = [], pseudo_labelled_pairs
    monkeypatch.setattr(condition_head, "pseudo_labelled_pairs", lambda *a: found.append((a, make(*a))) or found[-1][1])
    folders = []
    for seed, layers in ((1, (0.5,)), (2, job.layers)):
        folders.append(str(job.folder.parent / f"teacher{seed}"))
        train_here(replace(job, output=folders[-1], seed=seed, layers=layers))
    taught = replace(job, teachers=1, teacher_models=tuple(folders))
    metrics = train_here(taught)
    assert (metrics["epochs"], len(metrics["teachers"])) == (2, 1)
    assert [model["name"] for model in metrics["teacher_models"]] == ["teacher1", "teacher2"]
    assert "learned what these models say, too: teacher1, teacher2." in (job.folder / "README.md").read_text()
    [((_, given), pairs)] = found
    assert pairs.ratings == pytest.approx(np.mean(given, axis=0), abs=1e-6) and len(given) == 3
    rated = read_rated(job.train, "--train")
    sentences, conditions = (texts.values for texts in indexed_texts(rated))
    rows = np.random.default_rng(0).permutation(len(pairs.ratings))[:30]
    firsts, seconds = ([sentences[i] for i in side] for side in pairs.sentence_index[rows].T)
    under = [conditions[i] for i in pairs.condition_index[rows]]
    for folder, giving in zip(folders, given, strict=False):
        system = load(folder, dtype=torch.float32)
        texts = [[*rated.sentences1, *firsts], [*rated.sentences2, *seconds], [*rated.conditions, *under]]
        of_rated, scores = np.split(score_pairs(system, system.config.prepare_pairs(*texts)).vectors[:, 0], [100])
        applies = rated.ratings != -1
        slope, offset = np.polyfit(of_rated[applies], (rated.ratings[applies] - 1) / 4, 1)
        assert giving[rows] == pytest.approx(slope * scores + offset, abs=1e-3)
        assert np.ptp(giving) > 0.01
    assert capsys.readouterr().err.count("Scoring ") == 2
    train_here(replace(taught, overwrite=True))
    assert "Scoring " not in capsys.readouterr().err
    twice = replace(taught, teacher_models=(folders[0], *folders))  # other weights, so no fit to take up
    with pytest.raises(RequestError, match="got another"):
        train_here(twice)


def test_scores_of_any_scale_become_ratings():
    """Worked by hand: 1, 3 and 5 are 0, 0.5 and 1, which the model calls 30, 20 and 10."""
    found = on_the_scale_of_ratings(np.array([10.0, 15.0, 40.0]), np.array([30.0, 20.0, 10.0]), np.array([1, 3, 5]))
    assert found == pytest.approx([1.0, 0.75, -0.5])
    with pytest.raises(RequestError, match="a model that distinguishes pairs"):
        on_the_scale_of_ratings(np.ones(2), np.ones(3), np.array([1, 3, 5]))


def test_what_is_no_teacher_is_refused_at_once(job, monkeypatch, tmp_path):
    def refused(given, *models, **flags):
        with pytest.raises(RequestError, match=given):
            train_here(replace(job, teacher_models=models, **flags))

    trained = str(tmp_path / "trained")
    train_here(replace(job, output=trained))
    refused("expected a model folder", str(tmp_path / "none"))
    refused("expected trained models that read conditions", job.model)
    refused("another place than --teacher-models", trained, output=trained, overwrite=True)
    config = SimpleNamespace(folder="x", known_conditions=("explicit", "implicit"))
    monkeypatch.setattr(teachers, "resolve", lambda _: config)
    refused("expected trained models that read conditions", "dualcse")
