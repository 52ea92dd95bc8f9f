"""Which encoder a name or folder stands for, and what identifies its weights."""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from raycase.encoder.choices import find_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import PromptStyle
from raycase.encoder.sources import weights_identity
from raycase.errors import RequestError


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
    ("name", "causal", "max_tokens"),
    [
        ("simcse-roberta-large", False, 512),
        ("qwen3-embedding-0.6b", True, 512),
    ],
)
def test_an_encoder_outside_the_table_is_read_from_its_folder(folder_of, copied, name, causal, max_tokens):
    """Its direction and length; and a tokenizer that says a shorter one is heeded."""
    choices = {"prompt": PromptStyle.CONCAT_SC, "pooling": Pooling.MEAN}
    spec = find_encoder(str(folder_of(name)), **choices)
    assert (spec.causal, spec.max_tokens) == (causal, max_tokens)
    file = copied(name) / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 64}))
    assert find_encoder(str(file.parent), **choices).max_tokens == 64


NONSENSE = [{"hidden_size": "x"}, {"vocab_size": []}]


@pytest.mark.parametrize("change", [None, *NONSENSE])
def test_a_configuration_that_is_missing_or_nonsense_is_refused(copied, change):
    folder = copied("minilm")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    if change:
        (folder / "config.json").write_text(json.dumps(values | change))
    with pytest.raises(RequestError, match=f"--model: expected a readable encoder at {folder}, got: "):
        find_encoder(str(folder), prompt=PromptStyle.COND, pooling=Pooling.MEAN)


def test_a_folder_without_tokenizer_is_refused(folder_of, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder_of("minilm") / name, tmp_path)
    with pytest.raises(RequestError, match=f"--model: expected a .*tokenizer.* at {tmp_path}, got"):
        find_encoder(str(tmp_path), prompt=PromptStyle.COND, pooling=Pooling.MEAN)


def test_the_identity_of_weights_follows_their_bytes(copied):
    folder = copied("minilm")
    before = weights_identity(str(folder))
    assert re.fullmatch("sha256:[0-9a-f]{64}", before)
    assert weights_identity(str(folder)) == before
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_identity(str(folder)) != before


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
