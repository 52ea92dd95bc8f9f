"""Folders of strangers: no pickle is read, and no file outside of them, whatever their settings name."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import hub_commit, load_tokenizer, weights_identity
from raycase.errors import RequestError

CHOICES = {"prompt": "concat-sc", "pooling": Pooling.MEAN}


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def adapter_in(folder, **values):
    """A LoRA adapter of any encoder, as peft saves it."""
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "base_model_name_or_path": "stranger/encoder", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(settings | values))
    save_file({"base_model.model.x.lora_A.weight": torch.zeros(8, 4)}, folder / "adapter_model.safetensors")
    return folder


def sharded(folder, shard):
    """Name a file as that which holds all weights."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights


ELSEWHERE = ["pytorch_model.bin", "../elsewhere.safetensors", "{home}/elsewhere.safetensors", "sub/a.safetensors", ""]


@pytest.mark.parametrize("shard", ELSEWHERE)
def test_an_index_that_names_a_pickle_or_files_elsewhere_is_refused(copied, shard):
    """These are no part of what identifies the weights."""
    folder = copied("minilm")
    weights = sharded(folder, shard.format(home=folder.parent))
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "sub").mkdir()
    for file in (folder.parent / "elsewhere.safetensors", folder / "sub" / "a.safetensors", folder / "b.safetensors"):
        save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(RequestError, match=r"in model.safetensors.index.json, expected names of \*.safetensors in the"):
        load_encoder(find_encoder(str(folder), **CHOICES))


def test_a_configuration_that_names_a_pickle_is_refused(copied):
    folder = copied("minilm")
    torch.save(load_file(folder / "model.safetensors"), folder / "adapter_model.bin")
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    with pytest.raises(RequestError, match=r"got: transformers_weights in config.json, expected weights under"):
        load_encoder(find_encoder(str(folder), **CHOICES))


def test_a_pickle_beside_the_weights_is_not_read(copied):
    folder = copied("minilm")
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")
    load_encoder(find_encoder(str(folder), **CHOICES))


@pytest.mark.parametrize("spoiled", [None, "'pytorch_model.bin' in", "a LoRA ad"])
def test_a_hugging_face_id_is_read_with_the_same_care(copied, tmp_path, monkeypatch, spoiled):
    """From the hub's cache, which holds one commit; an id without one is refused."""
    commit = "0123456789" * 4
    home = tmp_path / "hub" / "models--some--encoder"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    folder = home / "snapshots" / commit
    shutil.copytree(copied("minilm"), folder)
    if spoiled == "a LoRA ad":
        adapter_in(folder)
    elif spoiled:
        torch.save(sharded(folder, "pytorch_model.bin"), folder / "pytorch_model.bin")
    (home / "trees").mkdir()  # the commit was fetched as a whole: it has no modules.json
    names = [str(file.relative_to(folder)) for file in folder.rglob("*")]
    (home / "trees" / f"{commit}.json").write_text(json.dumps({"files": dict.fromkeys(names)}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_commit.cache_clear()
    spec = find_encoder("some/encoder", **CHOICES)
    if spoiled is None:
        load_encoder(spec)
        assert weights_identity("some/encoder") == f"some/encoder@{commit}"
        with pytest.raises(RequestError, match="--model: expected a readable encoder at some/other"):
            weights_identity("some/other")
        return
    with pytest.raises(RequestError, match=f"^--model: expected readable weights at some/encoder, got: {spoiled}"):
        load_encoder(spec)


@pytest.mark.parametrize("choices", [{}, CHOICES])
def test_an_adapters_folder_is_called_one(tmp_path, choices):
    folder = adapter_in(tmp_path / "adapter")
    with pytest.raises(RequestError, match=r"^--model: expected an encoder, got a LoRA adapter in .*; merge"):
        find_encoder(str(folder), **choices)


def test_an_encoder_with_an_adapter_beside_its_weights_is_refused(copied):
    """transformers looks at it only where peft is installed."""
    folder = adapter_in(copied("minilm"))
    with pytest.raises(RequestError, match=r"^--model: expected an encoder, got a LoRA adapter in "):
        load_encoder(find_encoder(str(folder), **CHOICES))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_does_not_run(copied, tmp_path, file):
    """Neither by `auto_map`, nor by the modules of sentence-transformers."""
    folder = copied("minilm")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass")
    change(folder / file, auto_map=dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "evil.Evil"))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]))
    load_encoder(find_encoder(str(folder), **CHOICES))
    assert not ran.exists()


def test_a_tokenizer_of_another_folder_is_not_read(copied):
    folder = copied("minilm")
    shutil.copy(folder / "tokenizer.json", folder.parent / "tokenizer.4.0.json")
    change(folder / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.json"])
    with pytest.raises(RequestError, match=r"got: '../tokenizer.4.0.json' in tokenizer_config.json, expected names of"):
        find_encoder(str(folder), **CHOICES)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_called_one(copied, name):
    folder = copied("minilm")
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n")
    with pytest.raises(
        RequestError, match=rf"^--model: expected the content of .*{name}, got a pointer of Git LFS; run"
    ):
        load_encoder(find_encoder(str(folder), **CHOICES))


def test_leftovers_of_an_editor_are_no_files_of_a_model(copied):
    folder = copied("minilm")
    (folder / ".#README.md").symlink_to("me@here.1")
    (folder / "eval.md").mkdir()
    assert find_encoder(str(folder), **CHOICES)


def test_links_to_regular_files_are_right(copied):
    """The Hugging Face cache is made of them."""
    folder = copied("minilm")
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for i, file in enumerate([f for f in folder.iterdir() if f.is_file()]):
        file.rename(blobs / str(i))
        file.symlink_to(os.path.relpath(blobs / str(i), folder))
    spec = find_encoder(str(folder), **CHOICES)
    load_encoder(spec)
    assert load_tokenizer(spec).special_tokens
