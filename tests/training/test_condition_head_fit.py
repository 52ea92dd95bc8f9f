"""Fitting the head of condition pooling on random states: vectors, batches, and the loss by hand."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from helpers import fit_by, last, worst
from random_pairs import JOB, WIDTH, column, head_of, learned, pairs

from raycase.heads.condition_head import ConditionHead, ZeroShotHead
from raycase.tokens.stored import StoredStates
from raycase.training import condition_head
from raycase.training.condition_head import HeadBatch, head_batches, head_loss
from raycase.training.head_states import EVALUATED_AT_ONCE, TOKENS_AT_ONCE, all_vectors, head_correlations, head_vectors
from raycase.training.label_batches import LabelBatch
from raycase.training.loop import FitState
from raycase.training.recipe import Loss


def one_by_one(head, states, under):
    """Vectors of texts, each under a condition, one at a time."""
    found = []
    for sentence, condition in zip(*under, strict=True):
        states_TW, real = states.sentences.padded(np.array([sentence]))
        asked = torch.tensor(states.conditions[[condition]])
        found.append(small.pooled(head, torch.from_numpy(states_TW), torch.from_numpy(real), asked)[0])
    return torch.stack(found)


def some(under, rows):
    """Some of texts, each under a condition."""
    return tuple(part[rows] for part in under)


@pytest.mark.parametrize("head", [small.disturb(head_of()), ZeroShotHead(WIDTH)], ids=["trained", "without training"])
def test_the_vectors_of_a_batch_are_those_of_each_pair(head):
    """Though each sentence and each condition goes through the head once, in parts of similar length."""
    data = pairs(1100, sentences=500, tokens=40)
    rows = np.random.default_rng(1).permutation(1100)[:500]
    assert data.states.sentences.counts.sum() > TOKENS_AT_ONCE and 2 * len(data) > EVALUATED_AT_ONCE
    under = data.under(rows)
    assert under[0].tolist() == [*data.sentence_index[rows, 0], *data.sentence_index[rows, 1]]
    assert under[1].tolist() == [*data.condition_index[rows]] * 2
    found = head_vectors(head, data.states, under)
    torch.testing.assert_close(found[::25], one_by_one(head, data.states, some(under, slice(None, None, 25))))
    every = all_vectors(head, data.states, data.under())
    assert every.shape == (2200, head.output_dim)
    np.testing.assert_allclose(every[np.append(rows, 1100 + rows)], found.detach(), atol=1e-5)


def test_a_sentence_under_a_condition_is_pooled_once_however_many_pairs_have_it():
    head, data = head_of(), pairs(600, sentences=5)
    pooled, under = [], data.under()
    found = head_vectors(head, data.states, under, lambda *both: pooled.append(len(both[0].real)) or head.pool(*both))
    assert sum(pooled) == len({*zip(*under, strict=True)})
    rows = np.arange(0, 1200, 100)
    torch.testing.assert_close(found[rows], one_by_one(head, data.states, some(under, rows)))


def test_products_in_bfloat16_give_nearly_the_same_vectors():
    """As 32-bit numbers, and not where the encoder computes in 32 bits."""
    head, data = small.disturb(head_of()), pairs()
    found, wanted = (head_vectors(head, data.states, data.under(), bf16=bf16).detach() for bf16 in (True, False))
    assert found.dtype == torch.float32 and not torch.equal(found, wanted)
    assert torch.cosine_similarity(found, wanted).min() > 0.999
    assert not replace(JOB, compute="float32").training().on(gpu=False).bf16


def test_with_rated_pairs_and_labelled_texts_the_last_epoch_counts():
    """Else it is the best one; where it counts, no fit stops before."""
    history = [{"epoch": 1, "spearman": 2.0}, {"epoch": 2, "spearman": 1.0}]
    taken = []

    def fit(recipe, learner, *data):
        taken.append(recipe.patience)
        return FitState(weights={"w": 2}, best={"w": 1}, moments={}, history=history, select=recipe.select)

    for labelled, epoch in (((), 1), (("c.csv",), 2)):
        job = replace(JOB, train="a.csv", validation="b.csv", labelled=labelled, epochs=30)
        state = job.training().fit_all(fit, (), (), None)
        assert (state.best_epoch, state.best) == (epoch, {"w": epoch})
    assert taken == [5, 30]


def test_the_same_fit_gives_the_same_weights_to_the_last_bit(monkeypatch, request):
    """With threads, which else add gradients in any order."""
    monkeypatch.setattr(condition_head, "LEAST_BATCHES", 2)
    request.addfinalizer(lambda: torch.set_num_threads(1))
    torch.set_num_threads(2)
    data, job = pairs(1000, sentences=60, tokens=40), replace(JOB, epochs=2, batch_size=500)
    first, second = (last(fit_by(job, learned(data, column()), data)).weights for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_rated_pair_once_an_epoch_and_pairs_of_the_same_sentences_together():
    """Texts that no other pair has show which pair it is."""
    ratings = np.arange(40, dtype=np.float32) % 5 + 1
    ratings[[0, 5, 6]] = -1
    data = replace(pairs(), groups=np.arange(40) // 4, sentence_index=np.arange(80).reshape(40, 2), ratings=ratings)
    orders = set()
    for seed, epoch in ((0, 1), (0, 2), (1, 1)):
        found = head_batches(learned(data), 9, seed, epoch)
        assert [len(batch) for batch in found] == [2 * rows for rows in (9, 9, 9, 9, 1)]
        order = np.concatenate([batch.under[0][: len(batch) // 2] // 2 for batch in found])
        assert sorted(order) == np.delete(np.arange(40), [0, 5, 6]).tolist()
        assert (np.diff(data.groups[order]) != 0).sum() == 9
        for batch in found:
            rows = batch.under[0][: len(batch) // 2] // 2
            assert np.stack(batch.under).tolist() == np.stack(data.under(rows)).tolist()
            assert batch.ratings.tolist() == ratings[rows].tolist() and batch.labelled is None
        again = head_batches(learned(data), 9, seed, epoch)
        assert np.array_equal(order, np.concatenate([batch.under[0][: len(batch) // 2] // 2 for batch in again]))
        orders.add(tuple(order))
    assert len(orders) == 3


@pytest.mark.parametrize(("rows", "least", "wanted"), [(40, 12, 12), (40, 3, 5), (0, 4, 4)])
def test_with_each_batch_of_rated_pairs_comes_one_of_labelled_texts(monkeypatch, rows, least, wanted):
    """Rated pairs come again and again where they make fewer batches than an epoch has, if there are any."""
    monkeypatch.setattr(condition_head, "LEAST_BATCHES", least)
    data, columns = pairs(rows, ratings=(1, 2, 3, 4, 5)), [column(), column(9, seed=1)]
    found, alone = (head_batches(learned(data, *of), 9, 0, 1) for of in (columns, []))
    assert len(found) == wanted and len(alone) == -(-rows // 9)
    for i, batch in enumerate(found):
        rated = alone[i % 5].under if alone else np.zeros((2, 0), int)
        labelled = batch.labelled.texts, [batch.labelled.condition] * len(batch.labelled.texts)
        assert np.stack(batch.under).tolist() == np.concatenate([rated, labelled], axis=1).tolist()
        assert len(batch) == len(batch.under[0]) and len(batch.ratings) == len(rated[0]) / 2
    assert len({batch.labelled.texts.tobytes() for batch in found}) > 2


@pytest.mark.parametrize("nested", [(), (4, 2)])
def test_the_loss_is_that_of_the_cosines_at_every_dimension(nested):
    """Of one epoch of one batch, before anything is learned."""
    job = replace(JOB, nested=nested, batch_size=100, epochs=1, activation="gelu", seed=3)
    data = pairs(ratings=(1, 2, 3, 4, 5))
    torch.manual_seed(3)
    first, second = one_by_one(ConditionHead(job.shape(WIDTH)).eval(), data.states, data.under()).detach().chunk(2)
    wanted = [
        (torch.cosine_similarity(first[:, :d], second[:, :d]) - (torch.tensor(data.ratings) - 1) / 4).square().mean()
        for d in (6, *nested)
    ]
    state = next(fit_by(job, learned(data), pairs(seed=1)))
    assert state.line["loss"] == pytest.approx(float(sum(wanted)) / len(wanted), rel=1e-5)


VECTORS = torch.tensor([[1.0, 0, 0], [0, 3, 4], [2, 1, 2]])
LABELLED = LabelBatch(
    texts=np.array([2, 0, 1]),
    condition=0,
    pairs=np.array([[0, 1], [0, 2], [1, 2]]),
    targets=np.array([1, 0.4, 0], np.float32),
    weights=np.array([1, 0.25, 0.75], np.float32),
)
# Cosines of the vectors 2, 0 and 1: of 2 and 0, of 2 and 1, of 0 and 1. At two dimensions the vectors are
# (2, 1), (1, 0) and (0, 3).
AT_3 = (2 / 3 - 1) ** 2 + 0.25 * (11 / 15 - 0.4) ** 2 + 0
AT_2 = (2 / 5**0.5 - 1) ** 2 + 0.25 * (1 / 5**0.5 - 0.4) ** 2 + 0


@pytest.mark.parametrize(
    ("rows", "labelled", "dims", "wanted"),
    [
        ([], LABELLED, (3,), AT_3),
        ([], LABELLED, (2, 3), (AT_2 + AT_3) / 2),
        ([0, 1], None, (3,), (0.25 + (11 / 15) ** 2) / 2),
        ([0, 1], LABELLED, (3,), (0.25 + (11 / 15) ** 2) / 2 + AT_3),
    ],
)
def test_the_loss_of_labelled_texts_by_hand(rows, labelled, dims, wanted):
    """Two rated pairs: of 0 and 1, rated 3, and of 1 and 2, rated 1."""
    ratings, index = np.array([3, 1], np.float32), np.array([[0, 1], [1, 2]])
    data = replace(pairs(2), sentence_index=index, ratings=ratings)
    batch = HeadBatch(data, np.array(rows, int), labelled)
    loss = head_loss(Loss.SQUARED, dims, lambda under: VECTORS[under[0]], batch)
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_pairs_labelled_minus_1_are_not_trained_on_but_scored():
    """A sentence without numbers, in pairs labelled -1 alone, spoils nothing."""
    data = pairs()
    labelled = data.ratings == -1
    assert 0 < labelled.sum() < 40
    states = data.states.sentences
    spoiled = StoredStates(
        flat=np.concatenate([states.flat, np.full((1, WIDTH), np.nan, np.float16)]),
        offsets=np.append(states.offsets, states.offsets[-1] + 1),
    )
    index = np.where(labelled[:, None], len(states), data.sentence_index)
    other = replace(data, states=replace(data.states, sentences=spoiled), sentence_index=index)
    found, wanted = (last(fit_by(JOB, learned(d), pairs(seed=1))) for d in (other, data))
    assert worst(found.weights, wanted.weights) == 0
    rated = replace(data, ratings=np.where(labelled, 1, data.ratings).astype(np.float32))
    assert head_correlations(head_of(), data)["spearman"] != head_correlations(head_of(), rated)["spearman"]
