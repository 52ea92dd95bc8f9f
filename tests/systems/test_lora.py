"""LoRA (CASE, section 4.4): what is trained beside the frozen encoder, how it is saved, and CASE on top of it."""

import json

import numpy as np
import pytest
import small
import tiny
import torch
from kinds import save_kind
from scipy.stats import spearmanr
from small import CONDITIONS, DIM, SENTENCES, close, system

import raycase
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.systems.baselines import bi_encoder, cross_encoder
from raycase.systems.case import CaseConfig
from raycase.systems.fine_tuned_module import pair_scores
from raycase.systems.lora import lora
from raycase.systems.registry import resolve
from raycase.training.encoder_fit import PairObjective, TunePairs, fit_tuned
from raycase.training.loop import FitState, restore
from raycase.training.losses import Loss
from raycase.training.projector import ProjectorJob
from raycase.training.recipe import RatedRecipe

LAYERS = 2
# In and out of the query, key, value and output projections; Qwen's keys and values have two heads of eight.
WIDTHS = {"bert": 4 * (DIM + DIM), "qwen3": (DIM + DIM) + 2 * (DIM + 16) + (DIM + DIM)}
CHOICES = {
    "bert": {"prompt": "concat-cs", "pooling": Pooling.MEAN},
    "qwen3": {"prompt": "cond", "pooling": Pooling.LAST},
}
KINDS = list(CHOICES)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A folder of each kind."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    small.save_bert(made["bert"], layers=LAYERS)
    tiny.save_encoder(made["qwen3"], "qwen3-embedding-0.6b")
    return {kind: str(folder) for kind, folder in made.items()}


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
    base = system(config, unpadded=False)
    with torch.no_grad():
        assert torch.equal(module.eval()(prepared), base(prepared))
    wanted = load_encoder(config.encoder, dtype=torch.float32).encode(prepared.pairs[0])[0]
    close(base.encode_prepared(prepared).vectors, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_two_small_matrices_beside_each_projection_of_the_attention_are_trained(made, kind):
    for rank in (1, 4):
        found = weights(made(kind, rank=rank).trainable())
        assert sum(p.numel() for p in found.values()) == LAYERS * rank * WIDTHS[kind]
        assert len(found) == LAYERS * 4 * 2
        names = {"bert": ("query", "key", "value", "attention.output.dense"), "qwen3": ("q_proj", "k_proj", "v_proj")}
        for projection in (*names[kind], *(["o_proj"] if kind == "qwen3" else [])):
            for side in "AB":
                assert sum(f"{projection}.lora_{side}." in name for name in found) == LAYERS
        assert all(("attention" in name or "attn" in name) and ".lora_" in name for name in found)


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
def test_a_gradient_reaches_every_adapter_and_nothing_else(made, kind):
    config = made(kind)
    module = trained(config)
    pair_scores(module)(config.rated(small.rated()).take(np.arange(8))).square().sum().backward()
    for parameter in module.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad
    assert all(p.grad.abs().max() > 0 for p in weights(module).values())


def test_the_encoder_is_frozen_in_the_format_it_computes_in_and_adapters_are_in_32_bits(made):
    module = made("bert").trainable(compute=torch.bfloat16)
    assert {p.dtype for p in module.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in module.parameters() if not p.requires_grad} == {torch.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_changes_the_adapters_and_keeps_them_alone(made, kind):
    config = made(kind)
    train, validation = (TunePairs.of(config, small.rated(seed=seed)) for seed in (0, 1))
    recipe = RatedRecipe(loss=Loss.PEARSON, epochs=2, batch_size=8, learning_rate=1e-2)
    *_, state = fit_tuned(train, validation, recipe, PairObjective(config=config))
    assert state.weights.keys() == state.best.keys() == weights(pair_scores(config.trainable())).keys()
    assert sum(t.numel() for t in state.weights.values()) == LAYERS * 4 * WIDTHS[kind]
    assert len(state.to_bytes()) < 4 * 5 * LAYERS * 4 * WIDTHS[kind] + 20_000
    assert all(t.abs().max() > 0 for name, t in state.weights.items() if "lora_B" in name)
    module = pair_scores(config.trainable())
    restore(module, FitState.from_bytes(state.to_bytes()).best)
    wanted = 100 * spearmanr(module.eval().scores(validation.texts), validation.ratings).statistic
    assert state.history[state.best_epoch - 1]["spearman"] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_it_is_added_to_the_weights(made, kind, tmp_path):
    arguments = SENTENCES, [*CONDITIONS, "dog"]
    module = trained(made(kind))
    wanted = module.embed(*arguments)
    assert not np.allclose(system(made(kind)).embed(*arguments), wanted, atol=0.05)
    module.save(tmp_path / "model")
    close(raycase.load(str(tmp_path / "model"), dtype=torch.float32).embed(*arguments), wanted, atol=1e-5)


def test_adapters_of_version_0_2_that_stand_by_themselves_are_refused(made, tmp_path):
    trained(made("bert")).save(tmp_path / "model")
    file = tmp_path / "model" / "raycase.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"encoder": values["encoder"] | {"adapter": "./adapter"}}))
    with pytest.raises(RequestError, match="adapter: expected no such name"):
        resolve(str(tmp_path / "model"))


@pytest.mark.parametrize("kind", ["deberta-v2", "t5"])
def test_other_kinds_have_adapters_in_their_attention_alone(kind, tmp_path):
    config = lora(str(save_kind(tmp_path / "model", kind)), prompt="concat-cs", pooling=Pooling.MEAN, rank=2)
    module = trained(config)
    inside = {"deberta-v2": ".self.", "modernbert": ".attn.", "mpnet": ".attn.", "t5": "SelfAttention."}[kind]
    assert len(weights(module)) >= 3 * 2 * 2
    assert all(inside in name or "attention.output.dense." in name for name in weights(module))
    wanted = small.vectors(module)
    trained(config).save(folder := tmp_path / "saved")
    found = small.vectors(raycase.load(str(folder), dtype=torch.float32))
    np.testing.assert_allclose(found, wanted, atol=5e-3)  # the tiny MPNet makes much of rounding
    assert np.abs(small.vectors(system(config)) - wanted).max() > 0.1


def test_a_merged_folder_has_the_librarys_model_alone(made, encoders, tmp_path):
    trained(made("bert")).save(tmp_path / "model")
    assert not (tmp_path / "model" / "adapter").exists()
    found, source = (small.stock(f).state_dict() for f in (tmp_path / "model", encoders["bert"]))
    assert found.keys() == source.keys()
    changed = {name for name, t in found.items() if not torch.equal(t, source[name])}
    projections = ("self.query", "self.key", "self.value", "output.dense")
    assert changed == {f"encoder.layer.{n}.attention.{p}.weight" for n in range(LAYERS) for p in projections}


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"rank": 2**40}, {"alpha": 0.0}, {"alpha": float("nan")}, {"adapter_dropout": 1.0}]
)
def test_numbers_out_of_range_are_refused(made, options):
    with pytest.raises(RequestError, match="expected --rank from 1 to 65,536, --alpha above 0 and --adapter-dropout"):
        made("bert", **options)
    with pytest.raises(RequestError, match="--prompt: expected one view"):
        made("bert", prompt="concat-cs+question")


