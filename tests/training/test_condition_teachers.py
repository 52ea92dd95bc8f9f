"""Heads averaged in one: what the teachers say, in which batches it is learned, and that it is."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import rated_rows, to_csv
from random_pairs import RECIPE, WIDTH, head_of, pairs
from uncached import open_local_runner

from raycase.data.rated import read_rated
from raycase.errors import RequestError
from raycase.systems.pair_scores import prepare_pairs, score_pairs
from raycase.systems.registry import load, resolve
from raycase.training import condition_head_fit, condition_head_job, condition_recipe
from raycase.training import job as jobs
from raycase.training.condition_head_fit import MORE_CONDITIONS, fit_condition_head, group_batches, with_pseudo_labelled
from raycase.training.condition_head_job import ConditionPoolingJob, indexed_texts
from raycase.training.condition_teachers import FURTHER, further_conditions, pseudo_labelled_pairs, taught_by_head
from raycase.training.loop import FitState

TRAINED = {"train.csv": 200, "validation.csv": 60}
DUALCSE = SimpleNamespace(known_conditions=("explicit", "implicit"))
HEADS = [head_of(seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def train():
    return pairs()


@pytest.fixture(scope="module")
def pseudo_labelled(train):
    return pseudo_labelled_pairs(train, [taught_by_head(head) for head in HEADS], 0)


def test_the_teachers_say_their_mean_cosine(train, pseudo_labelled):
    count = len(np.unique(train.groups))
    assert len(pseudo_labelled.ratings) == count * FURTHER
    for row in np.random.default_rng(0).permutation(len(pseudo_labelled.ratings))[:20]:
        said = []
        for head in HEADS:
            vectors = []
            for place in (0, 1):
                states, real = train.sentences.padded(pseudo_labelled.sentence_index[[row], place])
                condition = torch.tensor(train.conditions[pseudo_labelled.condition_index[[row]]])
                vectors.append(head(torch.from_numpy(states), torch.from_numpy(real), condition))
            said.append(torch.cosine_similarity(*vectors).item())
        assert pseudo_labelled.ratings[row] == pytest.approx(np.mean(said), abs=1e-5)
    first = np.searchsorted(train.groups, np.unique(train.groups))
    assert (pseudo_labelled.sentence_index == train.sentence_index[first].repeat(FURTHER, axis=0)).all()


def test_some_further_conditions_are_similar_to_a_rated_one():
    """Conditions in pairs that are almost equal: the most similar one of 2 i is 2 i + 1."""
    random = np.random.default_rng(0)
    base = random.standard_normal((40, WIDTH)).repeat(2, axis=0)
    conditions = (base + 1e-3 * random.standard_normal(base.shape)).astype(np.float32)
    groups = np.arange(2000) // 2
    data = replace(pairs(2000), conditions=conditions, condition_index=random.integers(0, 80, 2000), groups=groups)
    found = further_conditions(data, groups, 1000, 0)
    assert found.shape == (1000, FURTHER) and set(found.reshape(-1)) == set(range(80))
    own = data.condition_index.reshape(-1, 2)[:, :, None]
    twin = (found[:, None] == own + 1 - 2 * (own % 2)).any(1).mean()
    assert 0.02 < twin < 0.15  # 0.6 / 30 and what chance gives
    again = further_conditions(data, groups, 1000, 1)
    assert (again != found).any() and (further_conditions(data, groups, 1000, 0) == found).all()


def test_a_batch_has_taught_rows_of_its_own_pairs_of_sentences(train, pseudo_labelled):
    rated = np.flatnonzero(train.ratings != -1)
    plain = group_batches(train.groups, rated, 8, 0)
    both = with_pseudo_labelled(plain, train.groups, len(pseudo_labelled.ratings), 0)
    everything = train.then(pseudo_labelled)
    seen = set()
    for epoch in (1, 2):
        for rows, more in zip(plain(epoch), both(epoch), strict=True):
            assert (more[: len(rows)] == rows).all()
            others = more[len(rows) :]
            assert (others >= len(train.ratings)).all() and len(set(others)) == len(others)
            groups, counts = np.unique(everything.groups[others], return_counts=True)
            assert set(groups) == set(train.groups[rows]) and set(counts) == {MORE_CONDITIONS}
            seen |= set(others)
    assert len(seen) > 1.2 * MORE_CONDITIONS * len(np.unique(train.groups[rated])), "another choice in each epoch"
    assert [b.tolist() for b in both(1)] == [b.tolist() for b in both(1)]


def test_a_head_learns_what_the_teachers_say(train, pseudo_labelled, monkeypatch):
    """Wrong ratings, which count little: the head ends closer to its teachers than to the ratings."""
    monkeypatch.setattr(condition_head_fit, "DISTILLED_WEIGHT", 100.0)
    recipe = replace(RECIPE, epochs=60, patience=60, learning_rate=0.01)
    losses = [
        state.line["loss"]
        for state in fit_condition_head(train, pairs(seed=1), recipe, pseudo_labelled=pseudo_labelled)
    ]
    assert losses[-1] < 0.3 * losses[0]


def test_a_resumed_fit_equals_an_undisturbed_one(train, pseudo_labelled):
    fitting = partial(
        fit_condition_head, train, pairs(seed=1), replace(RECIPE, dropout=0.2), pseudo_labelled=pseudo_labelled
    )
    every = [FitState.from_bytes(state.to_bytes()) for state in fitting()]
    *_, resumed = fitting(state=every[0])
    assert all(torch.equal(resumed.weights[name], every[-1].weights[name]) for name in resumed.weights)


@pytest.fixture
def job(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(condition_recipe, "DISTILLED_EPOCHS", 2)
    data = {n: to_csv(rated_rows(rows, i), tmp_path / n) for i, (n, rows) in enumerate(TRAINED.items())}
    files = {"train": data["train.csv"], "validation": data["validation.csv"], "output": str(tmp_path / "out")}
    shape = {"heads": 2, "head_dim": 8, "dim": 16, "epochs": 1, "batch_size": 32}
    return ConditionPoolingJob(model=str(tiny_model), **files, **shape)


def test_a_job_with_teachers(job):
    metrics = jobs.train(replace(job, teachers=2), open_local_runner)
    first, second = metrics["teachers"]
    assert metrics["epochs"] == 2 and first != second


def test_trained_models_teach_with_heads(job, monkeypatch, capsys):
    """The head learns the mean of what the models say, by name, and the heads; what they said is kept."""
    found, make = [], pseudo_labelled_pairs
    monkeypatch.setattr(
        condition_head_job, "pseudo_labelled_pairs", lambda *a: found.append((a, make(*a))) or found[-1][1]
    )
    folders = []
    for seed in (1, 2):
        folders.append(str(job.folder.parent / f"teacher{seed}"))
        jobs.train(replace(job, output=folders[-1], seed=seed), open_local_runner)
    taught = replace(job, teachers=1, teacher_models=tuple(folders))
    metrics = jobs.train(taught, open_local_runner)
    assert (metrics["epochs"], metrics["teacher_models"], len(metrics["teachers"])) == (2, ["teacher1", "teacher2"], 1)
    [((train, [head, *_], _), pairs)] = found
    rated = read_rated(job.train, "--train")
    sentences, conditions = (texts.values for texts in indexed_texts(rated))
    rows = np.random.default_rng(0).permutation(len(pairs.ratings))[:30]
    firsts, seconds = ([sentences[i] for i in side] for side in pairs.sentence_index[rows].T)
    under = [conditions[i] for i in pairs.condition_index[rows]]
    said = [head(replace(train, **vars(pairs)))[rows]]
    for folder in folders:
        system = load(folder)
        said.append(score_pairs(system, prepare_pairs(system.config, firsts, seconds, under)).figures[:, 0])
    assert pairs.ratings[rows] == pytest.approx(np.mean(said, axis=0), abs=1e-4)
    assert len({round(float(r), 3) for r in pairs.ratings[rows]}) > 10 and not np.allclose(said[1], said[2])
    assert capsys.readouterr().err.count("scoring ") == 2
    jobs.train(replace(taught, overwrite=True), open_local_runner)
    assert "scoring " not in capsys.readouterr().err


def test_a_teacher_that_reads_no_conditions_or_is_none_is_refused_at_once(job, monkeypatch, tmp_path):
    for name, said in (("no_conditions", "expected models that read conditions, got"), ("none", "none")):
        folder = str(tmp_path / name)
        monkeypatch.setattr(
            condition_head_job, "resolve", lambda f, real=resolve: DUALCSE if f.endswith("no_conditions") else real(f)
        )
        with pytest.raises(RequestError, match=f"--teacher-models.*{said}"):
            jobs.train(replace(job, teacher_models=(folder,)), None)
