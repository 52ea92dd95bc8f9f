"""Models of sentence-transformers by their name alone give the vectors of `SentenceTransformer.encode`."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import save_kind
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import raycase
from raycase.encoder.choices import find_encoder, find_unprompted
from raycase.encoder.loading import load_encoder, save_encoder, whole_model
from raycase.encoder.model_files import of_folder
from raycase.encoder.published_files import LEGACY
from raycase.encoder.sources import hub_commit
from raycase.encoder.table import read_spec
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError
from raycase.systems.condition_pooling import condition_pooling
from raycase.systems.registry import resolve

TEXTS = ["A woman in a red dress", "Two people play (with a dog)!", "a", "the word " * 60, "NAÏVE Café 100 %"]
MODES = tuple(LEGACY.values())


def save(folder, kind="bert", *, pooling="mean", after=(), length=130, lower=False, include=True, **prompts):
    """A tiny model in a folder, as the library of today saves it."""
    save_kind(folder, kind)
    transformer = Transformer(str(folder), max_seq_length=length, do_lower_case=lower)
    torch.manual_seed(1)
    modules = [transformer, Pooling(32, pooling_mode=pooling, include_prompt=include), *after]
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(folder))
    return folder


def put(folder, name, values):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def legacy(folder, kind="bert", *, pooling=("mean",), length=130, lower=False, others=()):
    """A tiny model in a folder, as the library saved it before version 6."""
    save_kind(folder, kind)
    prefix = "sentence_transformers.models"
    names = ["Transformer", "Pooling", *others]
    paths = ["", *(f"{n}_{name}" for n, name in enumerate(names) if n)]
    modules = [
        {"idx": n, "name": str(n), "path": p, "type": f"{prefix}.{m}"}
        for n, (m, p) in enumerate(zip(names, paths, strict=True))
    ]
    put(folder, "modules.json", modules)
    flags = {flag: mode in pooling for flag, mode in LEGACY.items()}
    put(folder, "1_Pooling/config.json", {"word_embedding_dimension": 32} | flags)
    for path in paths[2:]:
        (folder / path).mkdir()
    if length or lower:
        put(folder, "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": lower})
    return folder


def dense(width, out, activation):
    torch.manual_seed(2)
    return Dense(width, out, activation_function=activation)


def assert_equal(folder, texts=TEXTS):
    """Of the job's path, alone and together, and of the pass that reads words."""
    folder = str(folder)
    wanted = SentenceTransformer(folder, device="cpu").encode(texts)
    loaded = raycase.load(folder, device="cpu", dtype=torch.float32)
    assert loaded.config.plain_dim == wanted.shape[1]
    np.testing.assert_allclose(loaded.embed(texts, None), wanted, atol=2e-5)
    np.testing.assert_allclose(np.concatenate([loaded.embed([t], None) for t in texts]), wanted, atol=2e-5)
    found = np.empty_like(wanted)
    prepared = loaded.config.prepare(texts, None)

    def keep(rows, states):
        found[rows] = states.plain

    loaded.reader.read(prepared.alone[0], keep)
    np.testing.assert_allclose(found[prepared.rows], wanted, atol=2e-5)
    assert loaded.embed(texts, "color of the dress").shape == (len(texts), 32)
    return loaded


@pytest.mark.parametrize("kind", ["bert", "mpnet", "qwen3"])  # the last layer apart; as it is; in rows
def test_poolings_side_by_side(kind, tmp_path):
    assert_equal(save(tmp_path / "model", kind, pooling=MODES[::-1]))


