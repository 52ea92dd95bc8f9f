"""Linear maps by oneDNN give what torch's give, in blocks of rows and beyond them."""

import pytest
import torch
import torch.nn.functional as F

from raycase.heads.linear import ROWS, linear


@pytest.mark.parametrize("shape", [(0, 5), (3, 5), (ROWS, 5), (2, ROWS + 7, 5), (3, ROWS, 8)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_maps_are_those_of_torch(shape, with_bias):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(4, shape[-1]), torch.randn(4) if with_bias else None
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))
        every_second = x[..., ::2, :]
        torch.testing.assert_close(linear(every_second, weight, bias), F.linear(every_second, weight, bias))


def test_what_is_trained_has_gradients():
    weight = torch.ones(2, 3, requires_grad=True)
    linear(torch.ones(ROWS, 3), weight).sum().backward()
    assert weight.grad.tolist() == [[ROWS] * 3] * 2
