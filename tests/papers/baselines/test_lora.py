"""LoRA (CASE, section 4.4): what is trained beside the frozen encoder, how it is saved, and CASE on top of it."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from architectures import save_random
from small import CONDITIONS, DIM, SENTENCES, close, system

import raycase
from raycase.commands.train import ProjectorFlags
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.models.case import CaseConfig
from raycase.models.fine_tuned import pair_scores
from raycase.papers.baselines.model import lora
from raycase.papers.baselines.train import LoraFlags

LAYERS = 2
# In and out of the query, key, value and output projections; Qwen's keys and values have two heads of eight.
WIDTHS = {"bert": 4 * (DIM + DIM), "qwen3": (DIM + DIM) + 2 * (DIM + 16) + (DIM + DIM)}
CHOICES = {
    "bert": {"prompt": "concat-cs", "pooling": Pooling.MEAN},
    "qwen3": {"prompt": "cond", "pooling": Pooling.LAST},
}
KINDS = list(CHOICES)


@pytest.fixture(scope="module")
def encoders(qwen, tmp_path_factory):
    return {"bert": small.save_bert(tmp_path_factory.mktemp("bert"), layers=LAYERS), "qwen3": qwen}


@pytest.fixture
def made(encoders):
    """A system before training, of a kind."""
    return lambda kind, **options: lora(encoders[kind], **CHOICES[kind] | {"rank": 4, "alpha": 12.0} | options)


def trained(config):
    """Its module, as if trained; the same each time."""
    torch.manual_seed(0)
    return small.disturb(config.trainable(), scale=0.2).eval()


def weights(module):
    """What is trained."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
def test_before_training_its_vectors_are_the_encoders_bit_by_bit(made, kind):
    config = made(kind)
    prepared = config.prepare(SENTENCES, CONDITIONS[:1] * len(SENTENCES))
    module = config.trainable()
    base = system(config)
    with torch.no_grad():
        assert torch.equal(module.eval()(prepared), base(prepared))
    wanted = load_encoder(config.encoder, dtype=torch.float32).encode(prepared.of_pairs[0])[0]
    close(base.encode_prepared(prepared).vectors, wanted)


def test_a_projection_with_its_adapter_by_hand(made, encoders):
    """h = W x + (alpha / rank) B A x, where alpha / rank is 3."""
    module = trained(made("bert"))
    [query] = [m for n, m in module.named_modules() if n.endswith("layer.0.attention.self.query")]
    x = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0))
    base = small.stock(encoders["bert"]).encoder.layer[0].attention.self.query
    found = {name.split("lora_")[1][0]: p for name, p in query.named_parameters() if "lora_" in name}
    assert {side: tuple(p.shape) for side, p in found.items()} == {"A": (4, DIM), "B": (DIM, 4)}
    with torch.no_grad():
        wanted = x @ base.weight.T + base.bias + 3 * (x @ found["A"].T @ found["B"].T)
        torch.testing.assert_close(query(x), wanted)
        assert (query(x) - base(x)).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_changes_the_adapters_and_keeps_them_alone(made, kind):
    config = made(kind)
    recipe = {"rank": 4, "alpha": 12.0, "epochs": 2, "batch_size": 8, "learning_rate": 1e-2}
    job = small.job(LoraFlags, config.name, **recipe, **CHOICES[kind])
    *_, state = small.fit(job, [small.rated(), small.rated(seed=1)])
    assert state.weights.keys() == state.best.keys() == weights(pair_scores(config.trainable())).keys()
    assert sum(t.numel() for t in state.weights.values()) == LAYERS * 4 * WIDTHS[kind]
    assert len(state.to_bytes()) < 4 * 5 * LAYERS * 4 * WIDTHS[kind] + 20_000
    assert all(t.abs().max() > 0 for name, t in state.weights.items() if "lora_B" in name)


def test_other_kinds_have_adapters_in_their_attention_alone(tmp_path):
    kind = "t5"
    config = lora(str(save_random(tmp_path / "model", kind)), prompt="concat-cs", pooling=Pooling.MEAN, rank=2)
    module = trained(config)
    assert len(weights(module)) >= 3 * 2 * 2
    assert all("SelfAttention." in name for name in weights(module))
    wanted = small.vectors(module)
    trained(config).save(folder := tmp_path / "saved")
    found = small.vectors(raycase.load(str(folder), dtype=torch.float32))
    np.testing.assert_allclose(found, wanted, atol=5e-3)
    assert np.abs(small.vectors(system(config)) - wanted).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_case_takes_the_vectors_of_a_fine_tuned_encoder(made, kind, tmp_path):
    trained(made(kind)).save(tmp_path / "model")
    loaded = raycase.load(str(tmp_path / "model"), dtype=torch.float32)
    files = {"train": "a.csv", "validation": "b.csv", "output": "out"}
    flags = ProjectorFlags(model=str(tmp_path / "model"), **files)
    config = flags.config()
    assert isinstance(config, CaseConfig)
    assert not config.subtract
    arguments = SENTENCES, [*CONDITIONS, "dog"]
    close(system(config).embed(*arguments), loaded.embed(*arguments))
    assert config.describe()["weights"] == loaded.config.describe()["weights"]
    if kind == "bert":  # whose base is the condition alone
        less = system(replace(flags, subtract=True).config()).embed(SENTENCES[:4], CONDITIONS)
        close(less, loaded.embed(SENTENCES[:4], CONDITIONS) - loaded.embed(CONDITIONS, None), atol=5e-6)