@pytest.mark.parametrize("kind", ["roberta", "t5", "deberta-v2", "albert", "qwen2"])
def test_kinds_with_all_that_follows_a_pooling(kind, tmp_path):
    after = [dense(64, 48, torch.nn.Tanh()), dense(48, 24, None), Normalize()]
    loaded = assert_equal(save(tmp_path / "model", kind, pooling=("mean", "lasttoken"), after=after))
    assert loaded.config.plain_dim == 24
    np.testing.assert_allclose(np.linalg.norm(loaded.embed(TEXTS, None), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("pooling", [(mode,) for mode in MODES] + [MODES])
def test_files_of_older_versions(pooling, tmp_path):
    assert_equal(legacy(tmp_path / "old", pooling=pooling, others=["Normalize"] if len(pooling) > 1 else []))


@pytest.mark.parametrize("made", [save, legacy])
@pytest.mark.parametrize("length", [7, 120])
def test_the_length_is_the_published_one(made, length, tmp_path):
    folder = made(tmp_path / "model", length=length)
    assert assert_equal(folder).config.encoder.max_tokens == length


def test_without_a_length_it_is_the_tokenizers(tmp_path):
    folder = legacy(tmp_path / "model", length=None)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 9}
    put(folder, "tokenizer_config.json", settings)
    assert assert_equal(folder).config.encoder.max_tokens == 9


OF_TEXTS = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
TEXT = {"modality_config": OF_TEXTS, "module_output_name": "token_embeddings"}
READ_SETTINGS = [  # kind, file, what is in it, and the length that it gives
    ("roberta", "sentence_roberta_config.json", {"max_seq_length": 12, "do_lower_case": True}, 12),
    ("distilbert", "sentence_distilbert_config.json", {"max_seq_length": 13}, 13),
    ("bert", "sentence_bert_config.json", {"max_seq_length": 90, "tokenizer_args": {"model_max_length": 11}}, 11),
    ("bert", "sentence_bert_config.json", {"processor_kwargs": {"model_max_length": 9}} | TEXT, 9),
    ("bert", "sentence_bert_config.json", {"max_seq_length": 90, "processing_kwargs": {"text": {"max_length": 8}}}, 8),
    ("qwen2", "sentence_bert_config.json", {"max_seq_length": 300}, 300),  # its positions are computed, and end nowhere
    ("llama", "sentence_bert_config.json", {"max_seq_length": 300, "model_args": {"torch_dtype": "float32"}}, 300),
    ("t5", "sentence_bert_config.json", {"max_seq_length": 600, "unpad_inputs": False}, 600),
]


@pytest.mark.parametrize(("kind", "name", "values", "length"), READ_SETTINGS)
def test_settings_of_the_transformer(kind, name, values, length, tmp_path):
    folder = legacy(tmp_path / "model", kind, length=None)
    put(folder, name, values)
    assert assert_equal(folder, [*TEXTS[:2], "the word " * 350]).config.encoder.max_tokens == length


def test_without_any_length_a_text_is_cut_at_512_tokens(tmp_path):
    assert resolve(str(legacy(tmp_path / "model", "t5", length=None))).encoder.max_tokens == 512


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_truncated_vectors(kind, tmp_path):
    after = [dense(32, 24, None), Normalize()]
    assert assert_equal(save(tmp_path / "model", kind, after=after, truncate_dim=8)).config.plain_dim == 8
    folder = legacy(tmp_path / "old")
    put(folder, "config_sentence_transformers.json", {"truncate_dim": 9})
    assert assert_equal(folder).config.plain_dim == 9
    with pytest.raises(RequestError, match="pass --pooling beside it"):
        resolve(str(folder), prompt="concat-sc")


def test_a_chosen_pooling_keeps_length_lower_case_and_prompt(tmp_path):
    folder = legacy(tmp_path / "model", "roberta", length=20, lower=True)
    put(folder, "config_sentence_transformers.json", {"prompts": {"q": "number of: "}, "default_prompt_name": "q"})
    wanted = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    loaded = raycase.load(str(folder), pooling="mean-all", device="cpu", dtype=torch.float32)
    np.testing.assert_allclose(loaded.embed(TEXTS, None), wanted, atol=2e-5)
    prompted = resolve(str(folder), prompt="concat-sc", pooling="mean").encoder
    assert (prompted.max_tokens, prompted.lower_case, prompted.published) == (20, True, None)


def test_lower_case(tmp_path):
    loaded = assert_equal(legacy(tmp_path / "model", "roberta", lower=True))
    np.testing.assert_array_equal(loaded.embed(["A DOG"], None), loaded.embed(["a dog"], None))
    assert_equal(save(tmp_path / "new", "roberta", lower=True))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "xlm-roberta"])
