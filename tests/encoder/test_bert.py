"""BERT and its like by OpenVINO beside transformers' own, and what commands import with the encoders that ship."""

import copy
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from architectures import SIZES, save_random
from helpers import ROOT
from transformers import AutoConfig, AutoModel

import raycase
from raycase.encoder.loading import load_encoder
from raycase.encoder.model_files import MPNET
from raycase.encoder.on_cpu import OnCpu
from raycase.encoder.sources import SHIPPED_WITH, load_tokenizer, published_tokenizer
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import TokenBatch

MINILM = ENCODERS["minilm"]
TEXTS = [text for text in tiny.SENTENCES if text.strip("\u200b \n")]


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet"])
def test_its_states_are_the_librarys(tmp_path, kind):
    folder = save_random(tmp_path / kind, kind)
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    weights = {name: weight.numpy() for name, weight in theirs.state_dict().items()}
    ours = OnCpu(theirs.config, weights, bf16=False)
    pad, generator = theirs.config.pad_token_id, torch.Generator().manual_seed(0)
    ids_BT = torch.randint(4, 90, (3, 150), generator=generator)  # MPNet's bias ends at a distance of 128
    keep_BT = torch.arange(150) < torch.tensor([[150], [90], [1]])
    ids_BT = ids_BT.masked_fill(~keep_BT, pad)
    types = {"token_type_ids": (torch.arange(150) > 70).int().expand(3, -1)} if kind == "bert" else {}
    with torch.inference_mode():
        wanted = theirs(input_ids=ids_BT, attention_mask=keep_BT.long(), output_hidden_states=True, **types)
        found = ours(input_ids=ids_BT, attention_mask=keep_BT.long(), output_hidden_states=True, **types)
    for theirs_BTD, ours_BTD in zip(wanted.hidden_states, found.hidden_states, strict=True):
        assert torch.allclose(ours_BTD[keep_BT], theirs_BTD[keep_BT], atol=2e-5)
    assert found.last_hidden_state is found.hidden_states[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_loaded_model_is_sent_to_another_process_and_copied(dtype):
    model = raycase.load(dtype=dtype)
    vectors = model.encode(TEXTS, "the animal")
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        sent = other.submit(model.encode, TEXTS, "the animal").result()
    for found in (sent, copy.deepcopy(model).encode(TEXTS, "the animal")):
        np.testing.assert_array_equal(found, vectors)


def test_what_ships_has_the_vectors_and_tokens_of_transformers():
    tokenizer = load_tokenizer(MINILM)
    theirs = published_tokenizer(MINILM.source).backend_tokenizer
    theirs.no_padding()
    theirs.no_truncation()
    theirs.encode_special_tokens = True
    assert json.loads(tokenizer.tokenizer.to_str()) == json.loads(theirs.to_str())
    prompts = [SimpleNamespace(text=t, sentence=(0, len(t)), condition=None, pooled=None) for t in TEXTS]
    batch = TokenBatch.of(tiny.tokens(tokenizer, prompts))
    options = {"device": "cpu", "dtype": torch.float32}
    library = load_encoder(MINILM, by_library=True, **options)
    ours = load_encoder(MINILM, **options)
    assert type(ours.model).__module__ == "raycase.encoder.on_cpu"
    assert type(library.model).__module__.startswith("transformers.")
    for each in (batch, replace(batch, second=np.minimum(batch.lengths, 3))):
        assert np.allclose(ours.encode(each)[0], library.encode(each)[0], atol=2e-5)


@pytest.mark.parametrize("choices", [{"pad_token_id": 0}, {"pad_token_id": 5}, {"relative_attention_num_buckets": 64}])
def test_what_the_library_fixes_of_mpnet_is_fixed(choices):
    """Its padding is 1 and its distances have 32 buckets, whatever a configuration has."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("mpnet", **SIZES | choices, vocab_size=100)
    theirs = AutoModel.from_config(config, attn_implementation="eager").eval()
    theirs.encoder.relative_attention_bias.weight.data.normal_()
    ours = OnCpu(config, {name: weight.numpy() for name, weight in theirs.state_dict().items()}, bf16=False)
    ids_BT = torch.randint(2, 90, (2, 150), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted, found = (model(input_ids=ids_BT).last_hidden_state for model in (theirs, ours))
    assert torch.allclose(found, wanted, atol=2e-5)


def test_a_signal_is_handled_after_models_have_gone():
    code = (
        "import raycase, signal\nfirst, second = raycase.load(), raycase.load()\ndel first\ndel second\n"
        "signal.signal(signal.SIGINT, lambda number, frame: print('handled'))\nsignal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "handled\n", done.returncode


def test_no_use_of_openvino_is_reported(tmp_path):
    """Its own import would have another process, a fork of this one, send an event, and write into the home folder."""
    code = (
        "import os, sys\nos.register_at_fork(before=lambda: print('forked'))\nimport raycase.encoder.on_cpu\n"
        "import openvino.tools.ovc as ovc\nprint(type(ovc.telemetry).__module__, 'openvino_telemetry' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"HOME": str(tmp_path)}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert done.stdout == "openvino.tools.ovc.telemetry_stub False\n", done
    assert not [*tmp_path.iterdir()]


def test_who_hid_the_reports_of_openvino_finds_them_hidden():
    code = (
        "import sys\nsys.modules['openvino_telemetry'] = None\nimport raycase.encoder.on_cpu\n"
        "print(sys.modules['openvino_telemetry'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "None\n", done


def test_int8_is_near_and_refused_where_it_is_not_computed(tmp_path):
    """The texts that ship give the ranges; these are others."""
    vectors = [raycase.load("minilm", dtype=dtype, prompt="concat-sc").encode(TEXTS) for dtype in (None, torch.int8)]
    cosines = np.sum(vectors[0] * vectors[1], 1) / np.prod([np.linalg.norm(each, axis=1) for each in vectors], axis=0)
    assert cosines.mean() > 0.998 and 0.98 < cosines.min() < 0.99999
    other = replace(MINILM, source=str(save_random(tmp_path / "t5", "t5")))
    with pytest.raises(ValueError, match=r"^--compute int8: expected bert, .* on a processor, got t5 by transformers"):
        load_encoder(other, device="cpu", dtype=torch.int8)


def test_a_model_that_openvino_does_not_compute_alike_is_the_librarys(tmp_path):
    assert {MINILM.source, f"hf://{MPNET}"} < {*SHIPPED_WITH}
    for choices in ({"hidden_act": "tanh"}, {"is_decoder": True}):
        folder = save_random(tmp_path / next(iter(choices)), "bert")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | choices))
        spec = replace(MINILM, source=str(folder), max_tokens=100)
        assert type(load_encoder(spec, device="cpu").model).__module__.startswith("transformers.")
        with pytest.raises(ValueError, match="got bert by transformers; leave it out"):
            load_encoder(spec, device="cpu", dtype=torch.int8)


def test_commands_import_no_more_than_they_use(tmp_path):
    """index and verify only move vectors and stored tokens; search and embed encode by an encoder that ships."""

    def imported(*words):
        code = f"import sys, raycase.cli as c\nc.main({[str(word) for word in words]})\nprint(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert not done.returncode, done.stderr  # no thread aborts the end, either
        return set(done.stdout.splitlines()[-1].split())

    out, index = tmp_path / "out", tmp_path / "index.lance"
    encoding = {"transformers", "torch._dynamo", "torch._inductor", "sympy", "scipy", "jinja2", "PIL", "httpx", "ray"}
    rows = tmp_path / "in.csv"
    rows.write_text("text\nTwo girls in red play.\nA man sleeps.\n")
    embed = imported("embed", "--input", rows, "--any-condition", "--output", out, "--no-ray")
    moved = [imported("index", "--embeddings", out, "--output", index), imported("verify", out, "--no-ray")]
    search = imported("search", "--index", index, "--query", "a beach", "--condition", "place")
    assert not (embed | search) & encoding and not set.union(*moved) & (encoding | {"torch"})
    assert "torch" in search, "the names are those of modules"
