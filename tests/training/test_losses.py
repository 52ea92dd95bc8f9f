"""The losses against numbers worked by hand, and SciPy."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from raycase.training.losses import LOSSES, Loss, pearson_loss, squared_error, unit_ratings


def batch(seed=0, rows=12):
    """Cosines and wanted values that go together loosely, float64, with ties among the wanted."""
    random = np.random.default_rng(seed)
    wanted = random.integers(0, 5, rows) / 4
    cosines = np.clip(0.6 * wanted + random.normal(0, 0.3, rows), -1, 1)
    return torch.tensor(cosines), torch.tensor(wanted)


def gradient(loss, cosines, wanted):
    cosines = cosines.clone().requires_grad_()
    loss(cosines, wanted).backward()
    return cosines.grad


def test_a_ratings_target_by_hand():
    found = unit_ratings(torch.tensor([1, 2, 2.5, 3, 4, 5]))
    torch.testing.assert_close(found, torch.tensor([0, 0.25, 0.375, 0.5, 0.75, 1]))


def test_the_squared_error_by_hand():
    found = squared_error(torch.tensor([0.5, -0.2, 1.0]), torch.tensor([1.0, 0.0, 0.75]))
    assert found.item() == pytest.approx((0.25 + 0.04 + 0.0625) / 3)


def test_the_pearson_loss_is_one_minus_scipys():
    cosines, wanted = batch()
    assert pearson_loss(cosines, wanted).item() == pytest.approx(1 - pearsonr(cosines, wanted).statistic)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize(
    ("cosines", "wanted"),
    [
        ([0.5, 0.5, 0.5, 0.5], [0.0, 0.25, 0.5, 1.0]),
        ([0.5, 0.1, 0.3], [0.25, 0.25, 0.25]),
        ([0.7], [1.0]),
    ],
    ids=["constant-cosines", "constant-ratings", "one-row"],
)
def test_a_batch_without_spread_has_a_finite_gradient(loss, cosines, wanted):
    cosines, wanted = torch.tensor(cosines), torch.tensor(wanted)
    assert torch.isfinite(LOSSES[loss](cosines, wanted))
    assert torch.isfinite(gradient(LOSSES[loss], cosines, wanted)).all()
