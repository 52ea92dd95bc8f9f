"""Encoders of every architecture give the vectors of transformers: alone, under conditions, and of each layer."""

import json
import resource
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from architectures import ARCHITECTURES, DECODERS, library_states, save_random
from safetensors.torch import load_file, save_file

import raycase
from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder, whole_model
from raycase.encoder.pooling import Pooling
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.errors import RequestError
from raycase.models.model_folder import save_encoder
from raycase.names import PromptStyle
from raycase.tokens.states import StateReader

TEXTS = [text for text in tiny.SENTENCES if text.strip()]  # from one token to 120, beyond every window
SHORT = ["A woman in a red dress", "Two people play (with a dog)!", "a"]  # none is cut


def cosines(found, wanted):
    return torch.nn.functional.cosine_similarity(torch.as_tensor(found), torch.as_tensor(wanted), dim=-1).min().item()


def spec_of(folder):
    return find_encoder(str(folder), prompt=PromptStyle.CONCAT_SC, pooling=Pooling.MEAN)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_architecture_has_the_vectors_of_the_library(architecture, tmp_path):
    folder = save_random(tmp_path / "model", architecture)
    spec = spec_of(folder)
    assert spec.causal == (architecture in DECODERS)
    encoder = load_encoder(spec, device="cpu", dtype=torch.float32)
    ids = [encoder.tokenize.tokenizer.encode(text).ids[: spec.max_tokens] for text in TEXTS]
    tokens = [Tokens(ids=each, start=0, end=len(each)) for each in ids]
    library = library_states(folder, ids)
    wanted = np.stack([states[-1].mean(0).numpy() for states in library])
    assert cosines(encoder.pool(tokens), wanted) > 0.9999
    assert cosines(np.concatenate([encoder.pool([each]) for each in tokens]), wanted) > 0.9999
    layers = [0, 1, 2, 3]
    found = {}

    def keep(rows, states):
        for i, each, real in zip(rows, states.states, states.real, strict=True):
            found[i] = each[real].reshape(-1, 4, 32)

    StateReader(encoder, layers).read(TokenBatch.of(tokens, tokens), keep)
    for i, states in enumerate(library):
        assert cosines(found[i], states.transpose(0, 1)) > 0.9999, f"text {i}"
    conditional = raycase.load(str(folder), prompt="concat-sc", pooling="mean", device="cpu", dtype=torch.float32)
    prompts, [base] = [f"{text} color" for text in SHORT], means(folder, encoder, ["color"])
    assert cosines(conditional.embed(SHORT, "color"), means(folder, encoder, prompts) - base) > 0.9999


def means(folder, encoder, prompts):
    """The mean state of each prompt, as transformers has it."""
    ids = [each.ids for each in encoder.tokenize.tokenizer.encode_batch(prompts)]
    return np.stack([states[-1].mean(0).numpy() for states in library_states(folder, ids)])


def test_a_decoder_read_in_both_directions_sees_the_whole_text_and_an_encoder_keeps_its_windows(tmp_path):
    ids = [5 + i % 7 for i in range(40)]
    for architecture, changes in (("mistral", True), ("gemma3_text, both ways", False)):
        spec = replace(spec_of(save_random(tmp_path / architecture, architecture)), causal=False)
        encoder = load_encoder(spec, device="cpu", dtype=torch.float32)
        first, other = (Tokens(ids=[i, *ids], start=40, end=41) for i in (5, 6))
        near = cosines(encoder.pool([first]), encoder.pool([other]))
        assert (near < 0.99999) == changes, f"{architecture}: three windows of 8"


@pytest.mark.parametrize("architecture", ["clip", "nonsense"])
def test_what_encodes_no_texts_is_refused_by_its_name(architecture, tmp_path):
    folder = save_random(tmp_path / "model", "bert")
    (folder / "config.json").write_text(
        json.dumps({"model_type": architecture, "hidden_size": 32, "num_hidden_layers": 2})
    )
    with pytest.raises(RequestError, match=rf"--model: expected .*{architecture}"):
        load_encoder(spec_of(folder))


def test_the_last_layer_alone_has_relative_positions_too(tmp_path):
    """MPNet's, which is computed for the pooled tokens only."""
    folder = save_random(tmp_path / "model", "mpnet")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.relative_attention_bias.weight"] *= 10
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    encoder = load_encoder(spec_of(folder), device="cpu", dtype=torch.float32, by_library=True)
    ids = [encoder.tokenize.tokenizer.encode(text).ids for text in SHORT]
    tokens = [Tokens(ids=each, start=len(each) // 2, end=len(each) - 1) for each in ids]
    library = zip(library_states(folder, ids), tokens, strict=True)
    wanted = np.stack([states[-1][each.start : each.end].mean(0).numpy() for states, each in library])
    assert encoder.last_layer is not None
    np.testing.assert_allclose(encoder.pool(tokens), wanted, atol=1e-5)


def test_a_disk_without_room_is_an_error_in_one_line_when_an_encoder_is_saved(tmp_path):
    spec = spec_of(save_random(tmp_path / "model", "mpnet"))
    model = whole_model(load_encoder(spec, device="cpu", by_library=True))
    (tmp_path / "saved").mkdir()
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, most))
    try:
        with pytest.raises(OSError, match=r"^expected to write the encoder into .*, got: .*File too large"):
            save_encoder(model, spec, tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
