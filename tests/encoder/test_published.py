"""Models of sentence-transformers by their name alone give the vectors of `SentenceTransformer.encode`."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import save_random
from helpers import Later, change_json

import raycase
from raycase.encoder import sources
from raycase.encoder.choices import find_unprompted
from raycase.encoder.loading import load_encoder, whole_model
from raycase.encoder.model_files import pinned_uri
from raycase.encoder.table import read_spec
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError
from raycase.models.model_folder import LEGACY, save_encoder
from raycase.models.registry import resolve

library, modules = Later("sentence_transformers"), Later("sentence_transformers.base.modules")
pooled = Later("sentence_transformers.sentence_transformer.modules")

TEXTS = ["A woman in a red dress", "Two people play (with a dog)!", "a", "the word " * 60, "NAÏVE Café 100 %"]
MODES = tuple(LEGACY.values())
LIBRARY = "sentence_transformers.models"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{LIBRARY}.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{LIBRARY}.Pooling"}


def save(folder, kind="bert", *, pooling="mean", after=(), include=True, **prompts):
    """A tiny model in a folder, as the library of today saves it."""
    save_random(folder, kind)
    transformer = modules.Transformer(str(folder), max_seq_length=130)
    torch.manual_seed(1)
    parts = [transformer, pooled.Pooling(32, pooling_mode=pooling, include_prompt=include), *after]
    library.SentenceTransformer(modules=parts, device="cpu", **prompts).save(str(folder))
    return folder


def put(folder, name, values):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def legacy(folder, kind="bert", *, pooling=("mean",), length=130, lower=False, others=()):
    """A tiny model in a folder, as the library saved it before version 6."""
    save_random(folder, kind)
    modules = [TRANSFORMER, POOLING]
    for n, name in enumerate(others, 2):
        modules.append({"idx": n, "name": str(n), "path": f"{n}_{name}", "type": f"{LIBRARY}.{name}"})
        (folder / f"{n}_{name}").mkdir()
    put(folder, "modules.json", modules)
    flags = {flag: mode in pooling for flag, mode in LEGACY.items()}
    put(folder, "1_Pooling/config.json", {"word_embedding_dimension": 32} | flags)
    if length or lower:
        put(folder, "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": lower})
    return folder


def dense(width, out, activation):
    torch.manual_seed(2)
    return modules.Dense(width, out, activation_function=activation)


def assert_equal(folder, texts=TEXTS):
    """Of the job's path, alone and together, and of the pass that reads words."""
    folder = str(folder)
    wanted = library.SentenceTransformer(folder, device="cpu").encode(texts)
    loaded = raycase.load(folder, device="cpu", dtype=torch.float32)
    assert loaded.config.unconditional_dim == wanted.shape[1]
    np.testing.assert_allclose(loaded.embed(texts, None), wanted, atol=2e-5)
    np.testing.assert_allclose(np.concatenate([loaded.embed([t], None) for t in texts]), wanted, atol=2e-5)
    found = np.empty_like(wanted)
    prepared = loaded.config.prepare(texts, None)

    def keep(rows, states):
        found[rows] = states.unconditional

    loaded.reader.read(prepared.of_sentences[0], keep)
    np.testing.assert_allclose(found[prepared.rows], wanted, atol=2e-5)
    assert loaded.embed(texts, "color of the dress").shape == (len(texts), 32)
    return loaded


