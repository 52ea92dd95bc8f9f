"""Weights that are published as `pytorch_model.bin` alone are the same weights, and a file with more is refused."""

import collections
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from fake_hub import COMMIT, fake_hub
from helpers import ROOT
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.sources import weights_identity
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError

TOKENS = [Tokens(ids=[5, 6, 7], start=0, end=3)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYCASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(tmp_path):
    """The tiny MiniLM in safetensors, and again as it would be published with `pytorch_model.bin` alone."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        tiny.save_encoder(folder, "minilm")
    (folders[1] / "model.safetensors").unlink()
    torch.save(load_file(folders[0] / "model.safetensors"), folders[1] / "pytorch_model.bin")
    return folders


def vectors(folder):
    spec = replace(find_encoder("minilm"), source=str(folder), max_tokens=64)
    return load_encoder(spec, device="cpu", dtype=torch.float32).pool(TOKENS)


def test_they_are_kept_as_safetensors_once(published, cache):
    wanted = vectors(published[0])
    assert np.array_equal(vectors(published[1]), wanted)
    [kept] = cache.glob("models/weights-*/*")
    assert kept.name == "model.safetensors"
    before = kept.stat()
    assert np.array_equal(vectors(published[1]), wanted) and kept.stat() == before
    first = weights_identity(str(published[1]))
    torch.save({k: v + 1 for k, v in load_file(kept).items()}, published[1] / "pytorch_model.bin")
    assert weights_identity(str(published[1])) != first and not np.array_equal(vectors(published[1]), wanted)


def test_shards_are_read_and_names_elsewhere_are_refused(published, tmp_path):
    folder, weights = published[1], load_file(published[0] / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    names = sorted(weights)
    shards = {"pytorch_model-00001-of-00002.bin": names[:5], "pytorch_model-00002-of-00002.bin": names[5:]}
    for file, part in shards.items():
        torch.save({name: weights[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert np.array_equal(vectors(folder), vectors(published[0]))
    shard = folder / next(iter(shards))
    shard.rename(folder / "away")
    with pytest.raises(RequestError, match=rf"got: no {shard.name}, which pytorch_model.bin.index.json names"):
        vectors(folder)
    (folder / "away").rename(shard)
    index["weight_map"][names[0]] = "../a/pytorch_model.bin"
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="expected names of"):
        vectors(folder)


def test_weights_that_changed_beside_other_safetensors_are_read(published):
    folder, weights = published[1], load_file(published[0] / "model.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "other.safetensors")
    before, first = vectors(folder), weights_identity(str(folder))
    assert np.array_equal(before, vectors(published[0]))
    torch.save({name: weight + 1 for name, weight in weights.items()}, folder / "pytorch_model.bin")
    assert weights_identity(str(folder)) != first and not np.array_equal(vectors(folder), before)


def test_one_file_goes_before_shards(published):
    """As transformers has it."""
    folder, weights = published[1], load_file(published[0] / "model.safetensors")
    torch.save({name: weight + 1 for name, weight in weights.items()}, folder / "shard.bin")
    index = {"weight_map": dict.fromkeys(weights, "shard.bin")}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert np.array_equal(vectors(folder), vectors(published[0]))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("run",)


@pytest.mark.parametrize(
    "content, said",
    [
        (Evil(), "holds more than tensors"),
        ({"a": Evil()}, "holds more than tensors"),
        ({"a": torch.ones(2), "b": 3}, "with a int in it"),
        ({"a": {"b": torch.ones(2)}}, "with a dict in it"),
        ({1: torch.ones(2)}, "expected tensors by name"),
        ([torch.ones(2)], "with a list in it"),
        ({"a": torch.ones(2).to_sparse()}, "expected tensors by name"),
        (collections.OrderedDict(a=torch.ones(2)), "weights missing"),
        (b"", "holds more than tensors, or is cut off"),
        (b"PK\x03\x04", "holds more than tensors, or is cut off"),
    ],
)
def test_what_holds_more_than_tensors_is_refused_and_nothing_runs(content, said, published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = published[1] / "pytorch_model.bin"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(RequestError, match=f"--model: expected readable weights at .*{said}"):
        vectors(published[1])
    assert not (tmp_path / "run").exists()


def test_a_pipe_in_place_of_them_does_not_hang(published):
    (published[1] / "pytorch_model.bin").unlink()
    os.mkfifo(published[1] / "pytorch_model.bin")
    with pytest.raises(RequestError, match="--model: expected"):
        vectors(published[1])
    with pytest.raises(
        RequestError, match=r"--model: expected readable weights at .*, got: no model.safetensors or pytorch_m"
    ):
        weights_identity(str(published[1]))


LOAD = """
import json, sys, torch
from raycase.encoder.loading import load_encoder
from raycase.encoder.choices import find_encoder
from raycase.encoder.sources import weights_identity
from raycase.encoder.token_batch import Tokens
for name in sys.argv[1:]:
    spec = find_encoder(name)
    encoder = load_encoder(spec, device="cpu", dtype=torch.float32)
    vectors = encoder.pool([Tokens(ids=[5, 6, 7], start=0, end=3)])
    ids = encoder.tokenize.tokenizer.encode("A woman in a red dress").ids
    print(json.dumps([weights_identity(spec.source), ids, vectors[0].tolist()]))
"""


@pytest.mark.cluster
def test_simcse_as_it_is_published_is_read_from_a_hub_and_then_without_it(tmp_path):
    """`pytorch_model.bin`, and the vocabulary alone of a tokenizer."""
    names, repositories, wanted = ["simcse-bert-base", "simcse-roberta-large"], {}, []
    for name in names:
        spec = find_encoder(name)
        folder = repositories[spec.source] = tmp_path / name
        folder.mkdir()
        tiny.save_encoder(folder, name)
        encoder = load_encoder(replace(spec, source=str(folder)), device="cpu", dtype=torch.float32)
        ids = encoder.tokenize.tokenizer.encode("A woman in a red dress").ids
        wanted.append((f"{spec.source}@{COMMIT}", ids, encoder.pool(TOKENS)[0]))
        Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        for file in ("tokenizer.json", "model.safetensors"):
            (folder / file).unlink()
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_CACHE": str(tmp_path / "hf" / "hub")}
    with fake_hub(repositories) as (endpoint, asked):
        for more in ({"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}, {"HF_HUB_OFFLINE": "1"}):
            command = [sys.executable, "-c", LOAD, *names]
            done = subprocess.run(command, capture_output=True, text=True, env=environment | more, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            for line, (identity, ids, vector) in zip(done.stdout.splitlines(), wanted, strict=True):
                found = json.loads(line)
                assert found[:2] == [identity, ids] and np.allclose(found[2], vector, atol=1e-6)
    assert sum(path.endswith("/pytorch_model.bin") for path in asked) >= 2