def test_the_default_prompt_stands_before_each_text(kind, include, tmp_path):
    prompts = {"prompts": {"search": "number of people: ", "other": "dog"}, "default_prompt_name": "search"}
    folder = save(tmp_path / "model", kind, pooling=MODES, include=include, **prompts)
    prompted = assert_equal(folder)
    put(folder, "config_sentence_transformers.json", {"prompts": prompts["prompts"]})
    assert not np.allclose(assert_equal(folder).embed(TEXTS, None), prompted.embed(TEXTS, None), atol=1e-3)


@pytest.mark.parametrize(
    "values",
    [
        {"prompts": {"q": None}, "default_prompt_name": "q"},
        {"prompts": {"query": "dog: "}, "default_prompt_name": "document"},
        {"prompts": {"query": "dog: "}, "default_prompt_name": "query"},
    ],
)
def test_prompts_that_are_there_unsaid(values, tmp_path):
    folder = legacy(tmp_path / "model")
    put(folder, "config_sentence_transformers.json", values)
    assert_equal(folder)


@pytest.mark.parametrize(
    ("prompt", "expected"), [("the word " * 10, "42 tokens of at most 12"), ("[SEP] x", r"\[SEP\]")]
)
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_a_prompt_that_would_not_be_read_as_there_is_refused(prompt, expected, pooling, tmp_path):
    folder = save(tmp_path / "model", length=12, prompts={"q": prompt}, default_prompt_name="q")
    with pytest.raises(RequestError, match=expected):
        resolve(str(folder), pooling=pooling)
    assert resolve(str(folder), prompt="concat-sc").encoder.published is None


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_other_states_and_other_parts_of_a_text_are_refused(kind, tmp_path):
    folder = legacy(tmp_path / "model", kind)
    if kind == "bert":
        settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"truncation_side": "left"}
        put(folder, "tokenizer_config.json", settings)
    with pytest.raises(RequestError, match="a bart, an encoder-decoder" if kind == "bart" else "truncation_side left"):
        resolve(str(folder))
    assert resolve(str(folder), pooling="mean").encoder.published is None
    assert resolve(str(folder), prompt="concat-sc").encoder.published is None


def test_modules_count_in_the_order_of_their_list(tmp_path):
    folder = legacy(tmp_path / "model", others=["Normalize"])
    put(folder, "modules.json", [TRANSFORMER | {"idx": 5}, POOLING | {"idx": 3}, MODULE | {"path": "2_Normalize"}])
    assert_equal(folder)


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_the_layout_of_the_first_version_is_refused(pooling, tmp_path):
    folder = legacy(tmp_path / "model")
    (folder / "0_Transformer").mkdir()
    for file in folder.glob("*.json"):
        file.rename(folder / "0_Transformer" / file.name)
    put(folder, "modules.json", [TRANSFORMER | {"path": "0_Transformer"}, POOLING])
    with pytest.raises(RequestError, match=r"in the folder 0_Transformer; save it anew: Sent"):
        resolve(str(folder), pooling=pooling)


def test_a_folder_that_modules_name_is_needed(tmp_path):
    folder = legacy(tmp_path / "model")
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(RequestError, match=r"an object in 1_Pooling/config\.json"):
        resolve(str(folder))
    for name in ("/etc/hostname", "../x/config.json", "1_Pooling/../../x"):
        with pytest.raises(RequestError, match="a file within"):
            of_folder(str(folder), name, {})


