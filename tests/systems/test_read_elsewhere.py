"""What training saves is read by sentence-transformers: the same vectors, truncated texts among them."""

import numpy as np
import pytest
import tiny
import torch
from sentence_transformers import SentenceTransformer

import raycase
from raycase.encoder.pooling import Pooling
from raycase.systems.bi_encoder import bi_encoder
from raycase.systems.lora import lora
from raycase.systems.model_card import tuned_card
from raycase.systems.sentence_encoder import sentence_encoder
from raycase.systems.tri_encoder import tri_encoder

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


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.CLS, Pooling.MAX])
def test_a_bi_encoder_with_its_condition_as_prompt(tiny_model, tmp_path, pooling):
    config = bi_encoder(str(tiny_model), pooling=pooling)
    assert config.text_of_pair == "{condition}: {sentence}"
    folder, model = saved(config, tmp_path / "bi")
    for place in (folder, f"{folder}/encoder"):
        read = SentenceTransformer(place, device="cpu")
        same(read.encode(TEXTS, prompt="color: "), model.encode(TEXTS, "color"))
        same(read.encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize("make", [sentence_encoder, tri_encoder])
def test_sentences_alone(tiny_model, tmp_path, make):
    config = make(str(tiny_model))
    assert config.text_of_pair == "{sentence}"
    folder, model = saved(config, tmp_path / "alone")
    same(SentenceTransformer(folder, device="cpu").encode(TEXTS), model.encode(TEXTS))


def test_what_sentence_transformers_would_read_otherwise_is_not_offered(tiny_model, tmp_path):
    part = bi_encoder(str(tiny_model), prompt="concat-cs:sentence")
    assert part.text_of_pair is None
    saved(part, tmp_path / "part")
    assert not (tmp_path / "part" / "modules.json").exists()
    assert lora(str(tiny_model), prompt="concat-cs:all", merged=False).text_of_pair is None
    assert lora(str(tiny_model), prompt="concat-cs:all").text_of_pair == "{condition} {sentence}"
    behind = lora(str(tiny_model), prompt="concat-sc:all")  # a long sentence would push the condition out
    assert behind.text_of_pair is None


@pytest.mark.parametrize("name", ["qwen3-embedding-0.6b", "simcse-roberta-large", "e5-large-instruct"])
def test_encoders_of_other_kinds_without_white_space_around_a_text(tmp_path, name):
    (tmp_path / "encoder").mkdir()
    config = bi_encoder(str(tiny.save_encoder(tmp_path / "encoder", name)), pooling=Pooling.LAST)
    folder, model = saved(config, tmp_path / "bi")
    texts = [*map(str.strip, TEXTS[:3]), "two  spaces,\na line"]
    found = SentenceTransformer(folder, device="cpu").encode(texts, prompt="color: ")
    np.testing.assert_allclose(found, model.encode(texts, "color"), atol=1e-4)


def test_a_tokenizer_without_a_token_for_padding_is_not_offered(tmp_path):
    encoder = tiny.save_encoder(tmp_path, "sfr-mistral")
    assert bi_encoder(str(encoder), pooling=Pooling.LAST).text_of_pair is None


def test_the_card_says_how(tiny_model):
    metrics = {
        "validation": {"spearman": 50.0},
        "history": [],
        "recipe": {},
        "data": {},
        "provenance": {"commit": None, "date": "", "machine": "", "command": ""},
        **dict.fromkeys(("compute", "seed", "workers", "parameters", "best_epoch", "epochs", "seconds"), 1),
    }
    for config, said in (
        (bi_encoder(str(tiny_model)), 'prompt="color: ")'),
        (sentence_encoder(str(tiny_model)), 'model.encode(["A sentence"])'),
    ):
        assert said in tuned_card("model", config, metrics)
    part = bi_encoder(str(tiny_model), prompt="concat-cs:sentence")
    assert "SentenceTransformer" not in tuned_card("model", part, metrics)
