"""Fitting the head of condition pooling on random states: batches, the loss by hand, nested dimensions, figures; and by
teachers: what they give, and that it is learned."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch
from helpers import fit_by, last, rated_rows, to_csv, train_here, worst
from random_pairs import JOB, WIDTH, head_of, learned, pairs

from raycase.commands.train import ConditionPoolingFlags
from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionHead, ZeroShotHead
from raycase.io.rated_pairs import read_rated
from raycase.io.vectors import cosines
from raycase.models.configs import score_pairs
from raycase.models.registry import load
from raycase.tokens.stored import StoredStates
from raycase.training import condition_head, head_pairs
from raycase.training.condition_head import head_batches
from raycase.training.head_pairs import (
    FURTHER,
    TOKENS_AT_ONCE,
    further_pairs,
    head_correlations,
    head_pair_vectors,
    head_vectors,
    indexed_texts,
    on_the_scale_of_ratings,
    pseudo_labelled_pairs,
)


def by_row(head, data, rows):
    """Vectors of both sentences of each pair, one at a time: (2, B, D)."""
    found = []
    for place in (0, 1):
        for row in rows:
            states, real = data.sentences.padded(data.sentence_index[[row], place])
            condition = torch.tensor(data.conditions[data.condition_index[[row]]])
            found.append(small.pooled(head, torch.from_numpy(states), torch.from_numpy(real), condition)[0])
    return torch.stack(found).unflatten(0, (2, -1))


@pytest.mark.parametrize("head", [head_of(), ZeroShotHead(WIDTH)], ids=["trained", "without training"])
def test_the_vectors_of_a_batch_are_those_of_each_pair(head):
    """Though each sentence and each condition goes through the head once, in parts of similar length."""
    data = pairs(600, sentences=500, tokens=40)
    rows = np.random.default_rng(1).permutation(600)[:500]
    assert data.sentences.counts.sum() > TOKENS_AT_ONCE
    found = head_pair_vectors(head, data, rows).unflatten(0, (2, -1))
    torch.testing.assert_close(found[:, ::25], by_row(head, data, rows[::25]))
    first, second = head_vectors(head, data)
    assert first.shape == (600, head.output_dim)
    np.testing.assert_allclose(np.stack([first[rows], second[rows]]), found.detach(), atol=1e-5)


def test_a_sentence_under_a_condition_is_pooled_once_however_many_pairs_have_it():
    head, data = head_of(), pairs(600, sentences=5)
    pooled = []
    found = head_pair_vectors(
        head, data, np.arange(600), lambda *both: pooled.append(len(both[0].real)) or head.pool(*both)
    )
    assert sum(pooled) == len({*zip(data.sentence_index.T.reshape(-1), np.tile(data.condition_index, 2), strict=True)})
    torch.testing.assert_close(found.unflatten(0, (2, -1))[:, ::100], by_row(head, data, np.arange(0, 600, 100)))


def test_the_same_fit_gives_the_same_weights_to_the_last_bit():
    """With threads, which else add gradients in any order."""
    torch.set_num_threads(2)
    data, job = pairs(4000, sentences=60, tokens=40), replace(JOB, epochs=2, batch_size=1000)
    first, second = (last(fit_by(job, learned(data), data)).weights for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_rated_pair_once_an_epoch_and_pairs_of_the_same_sentences_together():
    data, rated = replace(pairs(), groups=np.arange(40) // 4), np.delete(np.arange(40), [0, 5, 6])
    orders = set()
    for seed, epoch in ((0, 1), (0, 2), (1, 1)):
        found = head_batches(learned(data), rated, 9, seed, 0, epoch)
        assert [len(batch) for batch in found] == [9, 9, 9, 9, 1]
        order = np.concatenate(found)
        assert sorted(order) == rated.tolist()
        assert (np.diff(data.groups[order]) != 0).sum() == 9
        assert order.tolist() == np.concatenate(head_batches(learned(data), rated, 9, seed, 0, epoch)).tolist()
        orders.add(tuple(order))
    assert len(orders) == 3


@pytest.mark.parametrize("nested", [(), (4, 2)])
def test_the_loss_is_that_of_the_cosines_at_every_dimension(nested):
    """Of one epoch of one batch, before anything is learned."""
    job = replace(JOB, nested=nested, batch_size=100, epochs=1, activation="gelu", seed=3)
    data = pairs(ratings=(1, 2, 3, 4, 5))
    torch.manual_seed(3)
    first, second = by_row(ConditionHead(job.shape(WIDTH)).eval(), data, np.arange(40)).detach()
    wanted = [
        (torch.cosine_similarity(first[:, :d], second[:, :d]) - (torch.tensor(data.ratings) - 1) / 4).square().mean()
        for d in (6, *nested)
    ]
    state = next(fit_by(job, learned(data), pairs(seed=1)))
    assert state.line["loss"] == pytest.approx(float(sum(wanted)) / len(wanted), rel=1e-5)


def test_pairs_labelled_minus_1_are_not_trained_on_but_scored():
    """A sentence without numbers, in pairs labelled -1 alone, spoils nothing."""
    data = pairs()
    labelled = data.ratings == -1
    assert 0 < labelled.sum() < 40
    states = data.sentences
    spoiled = StoredStates(
        flat=np.concatenate([states.flat, np.full((1, WIDTH), np.nan, np.float16)]),
        offsets=np.append(states.offsets, states.offsets[-1] + 1),
    )
    index = np.where(labelled[:, None], len(states), data.sentence_index)
    other = replace(data, sentences=spoiled, sentence_index=index)
    found, wanted = (last(fit_by(JOB, learned(d), pairs(seed=1))) for d in (other, data))
    assert worst(found.weights, wanted.weights) == 0
    rated = replace(data, ratings=np.where(labelled, 1, data.ratings).astype(np.float32))
    assert head_correlations(head_of(), data)["spearman"] != head_correlations(head_of(), rated)["spearman"]


# ------------------------------------------------------------------------------------------------------- teachers

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
    rows, under = np.random.default_rng(0).permutation(count * FURTHER)[:20], replace(train, **vars(pseudo_labelled))
    given = [torch.cosine_similarity(*by_row(head, under, rows), dim=-1).detach().numpy() for head in HEADS]
    assert pseudo_labelled.ratings[rows] == pytest.approx(np.mean(given, axis=0), abs=1e-5)
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
    monkeypatch.setattr(head_pairs, "resolve", lambda _: config)
    refused("expected trained models that read conditions", "dualcse")
