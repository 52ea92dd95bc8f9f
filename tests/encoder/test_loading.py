"""Weights: in shards, in the target type, and every reason to refuse them."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from raycase.encoder.loading import best_device, bf16_is_faster, load_encoder
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.models.fine_tuned import TRAIN_TOKENS, training_options
from raycase.training.procedure import local_trainer


@pytest.mark.parametrize("accelerate", [True, False])
def test_weights_in_several_shards_load_in_the_target_type(folder_of, tmp_path, monkeypatch, accelerate):
    """Straight to the device where accelerate is installed, by way of the CPU else."""
    source = folder_of("qwen3-embedding-0.6b")
    AutoModel.from_pretrained(source).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda: accelerate)
    specs = [replace(ENCODERS["qwen3-embedding-0.6b"], source=str(folder)) for folder in (tmp_path, source)]
    for dtype in (torch.float32, torch.bfloat16):
        found, wanted = (load_encoder(spec, dtype=dtype) for spec in specs)
        assert {p.dtype for p in found.model.parameters()} == {dtype}
        for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
            assert torch.equal(a, b)


def changed(folder, change):
    """Change the weights of a folder by name and value; what becomes None is left out."""
    weights = {k: change(k, v) for k, v in load_file(folder / "model.safetensors").items()}
    kept = {k: v for k, v in weights.items() if v is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


IN_LAYER, LATENT = re.compile(r"layers?\.1\."), re.compile("latent")
MISSING = [("minilm", IN_LAYER), ("nv-embed-v2", IN_LAYER), ("nv-embed-v2", LATENT)]


@pytest.mark.parametrize(("name", "of"), MISSING)
@pytest.mark.parametrize("spoiled", ["missing", "other shape", "no safetensors"])
def test_weights_that_do_not_fit_are_refused(copied, name, of, spoiled):
    """transformers would fill them in at random."""
    folder = copied(name)
    changed(folder, lambda k, v: v if not of.search(k) else None if spoiled == "missing" else v.new_zeros(99, 9))
    if spoiled == "no safetensors":
        (folder / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(RequestError, match=f"--model: expected readable weights at {folder}, got: "):
        load_encoder(replace(ENCODERS[name], source=str(folder)))


def test_weights_without_the_unused_pooler_serve(copied):
    folder = copied("minilm")
    changed(folder, lambda k, v: None if k.startswith("pooler") else v)
    load_encoder(replace(ENCODERS["minilm"], source=str(folder)))


@pytest.mark.parametrize(
    ("there", "wanted"),
    [("", "cpu"), ("mps", "mps"), ("xpu", "xpu"), ("cuda xpu", "cuda"), ("cuda mps", "cuda"), ("xpu mps", "xpu")],
)
def test_the_best_device_that_torch_has_is_chosen_once(monkeypatch, capsys, there, wanted):
    for name, module in (("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.backends.mps)):
        monkeypatch.setattr(module, "is_available", lambda name=name: name in there.split())
    best_device.cache_clear()
    try:
        trainer = local_trainer(None)
        assert (best_device(), trainer.fit.keywords["device"], trainer.on_gpu) == (wanted, wanted, wanted == "cuda")
        assert local_trainer(0).fit.keywords["device"] == "cpu"
        assert training_options()["batch_tokens"] == TRAIN_TOKENS["cuda" if wanted == "cuda" else "cpu"]
        if wanted in ("xpu", "mps"):
            assert not bf16_is_faster(torch.device(wanted))
            assert capsys.readouterr().err.count(f"Running on {wanted}, where raycase is not tested: in float32") == 1
    finally:
        best_device.cache_clear()
