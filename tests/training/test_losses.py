"""The losses against SciPy; the squared error by hand: `test_projector_fit.py`."""

import numpy as np
import pytest
import small
import torch
from scipy.stats import pearsonr

from raycase.commands.train import TRAIN_FLAGS
from raycase.errors import RequestError
from raycase.training.recipe import LOSSES, Loss, pearson_loss


def test_the_pearson_loss_is_one_minus_scipys():
    random = np.random.default_rng(0)
    wanted = random.integers(0, 5, 12) / 4
    cosines = np.clip(0.6 * wanted + random.normal(0, 0.3, 12), -1, 1)
    found = pearson_loss(torch.tensor(cosines), torch.tensor(wanted))
    assert found.item() == pytest.approx(1 - pearsonr(cosines, wanted).statistic)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize(
    ("cosines", "wanted"),
    [([0.5, 0.5, 0.5, 0.5], [0.0, 0.25, 0.5, 1.0]), ([0.5, 0.1, 0.3], [0.25, 0.25, 0.25]), ([0.7], [1.0])],
    ids=["constant-cosines", "constant-ratings", "one-row"],
)
def test_a_batch_without_spread_has_a_finite_gradient(loss, cosines, wanted):
    cosines = torch.tensor(cosines, requires_grad=True)
    value = LOSSES[loss](cosines, torch.tensor(wanted))
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(cosines.grad).all()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_correlation_of_one_or_two_pairs_teaches_nothing(rows):
    cosines = torch.tensor([0.31, 0.57][:rows], requires_grad=True)
    pearson_loss(cosines, torch.tensor([0.25, 1.0][:rows])).backward()
    assert not cosines.grad.any()


@pytest.mark.parametrize("flags", [flags for flags in TRAIN_FLAGS.values() if hasattr(flags, "loss")])
def test_pearson_needs_batches_of_three(flags):
    for size in (1, 2):
        with pytest.raises(RequestError, match=f"--batch-size: expected at least 3 with --loss pearson, got {size}"):
            small.job(flags, loss="pearson", batch_size=size).check()
    for job in (small.job(flags, loss="pearson", batch_size=3), small.job(flags, loss="squared", batch_size=1)):
        assert all(fits for fits, _ in job.ranges.values())
