"""Fine-tuning on rated pairs: batches of like length, the loss, resuming after a stop, what is scored and saved."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from helpers import last
from scipy.stats import spearmanr
from torch import nn

from raycase.training.fine_tune import PairTuning, TokenizedRatedPairs, length_batches, rated_loss
from raycase.training.loop import fit
from raycase.training.recipe import Loss, Recipe


def test_a_small_set_by_hand():
    """Groups 0 to 3 of lengths 9, 5, 7, 3 in one pool: sorted by length they are rows 6 7, 2 3, 4 5, 0 1."""
    lengths, groups = np.array([9, 9, 5, 6, 7, 7, 3, 3]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    for epoch in range(1, 5):
        found = length_batches(lengths, groups, np.arange(8), 4, 0, epoch)
        assert sorted(map(sorted, (batch.tolist() for batch in found))) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@dataclass
class Numbers:
    """Texts that are row numbers."""

    rows: int

    @property
    def lengths(self):
        return np.full(self.rows, 3)

    def take(self, rows):
        return rows


class Scores(nn.Module):
    """A score of each row, which is learned; `system` that makes it, and what it was asked for."""

    def __init__(self, scores):
        super().__init__()
        self.of_row = nn.Parameter(torch.tensor(scores))
        self.dropout = nn.Dropout(0.0)
        self.asked = []

    def forward(self, rows):
        self.asked.append(rows.tolist())
        return self.dropout(self.of_row)[torch.from_numpy(rows)]

    def scores(self, texts):
        return self.of_row.detach().numpy()[: texts.rows]

    def trainable(self, dropout, compute):
        return self


def tuning(scores=None, **recipe):
    """Fits a module of `Scores` to ratings of row numbers."""
    files = {"train": "", "validation": "", "cache": None, "settings": {}, "read_pairs": None, "task": "rated"}
    how = {"recipe": Recipe(patience=3, **recipe), "compute": "float32", "dropout": None}
    return PairTuning(start=lambda: scores, loss=partial(rated_loss, Loss.SQUARED), **files, **how)


def numbers(ratings):
    ratings = np.array(ratings, dtype=np.float32)
    return TokenizedRatedPairs(texts=Numbers(len(ratings)), ratings=ratings, groups=np.arange(len(ratings)))


def test_the_loss_of_a_batch_is_the_squared_error_by_hand():
    """Ratings 1, 3 and 5 are to be met by 0, 0.5 and 1."""
    module = Scores([0.5, 9.0, 0.25, 0.9])
    value = tuning().batch_loss(numbers([1, 2, 3, 5]), module, np.array([3, 0, 2]))
    assert value.item() == pytest.approx((0.1**2 + 0.5**2 + 0.25**2) / 3)
    value.backward()
    assert module.of_row.grad.tolist() == pytest.approx([2 * 0.5 / 3, 0, -2 * 0.25 / 3, -2 * 0.1 / 3])


def test_pairs_to_which_the_condition_does_not_apply_are_scored_and_not_trained_on():
    train, validation = numbers([-1, 1, 5, -1, 3, 2, 4]), numbers([5, -1, 1, 3])
    module = Scores([0.5, -0.2, 0.8, 0.1, 0.4, 0.3, 0.9])
    training = tuning(module, batch_size=2, epochs=3, learning_rate=1e-2)
    state = last(fit(training.recipe, training.learner(training.recipe, train, validation)))
    asked = module.asked
    assert sorted(row for rows in asked for row in rows) == sorted([1, 2, 4, 5, 6] * 3)
    changed = state.weights["of_row"] != torch.tensor([0.5, -0.2, 0.8, 0.1, 0.4, 0.3, 0.9])
    assert changed.tolist() == [False, True, True, False, True, True, True]
    scores = state.weights["of_row"][:4].numpy()
    assert state.line["spearman"] == pytest.approx(100 * spearmanr(scores, validation.ratings).statistic)