@pytest.mark.parametrize("kind", KINDS)
def test_case_takes_the_vectors_of_a_fine_tuned_encoder(made, kind, tmp_path):
    trained(made(kind)).save(tmp_path / "model")
    loaded = raycase.load(str(tmp_path / "model"), dtype=torch.float32)
    config = job(tmp_path / "model").config()
    assert isinstance(config, CaseConfig)
    assert not config.subtract
    arguments = SENTENCES, [*CONDITIONS, "dog"]
    close(system(config).embed(*arguments), loaded.embed(*arguments))
    assert config.describe()["weights"] == loaded.config.describe()["weights"]
    if kind == "bert":  # whose base is the condition alone
        less = system(job(tmp_path / "model", subtract=True).config()).embed(SENTENCES[:4], CONDITIONS)
        close(less, loaded.embed(SENTENCES[:4], CONDITIONS) - loaded.embed(CONDITIONS, None), atol=5e-6)


def job(folder, **options):
    files = {"train": "a.csv", "validation": "b.csv", "output": "out"}
    return ProjectorJob(model=str(folder), **files, **options)


def test_case_takes_a_bi_encoder_too_and_no_cross_encoder(encoders, tmp_path):
    bi_encoder(encoders["bert"]).trainable().save(tmp_path / "bi")
    loaded = raycase.load(str(tmp_path / "bi"), dtype=torch.float32)
    close(system(job(tmp_path / "bi").config()).embed(SENTENCES, "dog"), loaded.embed(SENTENCES, "dog"))
    with pytest.raises(RequestError, match=r"^--prompt: .* was trained with concat-cs:all, got cond"):
        job(tmp_path / "bi", prompt="cond").config()
    cross_encoder(encoders["bert"]).trainable().save(tmp_path / "cross")
    with pytest.raises(RequestError, match="expected an encoder without projector, or a fine-tuned bi-encoder, got"):
        job(tmp_path / "cross").config()
