"""From a name or a folder of anybody to an encoder: which it is, its weights, and every reason to refuse them."""

import json
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import change_json
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel

from raycase.encoder.choices import find_encoder, find_unprompted
from raycase.encoder.loading import best_device, bf16_is_faster, load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import weights_identity
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError
from raycase.models.fine_tuned import TRAIN_TOKENS, training_options
from raycase.names import PromptStyle
from raycase.training.procedure import local_trainer

CHOICES = {"prompt": PromptStyle.CONCAT_SC, "pooling": Pooling.MEAN}


def test_an_unknown_encoder_or_pooling_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match=r"--model: expected one of .*minilm, .*got 'minilmm'"):
        find_encoder("minilmm")
    with pytest.raises(RequestError, match="--pooling: expected one of mean, last for sfr-mistral, got cls"):
        find_encoder("sfr-mistral", pooling=Pooling.CLS)


def test_under_a_prompt_an_encoder_outside_the_table_needs_both(folder_of):
    folder = str(folder_of("minilm"))
    for choice in ({}, {"pooling": Pooling.MEAN}):
        with pytest.raises(RequestError, match="not in the table of encoders; pass --prompt"):
            find_encoder(folder, **choice)
    with pytest.raises(RequestError, match=r"not in the table of encoders, .*pass --pooling"):
        find_encoder(folder, prompt=PromptStyle.COND)


@pytest.mark.parametrize(
    ("name", "causal", "max_tokens"), [("simcse-roberta-large", False, 512), ("qwen3-embedding-0.6b", True, 512)]
)
def test_an_encoder_outside_the_table_is_read_from_its_folder(folder_of, copied, tmp_path, name, causal, max_tokens):
    """Its direction and length; and a tokenizer that says a shorter one is heeded."""
    spec = find_encoder(str(folder_of(name)), **CHOICES)
    assert (spec.causal, spec.max_tokens) == (causal, max_tokens)
    change_json(copied(name) / "tokenizer_config.json", model_max_length=64)
    assert find_encoder(str(tmp_path / name), **CHOICES).max_tokens == 64


@pytest.mark.parametrize(
    ("files", "change", "said"),
    [
        ("config.json", {}, "readable encoder"),
        ("config.json", {"hidden_size": "x"}, "readable encoder"),
        ("config.json", {"vocab_size": []}, "readable encoder"),
        ("tokenizer*", {}, ".*tokenizer.*"),
    ],
)
def test_a_folder_whose_files_are_missing_or_nonsense_is_refused(copied, files, change, said):
    folder = copied("minilm")
    for file in folder.glob(files):
        change_json(file, **change) if change else file.unlink()
    with pytest.raises(RequestError, match=f"--model: expected a {said} at {folder}, got"):
        find_encoder(str(folder), **CHOICES)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_the_identity_of_weights_follows_what_the_tokenizer_is_made_from(copied, name):
    """Vocabularies beside tokenizer.json, which holds them, do not count."""
    folder = copied("simcse-roberta-large")
    beside = weights_identity(str(folder))
    Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))
    assert weights_identity(str(folder)) == beside
    (folder / "tokenizer.json").unlink()
    before = weights_identity(str(folder))
    with (folder / name).open("a") as file:
        file.write("\n")
    assert len({beside, before, weights_identity(str(folder))}) == 3


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


class Evil:
    def __reduce__(self):
        return os.mkdir, ("run",)


def vectors(folder):
    spec = find_encoder(str(folder), **CHOICES)
    return load_encoder(spec, device="cpu", dtype=torch.float32).pool([Tokens(ids=[5, 6, 7], start=0, end=3)])


def test_weights_of_pytorch_are_the_same_weights(copied):
    """As those of SimCSE, which has no others; beside others they are not read."""
    folder = copied("minilm")
    weights, pickled = load_file(folder / "model.safetensors"), folder / "pytorch_model.bin"
    pickled.write_bytes(b"no pickle")
    wanted, identities = vectors(folder), {weights_identity(str(folder))}
    (folder / "model.safetensors").unlink()
    torch.save(weights, pickled)
    np.testing.assert_array_equal(vectors(folder), wanted)
    identities |= {weights_identity(str(folder))}
    torch.save({k: v + 1 for k, v in weights.items()}, pickled)
    assert len(identities | {weights_identity(str(folder))}) == 3


@pytest.mark.parametrize("content", [Evil(), {"embeddings.LayerNorm.bias": Evil()}])
@pytest.mark.parametrize("named", [False, True])
def test_what_holds_more_than_tensors_is_refused_and_nothing_runs(content, named, copied, tmp_path, monkeypatch):
    """Neither where an index of shards names it."""
    monkeypatch.chdir(tmp_path)
    folder = copied("minilm")
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / ("evil.bin" if named else "pytorch_model.bin"))
    if named:
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "evil.bin")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="--model: expected readable weights at "):
        vectors(folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_does_not_run(copied, tmp_path, file):
    """Neither by `auto_map`, nor by the modules of sentence-transformers."""
    folder, ran = copied("minilm"), tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass")
    change_json(folder / file, auto_map=dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "evil.Evil"))
    load_encoder(find_encoder(str(folder), **CHOICES))
    kinds = ["sentence_transformers.models.Transformer", "evil.Evil"]
    modules = [{"idx": n, "name": str(n), "path": "", "type": kind} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(RequestError, match=r"evil\.Evil"):
        find_unprompted(str(folder))
    assert not ran.exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_called_one(copied, name):
    folder = copied("minilm")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n")
    with pytest.raises(
        RequestError, match=rf"^--model: expected the content of .*{name}, got a pointer of Git LFS; run"
    ):
        load_encoder(find_encoder(str(folder), **CHOICES))