@pytest.mark.parametrize("kind", ["roberta", "t5", "qwen2"])
def test_kinds_with_all_that_follows_a_pooling(kind, tmp_path):
    after = [dense(64, 48, torch.nn.Tanh()), dense(48, 24, None), modules.Normalize()]
    loaded = assert_equal(save(tmp_path / "model", kind, pooling=("mean", "lasttoken"), after=after))
    assert loaded.config.unconditional_dim == 24
    np.testing.assert_allclose(np.linalg.norm(loaded.embed(TEXTS, None), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("pooling", [("cls",), MODES])
def test_files_of_older_versions(pooling, tmp_path):
    assert_equal(legacy(tmp_path / "old", pooling=pooling, others=["Normalize"] if len(pooling) > 1 else []))


READ_SETTINGS = [  # kind, file, what is in it, and the length that it gives
    ("roberta", "sentence_roberta_config.json", {"max_seq_length": 12, "do_lower_case": True}, 12),
    ("bert", "sentence_bert_config.json", {"max_seq_length": 90, "tokenizer_args": {"model_max_length": 11}}, 11),
    ("qwen2", "sentence_bert_config.json", {"max_seq_length": 300}, 300),  # its positions are computed, and end nowhere
]


@pytest.mark.parametrize(("kind", "name", "values", "length"), READ_SETTINGS)
def test_settings_of_the_transformer(kind, name, values, length, tmp_path):
    folder = legacy(tmp_path / "model", kind, length=None)
    put(folder, name, values)
    assert assert_equal(folder, [*TEXTS[:2], "the word " * 350]).config.encoder.max_tokens == length


def test_a_chosen_pooling_keeps_length_lower_case_and_prompt(tmp_path):
    folder = legacy(tmp_path / "model", "roberta", length=20, lower=True)
    put(folder, "config_sentence_transformers.json", {"prompts": {"q": "number of: "}, "default_prompt_name": "q"})
    wanted = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    loaded = raycase.load(str(folder), pooling="mean-all", device="cpu", dtype=torch.float32)
    np.testing.assert_allclose(loaded.embed(TEXTS, None), wanted, atol=2e-5)
    prompted = resolve(str(folder), prompt="concat-sc", pooling="mean").encoder
    assert (prompted.max_tokens, prompted.lower_case, prompted.published) == (20, True, None)


def test_another_similarity_than_the_cosine_is_said_once(tmp_path, capsys):
    for name, after, says in (("dot", [], True), ("cosine", [], False), ("dot", [pooled.Normalize()], False)):
        folder = save(tmp_path / f"{name}{len(after)}", after=after, similarity_fn_name=name)
        capsys.readouterr()
        for _ in range(2):
            resolve(str(folder))
        said = f"{folder} was saved to be compared by dot; raycase compares its vectors by cosine\n"
        err = capsys.readouterr().err
        assert (err.count(said), err.count("by cosine")) == (says, says)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "xlm-roberta"])
def test_the_default_prompt_stands_before_each_text(kind, include, tmp_path):
    prompts = {"prompts": {"search": "number of people: ", "other": "dog"}, "default_prompt_name": "search"}
    folder = save(tmp_path / "model", kind, pooling=MODES, include=include, **prompts)
    prompted = assert_equal(folder)
    put(folder, "config_sentence_transformers.json", {"prompts": prompts["prompts"]})
    assert not np.allclose(assert_equal(folder).embed(TEXTS, None), prompted.embed(TEXTS, None), atol=1e-3)


def test_a_trained_encoder_is_saved_with_what_follows_its_pooling(tmp_path):
    spec = find_unprompted(str(save(tmp_path / "model", "roberta", after=[dense(32, 8, None), modules.Normalize()])))
    tokens = [Tokens(ids=[5, 6, 7, 8], start=0, end=4)]
    encoder = load_encoder(spec, device="cpu", dtype=torch.float32, by_library=True)
    wanted = encoder.pool(tokens)
    (tmp_path / "saved").mkdir()
    save_encoder(whole_model(encoder), spec, tmp_path / "saved")
    shutil.rmtree(tmp_path / "model")
    row = json.loads(json.dumps(spec.as_json()))
    saved = replace(read_spec(row), source=str(tmp_path / "saved"))
    np.testing.assert_allclose(load_encoder(saved, device="cpu", dtype=torch.float32).pool(tokens), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "qwen3", "distilbert"])