def test_dense_weights_of_pytorch(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYCASE_CACHE", str(tmp_path / "cache"))
    folder = save(tmp_path / "model", after=[dense(32, 8, torch.nn.GELU())])
    wanted = raycase.load(str(folder), device="cpu", dtype=torch.float32).embed(TEXTS, None)
    [path] = [path for path in folder.iterdir() if path.name.startswith("2_")]
    weights = load_file(path / "model.safetensors")
    torch.save(weights, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    np.testing.assert_array_equal(
        raycase.load(str(folder), device="cpu", dtype=torch.float32).embed(TEXTS, None), wanted
    )
    torch.save({name: tensor * 2 for name, tensor in weights.items()}, path / "pytorch_model.bin")
    assert_equal(folder)  # not the weights that were kept


def test_other_dense_weights_are_another_model(tmp_path):
    one = save(tmp_path / "one", after=[dense(32, 8, None)])
    two = shutil.copytree(one, tmp_path / "two")
    assert resolve(str(one)).describe() == resolve(str(two)).describe()
    [path] = [path for path in two.iterdir() if path.name.startswith("2_")]
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert resolve(str(one)).describe() != resolve(str(two)).describe()


def test_a_trained_encoder_is_saved_with_what_follows_its_pooling(tmp_path):
    spec = find_unprompted(str(save(tmp_path / "model", "roberta", after=[dense(32, 8, None), Normalize()])))
    tokens = [Tokens(ids=[5, 6, 7, 8], start=0, end=4)]
    encoder = load_encoder(spec, device="cpu", dtype=torch.float32)
    wanted = encoder.pool(tokens)
    (tmp_path / "saved").mkdir()
    save_encoder(whole_model(encoder), spec, tmp_path / "saved")
    shutil.rmtree(tmp_path / "model")
    row = json.loads(json.dumps(spec.as_json()))
    saved = replace(read_spec(row), source=str(tmp_path / "saved"))
    np.testing.assert_array_equal(load_encoder(saved, device="cpu", dtype=torch.float32).pool(tokens), wanted)
    for step in ("../2_Dense", "/2_Dense", ".."):
        with pytest.raises(ValueError, match="folders beside the encoder's weights"):
            read_spec(row | {"published": row["published"] | {"after": [step]}})


def test_what_it_gives_is_what_condition_pooling_gives(tmp_path):
    folder = str(save(tmp_path / "model", after=[Normalize()]))
    alone, named = resolve(folder), resolve(f"condition-pooling:{folder}")
    assert alone == condition_pooling(folder)
    assert alone.describe() == named.describe()
    chosen = resolve(folder, pooling="mean")
    assert chosen.encoder.published is None
    assert chosen.describe() == resolve(f"condition-pooling:{folder}", pooling="mean").describe()


def test_without_files_of_sentence_transformers_a_text_is_the_mean_of_its_tokens(tmp_path):
    folder = str(save_kind(tmp_path / "model", "bert"))
    assert resolve(folder).describe() == resolve(folder, pooling="mean").describe()
    with pytest.raises(RequestError, match="which would say its pooling"):
        resolve(folder, prompt="concat-sc")


@pytest.mark.parametrize(("mode", "ours"), [("mean", "mean"), ("cls", "cls"), ("lasttoken", "last")])
def test_a_prompt_takes_the_published_pooling_over_the_text(mode, ours, tmp_path):
    folder = str(legacy(tmp_path / "model", pooling=(mode,), length=20, others=["Normalize"]))
    config = resolve(folder, prompt="concat-sc")
    assert config.encoder.pooling == (ours,)
    assert config.encoder.published is None
    assert config.encoder.max_tokens == 20


@pytest.mark.parametrize("pooling", [("max",), ("mean", "cls")])
def test_a_prompt_asks_for_a_pooling_where_the_published_one_has_no_meaning(pooling, tmp_path):
    folder = str(legacy(tmp_path / "model", pooling=pooling))
    with pytest.raises(RequestError, match="pass --pooling beside it"):
        resolve(folder, prompt="concat-sc")
    assert resolve(folder, prompt="concat-sc", pooling="mean").encoder.pooling == ("mean",)


MODULE = {"idx": 2, "name": "2", "path": "2_X", "type": "sentence_transformers.models.Normalize"}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"in_features": 32, "out_features": 4, "bias": True, "activation_function": "torch.nn.modules.linear.Identity"}
BAD_FILES = [
    ("modules.json", [TRANSFORMER, POOLING, MODULE | {"type": "sentence_transformers.models.CNN"}], "got CNN, which"),
    ("modules.json", [TRANSFORMER, POOLING, MODULE | {"type": "somebody.Normalize"}], "got somebody.Normalize, which"),
    ("modules.json", [MODULE | {"idx": 0, "type": "sentence_transformers.models.BoW"}, POOLING], "got BoW"),
    ("modules.json", [TRANSFORMER | {"path": "0_Transformer"}, POOLING], "in the folder 0_Transformer"),
    ("modules.json", [TRANSFORMER], "Pooling after"),
    ("modules.json", [], "a list of modules"),
    ("modules.json", [1], "type and path"),
    ("modules.json", [TRANSFORMER, POOLING | {"name": "0"}], "a name of its own"),
    ("modules.json", [TRANSFORMER, POOLING | {"path": ""}], "folders beside it"),
    ("modules.json", [TRANSFORMER, POOLING | {"path": "../x"}], "folders beside it"),
    (
        "modules.json",
        [TRANSFORMER, POOLING, MODULE | {"type": "sentence_transformers.models.Dense"}],
        "2_X/config.json",
    ),
    ("1_Pooling/config.json", {"pooling_mode": "attention"}, "pooling_mode among"),
    ("1_Pooling/config.json", {"pooling_mode": "mean", "embedding_dimension": 31}, "the encoder's dimension, 32"),
    ("1_Pooling/config.json", {"embedding_dimension": 32, "include_prompt": "no"}, "include_prompt true or false"),
    (
        "1_Pooling/config.json",
        {"embedding_dimension": 32, "pooling_mode_attention": True},
        "got pooling_mode_attention",
    ),
    ("1_Pooling/config.json", {}, "the encoder's dimension, 32"),
    ("1_Pooling/config.json", [], "an object"),
    *(
        (name, None, f"JSON in {name}")
        for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")
    ),
    ("sentence_bert_config.json", {"max_seq_length": "many"}, "a length above 2"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 1}}}, "a length above 2"),
    (
        "sentence_bert_config.json",
        {"transformer_task": "fill-mask"},
        "got transformer_task 'fill-mask'; pass --pooling",
    ),
    ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "got modality_config.message"),
    ("sentence_bert_config.json", {"config_args": {"is_causal": False}}, "got config_args.is_causal False"),
    (
        "sentence_bert_config.json",
        {"tokenizer_args": {"truncation_side": "left"}},
        "got tokenizer_args.truncation_side",
    ),
    ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case true or false"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "got model_type 'SparseEncoder'"),
    ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim above 0"),
    ("config_sentence_transformers.json", {"scale": 2}, "got scale 2"),
    ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "default_prompt_name of prompts"),
    ("config_sentence_transformers.json", {"default_prompt_name": []}, "default_prompt_name of prompts"),
    ("config_sentence_transformers.json", {"prompts": {"x": 1}, "default_prompt_name": "x"}, "a prompt without"),
    ("config_sentence_transformers.json", {"prompts": {"x": "{sentence}"}, "default_prompt_name": "x"}, "a prompt"),
    ("2_Dense/config.json", DENSE | {"in_features": 31}, "in_features 32"),
    ("2_Dense/config.json", DENSE | {"out_features": True}, "out_features of"),
    ("2_Dense/config.json", DENSE | {"activation_function": "os.system"}, "activation_function of torch.nn"),
    ("2_Dense/config.json", DENSE | {"use_residual": True}, "use_residual false"),
    ("2_Dense/config.json", DENSE | {"scale": 2}, "got scale 2"),
    ("2_Dense/config.json", DENSE | {"module_input_name": "token_embeddings"}, "module_input_name sentence_embedding"),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name sentence_embedding"),
]


