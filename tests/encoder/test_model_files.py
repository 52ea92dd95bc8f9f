"""Folders of strangers: no pickle is read, whatever their settings name."""

import json
import os

import numpy as np
import pytest
import torch
from helpers import change_json
from safetensors.torch import load_file

from raycase.encoder.choices import find_encoder, find_unprompted
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import weights_identity
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError

CHOICES = {"prompt": "concat-sc", "pooling": Pooling.MEAN}


class Evil:
    def __reduce__(self):
        return os.mkdir, ("run",)


def unsafe(folder, content=None):
    """Publish the weights as `pytorch_model.bin` alone, or this in their place."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights if content is None else content, folder / "pytorch_model.bin")
    return folder


def vectors(folder):
    spec = find_encoder(str(folder), **CHOICES)
    return load_encoder(spec, device="cpu", dtype=torch.float32).pool([Tokens(ids=[5, 6, 7], start=0, end=3)])


def test_weights_of_pytorch_are_the_same_weights(copied):
    """As those of SimCSE, which has no others."""
    folder = copied("minilm")
    wanted, before = vectors(folder), weights_identity(str(folder))
    np.testing.assert_array_equal(vectors(unsafe(folder)), wanted)
    first = weights_identity(str(folder))
    torch.save({k: v + 1 for k, v in torch.load(folder / "pytorch_model.bin").items()}, folder / "pytorch_model.bin")
    assert len({before, first, weights_identity(str(folder))}) == 3


@pytest.mark.parametrize("content", [Evil(), {"embeddings.LayerNorm.bias": Evil()}])
@pytest.mark.parametrize("named", [False, True])
def test_what_holds_more_than_tensors_is_refused_and_nothing_runs(content, named, copied, tmp_path, monkeypatch):
    """Neither where an index of shards names it."""
    monkeypatch.chdir(tmp_path)
    folder = copied("minilm")
    names = load_file(folder / "model.safetensors")
    unsafe(folder, content)
    if named:
        (folder / "pytorch_model.bin").rename(folder / "evil.bin")
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "evil.bin")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="--model: expected readable weights at "):
        vectors(folder)
    assert not (tmp_path / "run").exists()


def test_a_pickle_beside_the_weights_is_not_read(copied):
    folder = copied("minilm")
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")
    load_encoder(find_encoder(str(folder), **CHOICES))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_does_not_run(copied, tmp_path, file):
    """Neither by `auto_map`, nor by the modules of sentence-transformers."""
    folder = copied("minilm")
    ran = tmp_path / "ran"
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
