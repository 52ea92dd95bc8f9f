"""What training saves is read by sentence-transformers, transformers, TEI and vLLM: the same vectors, truncated texts
among them."""

import json

import numpy as np
import pytest
import tiny
import torch
from helpers import Later
from transformers import AutoModel, AutoTokenizer

import raycase
from raycase.encoder.pooling import Pooling
from raycase.models.configs import sentence_encoder
from raycase.papers.baselines.model import TriEncoderConfig, bi_encoder, lora

library = Later("sentence_transformers")
TEXTS = ["a red dog runs in the park", "two girls", "a man " * 60, "the [SEP] dog"]


def saved(config, folder):
    """The folder of a system, and the loaded system."""
    system = config.trainable(0.0)
    for weights in system.parameters():
        weights.data.mul_(1.01)
    system.save(folder)
    return str(folder), raycase.load(folder, dtype=torch.float32)


def same(found, wanted):
    np.testing.assert_allclose(found[:3], wanted[:3], atol=1e-5)  # "[SEP]" is text for raycase


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.MEAN_ALL])
def test_a_bi_encoder_with_its_condition_as_prompt(tiny_model, tmp_path, pooling):
    config = bi_encoder(str(tiny_model), pooling=pooling)
    assert config.text_of_pair == "{condition}: {sentence}"
    folder, model = saved(config, tmp_path / "bi")
    read = library.SentenceTransformer(folder, device="cpu")
    same(read.encode(TEXTS, prompt="color: "), model.encode(TEXTS, "color"))
    same(read.encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("make", "name", "pooling", "mode"),
    [
        (bi_encoder, "minilm", Pooling.MEAN, "mean_tokens"),
        (bi_encoder, "simcse-roberta-large", Pooling.CLS, "cls_token"),
        (lora, "qwen3-embedding-0.6b", Pooling.LAST, "lasttoken"),
        (sentence_encoder, "minilm", Pooling.MEAN, "mean_tokens"),
        (TriEncoderConfig.untrained, "e5-large-instruct", Pooling.MEAN, "mean_tokens"),
    ],
)
def test_the_files_that_tei_and_vllm_read_are_at_the_root(tmp_path, make, name, pooling, mode):
    """Their names and fields, as the Rust of text-embeddings-inference and vLLM's transformers_utils read them."""
    start = str(tiny.save_encoder(tmp_path / "start", name))
    options = {"prompt": "concat-cs:all"} if make in (bi_encoder, lora) else {}
    folder, model = saved(make(start, pooling=pooling, **options), tmp_path / "model")

    def read(file):
        return json.loads((tmp_path / "model" / file).read_text())

    config = read("config.json")
    assert len(config["architectures"]) == 1 and {"model_type", "max_position_embeddings"} <= config.keys()
    pooled = read("1_Pooling/config.json")
    assert [key for key, value in pooled.items() if key.startswith("pooling_mode_") and value] == [
        f"pooling_mode_{mode}"
    ]
    length = read("sentence_bert_config.json")
    assert length == {"max_seq_length": model.config.encoder.max_tokens, "do_lower_case": False}
    kinds = [(module["type"], module["path"]) for module in read("modules.json")]
    prefix = "sentence_transformers.models"
    assert kinds == [(f"{prefix}.Transformer", ""), (f"{prefix}.Pooling", "1_Pooling")]
    assert read("config_sentence_transformers.json")["prompts"] == {}
    assert {"model", "added_tokens"} <= read("tokenizer.json").keys()
    # vLLM takes every file with this ending for a part of the model
    assert [file.name for file in (tmp_path / "model").rglob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "model" / "encoder").exists()

    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS[1], return_tensors="pt")
    states, info = AutoModel.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not set(info["missing_keys"]) - {"pooler.dense.weight", "pooler.dense.bias"}
    states_TD = states(**tokens).last_hidden_state[0].detach()
    wanted = {"mean_tokens": states_TD.mean(0), "cls_token": states_TD[0], "lasttoken": states_TD[-1]}[mode]
    np.testing.assert_allclose(model.encode(TEXTS[1]), wanted, atol=1e-4)


def test_what_they_would_read_otherwise_is_not_at_the_root_and_not_offered(tiny_model, tmp_path):
    part = bi_encoder(str(tiny_model), prompt="concat-cs:sentence")
    saved(part, tmp_path / "part")
    assert (tmp_path / "part" / "encoder" / "config.json").exists()
    assert sorted(file.name for file in (tmp_path / "part").iterdir()) == ["encoder", "raycase.json"]
    assert part.text_of_pair is None
    assert lora(str(tiny_model), prompt="concat-cs:all").text_of_pair == "{condition} {sentence}"
    behind = lora(str(tiny_model), prompt="concat-sc:all")  # a long sentence would push the condition out
    assert behind.text_of_pair is None


@pytest.mark.parametrize("name", ["qwen3-embedding-0.6b", "simcse-roberta-large", "e5-large-instruct"])
def test_encoders_of_other_kinds_without_white_space_around_a_text(tmp_path, name):
    config = bi_encoder(str(tiny.save_encoder(tmp_path / "encoder", name)), pooling=Pooling.LAST)
    folder, model = saved(config, tmp_path / "bi")
    texts = [*map(str.strip, TEXTS[:3]), "two  spaces,\na line"]
    found = library.SentenceTransformer(folder, device="cpu").encode(texts, prompt="color: ")
    np.testing.assert_allclose(found, model.encode(texts, "color"), atol=1e-4)
