"""Tokens, positions and types that the weights have not: found when the encoder is loaded, or in the text with one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from raycase.data.schema import Reason
from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import PromptStyle, prompt_set
from raycase.encoder.several_texts import separated
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS, EncoderSpec, PairEncoding
from raycase.errors import RequestError

CHOICES = {"prompt": "concat-sc", "pooling": Pooling.MEAN}
PAIR = prompt_set(PromptStyle.CONCAT_SC).pair


def outside(folder, **options):
    return EncoderSpec(
        source=str(folder), prompt="concat-sc", pooling=(Pooling.MEAN,), causal=False, **{"max_tokens": 64} | options
    )


@pytest.fixture
def tight(copied):
    """An encoder with just as many rows as its tokenizer has tokens: name -> folder."""

    def cut(name):
        folder = copied(name)
        rows = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
        weights = load_file(folder / "model.safetensors")
        [embedding] = [k for k in weights if k.endswith(("word_embeddings.weight", "embed_tokens.weight"))]
        weights[embedding] = weights[embedding][:rows].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
        return folder

    return cut


def add(folder, *tokens, special=False):
    """Add tokens to the tokenizer of a folder, behind those that it has."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("name", ["minilm", "qwen3-embedding-0.6b"])
def test_a_text_with_an_added_token_that_has_no_weights_is_refused_by_itself(tight, name, caplog):
    """Qwen3-Embedding-8B is published so: its tokenizer has <think>, its weights have not."""
    folder = tight(name)
    spec = replace(ENCODERS[name], source=str(folder), max_tokens=64)
    plain = load_tokenizer(spec).pairs([PAIR], [("a dog", "red"), ("a woman", "red")])
    add(folder, "<think>")
    load_tokenizer.cache_clear()
    tokenize = load_tokenizer(spec)
    assert f"{folder} has {tokenize.rows} rows of weights and 1 added tokens beyond them, '<think>'" in caplog.text
    texts = ["a dog", "<think> a dog", "a woman", "a<think>", "< think >"]
    apart = tokenize.pairs([PAIR], [(t, "red") for t in texts])
    under = tokenize.pairs([PAIR], [("a dog", "red"), ("a dog", "a <think> of it")])
    refused = Reason.UNKNOWN_TOKEN
    assert apart.reasons == [None, refused, None, refused, None]
    assert under.reasons == [None, refused]
    tiny.batches_equal(apart.take(np.array([0, 2])), plain)
    vectors, _ = load_encoder(spec, dtype=torch.float32).encode(apart.take(np.array([0, 2, 4])))
    assert np.isfinite(vectors).all()


def test_a_text_of_several_with_such_a_token_is_refused(tight):
    folder = tight("minilm")
    add(folder, "<think>")
    rows = [("a dog", "a cat"), ("a dog", "<think>"), ("<think>a", "a cat")]
    for encoding in PairEncoding:
        batch = separated(load_tokenizer(outside(folder)), rows, encoding=encoding, shortened=2)
        assert batch.reasons == [None, Reason.UNKNOWN_TOKEN, Reason.UNKNOWN_TOKEN]


def test_added_tokens_that_no_text_yields_are_right(tight, caplog):
    """Special tokens in a text are text."""
    folder = tight("minilm")
    add(folder, "[EXTRA]", special=True)
    assert load_tokenizer(outside(folder)).pairs([PAIR], [("an [EXTRA] dog", "red")]).reasons == [None]
    assert "beyond" not in caplog.text


def test_a_token_around_every_text_needs_weights(tight):
    folder = tight("minilm")
    config = json.loads((folder / "config.json").read_text())
    made = add(folder, "[END]", special=True)
    tiny._around(made, "[CLS]", "[END]")
    tiny.save_tokenizer(folder, (made, {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match=r"--model: expected weights for each token, got \d+ rows .*: '\[END\]' \("):
        load_tokenizer(outside(folder))
    add(tight("qwen3-embedding-0.6b").rename(folder.parent / "qwen"), "<end>", special=True)
    with pytest.raises(RequestError, match=r"--model: expected weights for each token, got .*: '<end>' \("):
        load_tokenizer(outside(folder.parent / "qwen", end_token="<end>"))


def test_a_vocabulary_of_other_weights_is_refused(copied, folder_of):
    folder = copied("minilm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    with pytest.raises(RequestError, match=r"got 7 rows \(vocab_size in config.json\) for \d+ tokens of the tokenizer"):
        load_tokenizer(outside(folder))


@pytest.mark.parametrize("name", ["minilm", "simcse-roberta-large"])
def test_prompts_longer_than_the_positions_are_refused(folder_of, name):
    spec = outside(folder_of(name), max_tokens=512)
    load_encoder(spec)
    with pytest.raises(RequestError, match=r"--model: expected weights for 513 positions \(max_tokens\), got 512 at"):
        load_encoder(replace(spec, max_tokens=513))


def test_the_length_of_an_encoder_outside_the_table_is_that_of_its_positions(tmp_path):
    """data2vec's begin after the padding's, too; its longest text has a vector."""
    rows = tiny.save_tokenizer(tmp_path, tiny.byte_level())
    torch.manual_seed(0)
    config = transformers.Data2VecTextConfig(vocab_size=rows, max_position_embeddings=40, **tiny.SIZES)
    transformers.Data2VecTextModel(config).save_pretrained(tmp_path)
    encoder = load_encoder(find_encoder(str(tmp_path), **CHOICES), dtype=torch.float32)
    assert encoder.spec.max_tokens == 38
    batch = encoder.tokenize.pairs([PAIR], [("dog " * 100, "red")])
    assert batch.lengths.tolist() == [38]
    assert np.isfinite(encoder.encode(batch)[0]).all()


def test_a_table_without_rows_is_refused(copied):
    folder = copied("minilm")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.token_type_embeddings.weight"] = torch.zeros(0, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"type_vocab_size": 0}))
    with pytest.raises(RequestError, match=r"--model: expected weights in embeddings.token_type_embeddings, got none"):
        load_encoder(outside(folder))