@pytest.mark.parametrize(("name", "values", "expected"), BAD_FILES)
def test_what_is_not_known_is_refused(name, values, expected, tmp_path):
    others = [name.partition("/")[0].removeprefix("2_")] if name.startswith("2_") else []
    folder = legacy(tmp_path / "model", others=others)
    put(folder, name, values)
    for content in (b"{", b"\xff") if values is None else [None]:
        if content is not None:
            (folder / name).write_bytes(content)
        with pytest.raises(RequestError, match=expected):
            resolve(str(folder))


def test_dense_weights_that_do_not_fit(tmp_path):
    folder = save(tmp_path / "model", after=[dense(32, 8, None)])
    [path] = [path for path in folder.iterdir() if path.name.startswith("2_")]
    values = json.loads((path / "config.json").read_text())
    put(folder, f"{path.name}/config.json", values | {"out_features": 9})
    with pytest.raises(RequestError, match=r"linear\.weight"):
        raycase.load(str(folder))
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n")
    with pytest.raises(RequestError, match=r"Dense/model.safetensors, got a pointer of Git LFS"):
        raycase.load(str(folder))
    (path / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"no model\.safetensors or pytorch_model\.bin in"):
        raycase.load(str(folder))


PUBLISHED = ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
PUBLISHED += ["config_sentence_transformers.json", "tokenizer_config.json"]


