"""The heads on random states against their formulas in 64 bits: condition pooling's, and g of CASE's eq. 1."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from safetensors.torch import save_file
from scipy.special import erf, expit, softmax

from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionHead, HeadConfig
from raycase.heads.projector import WEIGHTS, Projector, ProjectorConfig, load_weights, save_weights

CONFIG = HeadConfig(activation="gelu", states_dim=6, heads=3, head_dim=4, output_dim=5, temperature=3.0)
COUNTS = [4, 1, 7]  # tokens of each sentence


def states(count, width=6, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def padded(counts=COUNTS, width=6, seed=0, filling=0.0):
    """States of sentences: a list, padded, and which are real."""
    each = [states(count, width, seed + i) for i, count in enumerate(counts)]
    real = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    whole = torch.full((*real.shape, width), filling)
    whole[real] = torch.cat(each)
    return each, whole, real


def head_of(config, seed=0):
    """Every weight is random, so that none is where it began."""
    torch.manual_seed(seed)
    return small.disturb(ConditionHead(config).eval(), seed, scale=0.4)


def unit(a):
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


def gelu(a):
    return a * (1 + erf(a / np.sqrt(2))) / 2


def added(w, name, e_W):
    """What the small network of this name adds, if there is one."""
    if f"{name}.0.weight" not in w:
        return 0.0
    return w[f"{name}.2.weight"] @ gelu(w[f"{name}.0.weight"] @ e_W + w[f"{name}.0.bias"]) + w[f"{name}.2.bias"]


def formula(weights, config, h_TW, e_W):
    """The weight of each token and the vector of one sentence under one condition, from the names of the weights."""
    w = {name: np.asarray(t, dtype=np.float64) for name, t in weights.items()}
    h_TW, e_W = np.asarray(h_TW, dtype=np.float64), np.asarray(e_W, dtype=np.float64)
    each = [slice(k * config.head_dim, (k + 1) * config.head_dim) for k in range(config.heads)]
    keys, queries = [[w[name][at] for at in each] for name in ("keys.weight", "queries.weight")]
    more = [np.broadcast_to(added(w, "more_queries", e_W), config.heads * config.head_dim)[at] for at in each]
    asked = [unit(queries[k] @ e_W + more[k]) for k in range(config.heads)]
    logits = [w["tau"][k] * unit(h_TW @ keys[k].T) @ asked[k] for k in range(config.heads)]
    w_T = softmax(w["mix.weight"] @ e_W + w["mix.bias"]) @ softmax(np.array(logits), axis=1)
    values_TD = h_TW @ w["values.0.weight"].T + w["values.0.bias"]
    vector_D = w_T @ (gelu(values_TD) if config.activation else values_TD)
    if config.gate:
        vector_D = vector_D * expit(w["gate.weight"] @ e_W + w["gate.bias"] + added(w, "more_gate", e_W))
    return w_T, vector_D


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"gate": False}, {"activation": None}, {"heads": 1, "head_dim": 9}),
        *({"hidden": 7}, {"hidden": 2, "gate": False}),
    ],
)
def test_the_formula(changes):
    """Weights and vectors of every sentence under every condition."""
    config = replace(CONFIG, **changes)
    head = head_of(config)
    each, whole, real = padded()
    asked = states(4, seed=9)
    words, questions = head.read(whole, real), head.ask(asked)
    index_BC = torch.arange(4).expand(len(each), -1)
    weights = head.weights(words, questions.take(index_BC))
    vectors = head.pool(words, questions.take(index_BC))
    assert vectors.shape == (3, 4, head.output_dim)
    for b, h_TW in enumerate(each):
        for c, e_W in enumerate(asked):
            w_T, vector_D = formula(head.state_dict(), config, h_TW, e_W)
            small.close(vectors[b, c].detach(), vector_D, atol=1e-5)
            np.testing.assert_allclose(weights[b, c, : len(h_TW)].detach(), w_T, atol=1e-5)
            assert not weights[b, c, len(h_TW) :].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4))
    assert weights[:, :, 0].std() > 0.01, "expected weights that depend on sentence and condition"
    assert {name.split(".")[0] for name in head.state_dict() if "more" in name} == {
        name for name, there in (("more_queries", True), ("more_gate", config.gate)) if there and config.hidden
    }


@torch.no_grad()
def test_networks_of_the_queries_and_the_gate_add_nothing_at_first():
    """Then they learn: the gradient of their last layers is not 0."""
    _, whole, real = padded()
    asked = states(3, seed=9)
    heads = []
    for hidden in (None, 7):
        torch.manual_seed(0)
        heads.append(ConditionHead(replace(CONFIG, hidden=hidden)).eval())
    torch.testing.assert_close(*(small.pooled(each, whole, real, asked) for each in heads), rtol=0, atol=0)
    head, trained = heads[1], head_of(CONFIG)
    head.load_state_dict(trained.state_dict(), strict=False)
    torch.testing.assert_close(*(small.pooled(each, whole, real, asked) for each in (head, trained)), rtol=0, atol=0)
    with torch.enable_grad():
        small.pooled(head, whole, real, asked).square().sum().backward()
    assert all(more[2].weight.grad.abs().max() > 1e-6 for more in (head.more_queries, head.more_gate))


def test_the_shape_of_a_head_saved_before_they_were_is_read():
    """As a file has it: without the name."""
    values = CONFIG.as_json()
    assert "hidden" not in values, "expected the hash of such a model to stay what it was"
    config = HeadConfig(**HeadConfig.of_json(values))
    assert config == CONFIG
    assert HeadConfig(**HeadConfig.of_json(replace(CONFIG, hidden=7).as_json())).hidden == 7
    ConditionHead(config, loaded=True).load_state_dict(head_of(CONFIG).state_dict())


PART = replace(
    CONFIG,
    unconditional_dim=3,
    unconditional_share=0.4,
    unconditional_vector_dim=4,
    unconditional_alone_from=3.0,
    unconditional_alone_to=5.0,
)
UNCONDITIONAL = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))  # f(s)


def with_part(scale):
    """The same head without the part and with one of random directions."""
    alone = head_of(CONFIG)
    head = ConditionHead(PART).eval()
    head.load_state_dict(alone.state_dict(), strict=False)
    random = torch.Generator().manual_seed(5)
    head.unconditional.center.copy_(0.1 * torch.randn(6, generator=random))
    head.unconditional.rare.copy_(torch.linalg.qr(torch.randn(6, 2, generator=random)).Q.T)
    head.unconditional.turn.copy_(torch.linalg.qr(torch.randn(*head.unconditional.turn.shape, generator=random)).Q)
    head.unconditional.scale.fill_(scale)
    return alone, head


def formula_with_part(part, h_TW, vector_D, plain_P):
    """The share, and the vector with the part."""
    w = {name: np.asarray(t, dtype=np.float64) for name, t in part.state_dict().items()}
    mean_W = np.asarray(h_TW, dtype=np.float64).mean(0)
    m_W = np.concatenate([unit(mean_W[:3]), unit(mean_W[3:])])
    r = np.linalg.norm(w["rare"] @ (m_W - w["center"])) / w["scale"]
    a = 0.4 * np.clip((r - 1.4) / 0.6, 0, 1) + 0.6 * np.clip((r - 3) / 2, 0, 1)
    vector_D = np.asarray(vector_D, dtype=np.float64)
    p = unit(np.asarray(plain_P, dtype=np.float64))
    return a, np.sqrt(1 - a) * vector_D + np.sqrt(a) * np.linalg.norm(vector_D) * w["turn"] @ p


@torch.no_grad()
@pytest.mark.parametrize("scale", [0.5, 0.22])
def test_the_formula_with_part(scale):
    alone, head = with_part(scale)
    each, whole, real = padded()
    asked = states(3, seed=9)
    plainless, found = small.pooled(alone, whole, real, asked), small.pooled(head, whole, real, asked, UNCONDITIONAL)
    wanted = [formula_with_part(head.unconditional, *of) for of in zip(each, plainless, UNCONDITIONAL, strict=True)]
    assert len({round(a, 3) for a, _ in wanted}) > 1, "expected sentences with different shares"
    small.close(found, np.stack([v for _, v in wanted]), atol=1e-5)
    _, other, _ = padded(filling=1e4)
    torch.testing.assert_close(small.pooled(head, other, real, asked, UNCONDITIONAL), found, rtol=0, atol=0)


@pytest.mark.parametrize("unconditional_dim", [3, 8])
def test_what_is_fitted(unconditional_dim):
    """Training rows lie near a plane: a row off it is unfamiliar, and the part stands apart from the head's vectors."""
    part = ConditionHead(replace(PART, unconditional_vector_dim=unconditional_dim)).unconditional
    random = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(6, 4, generator=random)).Q  # two directions are left
    train, validation, vectors = (
        torch.randn(200, 4, generator=random) @ plane.T + 0.01 * torch.randn(200, 6, generator=random),
        torch.randn(80, 4, generator=random) @ plane.T + 0.02 * torch.randn(80, 6, generator=random),
        torch.randn(200, 2, generator=random) @ torch.eye(5)[:2],
    )
    plain = torch.randn(200, unconditional_dim, generator=torch.Generator().manual_seed(1))
    plain[:, 5:] *= 1e-3
    part.fit(train, plain, validation, vectors)
    assert (part.rare @ plane).abs().max() < 0.01
    assert part.unfamiliar(validation).square().mean().item() == pytest.approx(1.0, rel=1e-4)
    assert part.unfamiliar(train).mean() < 0.7
    assert (part.unfamiliar(torch.randn(20, 6, generator=random)) > 5).all()
    if unconditional_dim < 5:  # room beside the head's vectors
        assert (vectors @ part.turn).abs().max() < 1e-5
        torch.testing.assert_close(part.turn.T @ part.turn, torch.eye(3))
    else:  # the principal directions of f(s)
        torch.testing.assert_close(part.turn @ part.turn.T, torch.eye(5))
        assert part.turn[:, 5:].abs().max() < 1e-2


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
    [weight] = (g := made(layers=1, bias=False, activation=activation)).parameters()
    torch.testing.assert_close(g(x), formula(x @ weight.T))
    g = made(layers=2, activation=activation)
    first, first_bias, second, second_bias = g.parameters()
    assert first.shape == (5, 6)
    torch.testing.assert_close(g(x), formula(formula(x @ first.T + first_bias) @ second.T + second_bias))


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
