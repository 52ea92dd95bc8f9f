"""g of eq. 1: its formula, and what it refuses."""

import pytest
import torch
from safetensors.torch import save_file

from raycase.errors import RequestError
from raycase.heads.projector import WEIGHTS, Projector, ProjectorConfig, load_weights, save_weights


def made(**options):
    torch.manual_seed(0)
    return Projector(ProjectorConfig(input_dim=6, output_dim=4, hidden=5, **options)).eval()


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("leaky_relu", lambda x: torch.where(x > 0, x, 0.01 * x)),
        ("relu", lambda x: x.clamp(min=0)),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
    ],
)
def test_one_and_two_layers(activation, formula):
    x = torch.randn(3, 6)
    weight, bias = (g := made(layers=0)).parameters()
    torch.testing.assert_close(g(x), x @ weight.T + bias)
    g = made(layers=1, activation=activation)
    weight, bias = g.parameters()
    torch.testing.assert_close(g(x), formula(x @ weight.T + bias))
    g = made(layers=2, activation=activation)
    first, first_bias, second, second_bias = g.parameters()
    assert first.shape == (5, 6)
    torch.testing.assert_close(g(x), formula(formula(x @ first.T + first_bias) @ second.T + second_bias))


def test_g_without_a_bias_is_eq_3_and_4():
    for layers in (0, 1, 2):
        g = made(layers=layers, bias=False)
        assert [p.dim() for p in g.parameters()] == [2] * (1 + (layers == 2)) and not g(torch.zeros(2, 6)).any()


def test_missing_broken_and_other_weights_are_refused(tmp_path):
    g = made(layers=1)
    weights = g.state_dict()
    weights["1.bias"][2] = float("nan")
    spoiled = {
        r"projector\.safetensors: expected weights": lambda file: None,
        "expected weights of ": lambda file: file.write_bytes(b"no safetensors"),
        "expected finite weights, got NaN": lambda file: save_file(weights, file),
    }
    for said, spoil in spoiled.items():
        spoil(tmp_path / WEIGHTS)
        with pytest.raises(RequestError, match=said):
            load_weights(g, tmp_path / WEIGHTS, "weights of g")
    save_weights(made(layers=1), tmp_path / WEIGHTS)
    with pytest.raises(RequestError, match=r"safetensors: expected weights of g, got: .*mismatch"):
        load_weights(Projector(ProjectorConfig(input_dim=7, output_dim=4)), tmp_path / WEIGHTS, "weights of g")