@pytest.mark.parametrize("missing", [None, *PUBLISHED])
def test_offline_a_file_that_the_hubs_cache_lacks_may_be_one_that_the_model_has(missing, tmp_path, monkeypatch):
    """Whoever loads the encoder alone leaves them out. A Normalize has no file as a rule."""
    home, commit = tmp_path / "hub" / "models--some--model", "0123456789" * 4
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    (home / "snapshots").mkdir()
    (home / "trees").mkdir()
    folder = legacy(home / "snapshots" / commit, pooling=("cls",), length=20, others=["Normalize"])
    put(folder, "config_sentence_transformers.json", {"prompts": {}})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_commit.cache_clear()
    if missing:
        (folder / missing).unlink()
        with pytest.raises(RequestError, match=rf"^--model: expected {missing} of some/model in the hub's cache, or a"):
            resolve("some/model")
    else:
        spec = resolve("some/model").encoder
        assert (spec.poolings, spec.max_tokens) == (("cls",), 20)
    if missing == "modules.json":  # everything else was fetched, so there is none
        names = [str(file.relative_to(folder)) for file in folder.rglob("*")]
        put(home, f"trees/{commit}.json", {"files": dict.fromkeys(names)})
        assert resolve("some/model").encoder.poolings == ("mean",)


@pytest.mark.cluster
def test_the_real_mpnet(tmp_path):
    name = "sentence-transformers/all-mpnet-base-v2"
    try:
        find_encoder(name, prompt="concat-sc")
    except RequestError as error:
        pytest.skip(f"{name} is not on this machine: {error}")
    texts = [*TEXTS, "word " * 600]
    loaded = raycase.load(name, device="cpu", dtype=torch.float32)
    wanted = SentenceTransformer(name, device="cpu").encode(texts)
    np.testing.assert_allclose(loaded.embed(texts, None), wanted, atol=2e-5)
    assert (loaded.config.encoder.max_tokens, loaded.config.plain_dim) == (384, 768)
