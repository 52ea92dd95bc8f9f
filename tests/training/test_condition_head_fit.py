"""Fitting the head of condition pooling on random states: batches, the loss by hand, nested dimensions, figures."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from helpers import fit_by, last, worst
from random_pairs import JOB, WIDTH, head_of, learned, pairs

from raycase.heads.condition_head import ConditionHead, ZeroShotHead
from raycase.tokens.stored import StoredStates
from raycase.training.condition_head import head_batches
from raycase.training.head_pairs import TOKENS_AT_ONCE, head_correlations, head_pair_vectors, head_vectors


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
