"""Bi-, tri- and cross-encoder and LoRA by hand: what they read, train and encode once, who else reads them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import small
import tiny
import torch
from helpers import Later
from safetensors.torch import load_file
from small import CONDITIONS, DIM, EVERY, SENTENCES, close, system
from transformers import AutoModel, AutoTokenizer

import raycase
from raycase.commands.train import ProjectorFlags
from raycase.encoder.pooling import Pooling
from raycase.io.schema import Reason
from raycase.models.case import CaseConfig
from raycase.models.fine_tuned import pair_scores
from raycase.papers.baselines import Compose
from raycase.papers.baselines.model import TriEncoderConfig, bi_encoder, cross_encoder, lora
from raycase.papers.baselines.train import LoraFlags


def test_a_bi_encoder_reads_the_condition_then_the_sentence_and_pools_every_token(bert):
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "dog: red")[0])
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.index(":") < tokens.index("red")
    wanted = [small.mean(bert, f"{c}: {s}") for s, c in EVERY]
    close(small.vectors(system(bi_encoder(bert))), wanted)


@pytest.mark.parametrize("how", Compose)
def test_a_tri_encoder_composes_two_vectors(bert, how):
    apart = [(small.mean(bert, s), small.mean(bert, c)) for s, c in EVERY]
    wanted = [s * c for s, c in apart] if how is Compose.HADAMARD else [[*s, *c] for s, c in apart]
    config = TriEncoderConfig.untrained(bert, compose=how)
    close(small.vectors(system(config)), wanted)
    assert config.dim == len(wanted[0])
    assert config.unconditional_dim == small.DIM


def triple(config, *texts):
    batch = config.tokenize_pairs(*([text] for text in texts))
    return batch, batch.sequences.take(np.array([0])).flat.tolist()


def test_a_cross_encoder_reads_both_sentences_then_the_condition(bert):
    batch, found = triple(cross_encoder(bert), *SENTENCES[:2], "dog")
    pieces = small.tokenizer(bert)
    parts = [pieces(text, add_special_tokens=False)["input_ids"] for text in (*SENTENCES[:2], "dog")]
    cls, sep = pieces.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    assert found == [cls, *parts[0], sep, *parts[1], sep, *parts[2], sep]
    assert (batch.reasons, batch.truncated.tolist()) == ([None], [False])


def test_a_condition_that_leaves_no_room_for_two_tokens_is_refused(bert):
    config = cross_encoder(bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=7))
    batch, found = triple(config, "red", "dress", "number people")
    assert (batch.reasons, found) == ([Reason.NO_ROOM], [])
    loaded = system(config)
    with pytest.raises(ValueError, match=r"pair 1: condition leaves no room .*'red', 'dress' under 'number people'"):
        loaded.score(["red", "red"], ["dress", "dress"], ["number", "number people"])


def test_a_score_is_a_linear_layer_of_the_first_state(bert, tmp_path):
    """The types of "[CLS] s1 [SEP] s2 [SEP] c [SEP]": 0 to the first [SEP], then 1."""
    config = cross_encoder(bert)
    trained = small.disturb(config.trainable()).eval()
    found, folder = small.figures(trained), tmp_path / "model"
    trained.save(folder)
    head = load_file(folder / "extra.safetensors")
    model, wanted = small.stock(folder / "encoder"), []
    for s in SENTENCES:
        for t in SENTENCES:
            for c in CONDITIONS:
                _, tokens = triple(config, s, t, c)
                types = torch.zeros(1, len(tokens), dtype=torch.long)
                types[0, small.ids(bert, s).shape[1] :] = 1
                with torch.no_grad():
                    states = model(input_ids=torch.tensor([tokens]), token_type_ids=types).last_hidden_state
                cls_D = states[0, 0]
                wanted.append((head["weight"][0] @ cls_D + head["bias"][0]).item())
    close(found, wanted, atol=1e-5)


LAYERS = 2
# In and out of the query, key, value and output projections; Qwen's keys and values have two heads of eight.
WIDTHS = {"bert": 4 * (DIM + DIM), "qwen3": (DIM + DIM) + 2 * (DIM + 16) + (DIM + DIM)}
CHOICES = {
    "bert": {"prompt": "concat-cs", "pooling": Pooling.MEAN},
    "qwen3": {"prompt": "cond", "pooling": Pooling.LAST},
}
KINDS = list(CHOICES)


@pytest.fixture(scope="module")
def encoders(qwen, tmp_path_factory):
    return {"bert": small.save_bert(tmp_path_factory.mktemp("bert"), layers=LAYERS), "qwen3": qwen}


@pytest.fixture
def made(encoders):
    """A system before training, of a kind."""
    return lambda kind, **options: lora(encoders[kind], **CHOICES[kind] | {"rank": 4, "alpha": 12.0} | options)


def trained(config):
    """Its module, as if trained; the same each time."""
    torch.manual_seed(0)
    return small.disturb(config.trainable(), scale=0.2).eval()


def weights(module):
    """What is trained."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def test_a_projection_with_its_adapter_by_hand(made, encoders):
    """h = W x + (alpha / rank) B A x, where alpha / rank is 3."""
    module = trained(made("bert"))
    [query] = [m for n, m in module.named_modules() if n.endswith("layer.0.attention.self.query")]
    x = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0))
    base = small.stock(encoders["bert"]).encoder.layer[0].attention.self.query
    found = {name.split("lora_")[1][0]: p for name, p in query.named_parameters() if "lora_" in name}
    assert {side: tuple(p.shape) for side, p in found.items()} == {"A": (4, DIM), "B": (DIM, 4)}
    with torch.no_grad():
        wanted = x @ base.weight.T + base.bias + 3 * (x @ found["A"].T @ found["B"].T)
        torch.testing.assert_close(query(x), wanted)
        assert (query(x) - base(x)).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_changes_the_adapters_and_keeps_them_alone(made, kind):
    config = made(kind)
    recipe = {"rank": 4, "alpha": 12.0, "epochs": 2, "batch_size": 8, "learning_rate": 1e-2}
    job = small.job(LoraFlags, config.name, **recipe, **CHOICES[kind])
    *_, state = small.fit(job, [small.rated(), small.rated(seed=1)])
    assert state.weights.keys() == state.best.keys() == weights(pair_scores(config.trainable())).keys()
    assert sum(t.numel() for t in state.weights.values()) == LAYERS * 4 * WIDTHS[kind]
    assert len(state.to_bytes()) < 4 * 5 * LAYERS * 4 * WIDTHS[kind] + 20_000
    assert all(t.abs().max() > 0 for name, t in state.weights.items() if "lora_B" in name)


@pytest.mark.parametrize("kind", KINDS)
def test_case_takes_the_vectors_of_a_fine_tuned_encoder(made, kind, tmp_path):
    trained(made(kind)).save(tmp_path / "model")
    loaded = raycase.load(str(tmp_path / "model"), dtype=torch.float32)
    files = {"train": "a.csv", "validation": "b.csv", "output": "out"}
    flags = ProjectorFlags(model=str(tmp_path / "model"), **files)
    config = flags.config()
    assert isinstance(config, CaseConfig)
    assert not config.subtract
    arguments = SENTENCES, [*CONDITIONS, "dog"]
    close(system(config).embed(*arguments), loaded.embed(*arguments))
    assert config.describe()["weights"] == loaded.config.describe()["weights"]
    if kind == "bert":  # whose base is the condition alone
        less = system(replace(flags, subtract=True).config()).embed(SENTENCES[:4], CONDITIONS)
        close(less, loaded.embed(SENTENCES[:4], CONDITIONS) - loaded.embed(CONDITIONS, None), atol=5e-6)


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
        (bi_encoder, "simcse-roberta-large", Pooling.CLS, "cls_token"),
        (lora, "qwen3-embedding-0.6b", Pooling.LAST, "lasttoken"),
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