def test_without_files_of_sentence_transformers_it_pools_as_the_library_does(kind, tmp_path):
    folder = save_random(tmp_path / "model", kind)
    if kind == "qwen3":
        change_json(folder / "config.json", architectures=["Qwen3ForCausalLM"])
    encoder = assert_equal(folder).config.encoder
    assert (encoder.pooling, encoder.published) == (("last" if kind == "qwen3" else "mean-all",), None)
    with pytest.raises(RequestError, match="pass --pooling beside it"):
        resolve(str(folder), prompt="concat-sc")


@pytest.mark.parametrize(("mode", "ours"), [("cls", "cls"), ("lasttoken", "last")])
def test_a_prompt_takes_the_published_pooling_over_the_text(mode, ours, tmp_path):
    folder = str(legacy(tmp_path / "model", pooling=(mode,), length=20, others=["Normalize"]))
    config = resolve(folder, prompt="concat-sc")
    assert config.encoder.pooling == (ours,)
    assert config.encoder.published is None
    assert config.encoder.max_tokens == 20


OTHER = {"idx": 2, "name": "2", "path": "2_X", "type": "somebody.Normalize"}
CROSS_ENCODER = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
SPECIAL = {"prompts": {"x": "[SEP] x"}, "default_prompt_name": "x"}
BAD_FILES = [  # file, what is in it, what is said
    ("modules.json", [TRANSFORMER, POOLING, OTHER], "somebody.Normalize"),  # not run
    ("modules.json", [TRANSFORMER | {"type": "somebody.StaticEmbedding"}], "StaticEmbedding.* expected a Transformer"),
    ("modules.json", [TRANSFORMER, POOLING | {"path": "../x"}], "folders beside it"),
    ("1_Pooling/config.json", {"pooling_mode": "attention"}, "modules of sentence-transformers"),
    ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
    ("sentence_bert_config.json", {"transformer_task": "sequence-classification"}, "sequence-classification"),
    ("config_sentence_transformers.json", SPECIAL, r"\[SEP\] in the default prompt"),
    ("tokenizer_config.json", {"truncation_side": "left"}, "cuts texts at their beginning"),
    ("config.json", {"model_type": "model2vec"}, "model type `model2vec`"),
    ("config.json", CROSS_ENCODER, "a cross-encoder: it scores pairs of texts"),
]


@pytest.mark.parametrize(("name", "values", "expected"), BAD_FILES)
def test_what_is_no_encoder_or_would_be_read_otherwise_is_refused(name, values, expected, tmp_path):
    folder = legacy(tmp_path / "model")
    if name == "config.json":
        (folder / "modules.json").unlink()
    if name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text()) | values
    put(folder, name, values)
    with pytest.raises(RequestError, match=f"^--model: expected .*{expected}") as error:
        resolve(str(folder))
    assert str(folder) in str(error.value)


PUBLISHED = ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"]


@pytest.mark.parametrize("missing", [None, *PUBLISHED])
def test_offline_a_file_that_the_hubs_cache_lacks_may_be_one_that_the_model_has(missing, tmp_path, monkeypatch):
    """Whoever loads the encoder alone leaves them out. A Normalize has no file as a rule."""
    home, commit = tmp_path / "hub" / "models--some--model", "0123456789" * 4
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    (home / "snapshots").mkdir()
    folder = legacy(home / "snapshots" / commit, pooling=("cls",), length=20, others=["Normalize"])
    put(folder, "config_sentence_transformers.json", {"prompts": {}})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    pinned_uri.cache_clear()
    sources._of_hub.cache_clear()
    if missing:
        (folder / missing).unlink()
        with pytest.raises(RequestError, match=rf"^--model: expected {missing} of some/model on the Hugging Face hub"):
            resolve("some/model")
    else:
        spec = resolve("some/model").encoder
        assert (spec.pooling, spec.max_tokens) == (("cls",), 20)
