"""Condition pooling: its heads over the library's states; and prompts of one's own: their file, what is pooled."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small
import tiny
import torch
from scipy.special import softmax
from small import CONDITIONS, EVERY, SENTENCES, close, system

import raycase
from raycase.commands.train import ProjectorFlags
from raycase.encoder.choices import find_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart, read_prompt
from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionHead, HeadConfig
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.model_folder import write_folder
from raycase.models.registry import resolve
from raycase.papers.baselines.model import bi_encoder, lora

KINDS = {"bert": (0.0, 2 / 3, 1.0), "qwen": (0.5, 1.0)}  # depths
LAYERS = {"bert": [0, 2, 3], "qwen": [1, 2]}
HEAD = {"activation": "gelu", "heads": 3, "head_dim": 5, "output_dim": 7}


@pytest.fixture(scope="module")
def encoders(bert, qwen):
    return {"bert": bert, "qwen": qwen}


def save_head(folder, config, **options):
    """A model folder with a random head, whose numbers are far from those of its start."""
    shape = HeadConfig(states_dim=config.states_dim, **HEAD | options)
    torch.manual_seed(0)
    head = small.disturb(ConditionHead(shape), scale=0.2).half().float()
    write_folder(folder, replace(config, head=shape), head, {}, "a card")
    return str(folder)


@pytest.fixture(scope="module")
def trained(encoders, tmp_path_factory):
    """The folders of trained systems by encoder."""
    return {
        kind: save_head(
            tmp_path_factory.mktemp(f"head-{kind}"), ConditionPoolingConfig.untrained(encoders[kind], layers=depths)
        )
        for kind, depths in KINDS.items()
    }


def opened(folder, **options):
    return raycase.load(folder, dtype=torch.float32, device="cpu", **options)


def texts(encoder, layers):
    """H of each pair's sentence and e of its condition, in float64."""
    for sentence, condition in EVERY:
        yield (
            small.token_states(encoder, sentence, layers).astype(np.float64),
            small.token_states(encoder, condition, layers).astype(np.float64).mean(0),
        )


def cosines(rows, vector):
    return rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)


def zero_shot(encoder, last):
    return [softmax(cosines(H, e) / 0.05) @ H for H, e in texts(encoder, [last])]


@torch.no_grad()
def with_head(folder, encoder, layers):
    """The head, whose formula `test_condition_head.py` has, of the library's states of each pair alone."""
    head = opened(folder).head
    for H, e in texts(encoder, layers):
        H, e = torch.from_numpy(H).float()[None], torch.from_numpy(e).float()[None]
        yield small.pooled(head, H, torch.ones(H.shape[:2], dtype=torch.bool), e)[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_without_training_words_weigh_by_their_cosine(encoders, kind):
    wanted = zero_shot(encoders[kind], LAYERS[kind][-1])
    loaded = system(ConditionPoolingConfig.untrained(encoders[kind], layers=KINDS[kind]), batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    close(small.vectors(opened(f"condition-pooling:{encoders[kind]}")), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_weighs_the_librarys_states(trained, encoders, kind):
    wanted = list(with_head(trained[kind], encoders[kind], LAYERS[kind]))
    loaded = system(resolve(trained[kind]), batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    assert loaded.dim == 7 and np.std(wanted, axis=0).min() > 1e-3


def test_a_head_saved_before_it_could_have_networks_gives_the_same_vectors(trained, encoders, tmp_path):
    """Its file has no `hidden`, nor has what is hashed of it. With them a head is saved and loaded, too."""
    folder = Path(shutil.copytree(trained["bert"], tmp_path / "before"))
    values = json.loads((folder / "raycase.json").read_text())
    values["head"].pop("hidden", None)
    (folder / "raycase.json").write_text(json.dumps(values))
    before, after = opened(str(folder)), opened(trained["bert"])
    np.testing.assert_array_equal(small.vectors(before), small.vectors(after))
    assert "hidden" not in before.config.describe()["head"]
    config = ConditionPoolingConfig.untrained(encoders["bert"], layers=KINDS["bert"])
    larger = save_head(tmp_path / "larger", config, hidden=6)
    close(small.vectors(opened(larger)), list(with_head(larger, encoders["bert"], LAYERS["bert"])), atol=1e-5)
    assert opened(larger).config.head.hidden == 6


def test_the_vector_is_the_sum_of_the_words(encoders):
    """Without training: sum_t w_t(c) h_t over the tokens of the text."""
    loaded, text = system(ConditionPoolingConfig.untrained(encoders["bert"])), SENTENCES[0]
    states_TD = small.states(encoders["bert"], text)[1:-1].numpy()
    for condition in CONDITIONS:
        (words,) = loaded.word_weights([text], condition)
        close(np.array([w.weight for w in words]) @ states_TD, loaded.embed([text], condition)[0], atol=1e-5)


def test_without_a_condition_it_is_the_encoder(encoders, trained):
    wanted = [small.mean(encoders["bert"], text) for text in SENTENCES]
    close(opened(trained["bert"]).embed(SENTENCES, None), wanted)


def test_a_long_sentence_is_cut_and_a_long_condition_is_refused(encoders):
    loaded, long = opened(f"condition-pooling:{encoders['bert']}"), "two people play " * 200
    H, e = (small.token_states(encoders["bert"], text, [3]).astype(np.float64) for text in (long, "dog"))
    close(loaded.embed([long], "dog")[0], softmax(cosines(H, e.mean(0)) / 0.05) @ H, atol=1e-5)
    assert len(H) == 510
    with pytest.raises(ValueError, match="pair 0: "):
        loaded.embed(["dog"], long)


def test_what_it_does_not_have_is_refused(encoders, trained):
    name = f"condition-pooling:{encoders['bert']}"
    assert resolve(name).name == name
    assert resolve(name, pooling="cls").encoder.pooling == (Pooling.CLS,)
    for choices, said in (({"prompt": "cond"}, r"--prompt: .* has none"), ({"subtract": True}, "--subtract: ")):
        with pytest.raises(RequestError, match=said):
            resolve(name, **choices)
    with pytest.raises(RequestError, match=r"--pooling: .* was trained with mean-all, got cls"):
        resolve(trained["bert"], pooling="cls")
    with pytest.raises(RequestError, match="--model: expected an encoder to fine-tune, got the trained model"):
        resolve(f"condition-pooling:{trained['bert']}")
    with pytest.raises(RequestError, match="--model: expected one of "):
        resolve("condition-pooling:nothing")


ONE_WORD = 'Express this text "{sentence}" in one word in terms of {condition}: "'
BASE = 'Express {condition} in one word: "'
PROMPT = {"template": ONE_WORD, "base_template": BASE, "pool": "last"}
OWN = OwnPrompt(template=ONE_WORD)
ONCE = r"template: expected \{sentence\} and \{condition\} once each"


def test_the_texts_take_their_places_and_everything_else_stays():
    template, base = " {{sentence}} {0} {text}\n{condition} ", "{{{condition}}}"
    own = OwnPrompt(template=template, base_template=base, pool=PooledPart.ALL)
    pair = own.prompts.pair.render(" {condition} ", "{sentence}")
    assert pair.text == " {{condition}} {0} {text}\n{sentence} "
    assert [pair.text[slice(*span)] for span in (pair.sentence, pair.condition)] == ["{condition}", "{sentence}"]
    assert own.prompts.base.render("", "color of the dress").text == "{{color of the dress}}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"template": "{sentence}"}, ONCE),
        ({"template": ONE_WORD, "base_template": ONE_WORD}, r"base_template: expected \{condition\} once and no"),
        ({"template": 7}, "template: expected a valid string, got 7"),
        ({"template": ONE_WORD, "views": ["concat-sc"]}, "views: expected template among them, got concat-sc"),
        ([], "the file: expected an object, got"),
    ],
)
def test_a_file_with_anything_else_is_refused(values, message, tmp_path):
    (tmp_path / "prompt.json").write_text(json.dumps(values))
    with pytest.raises(RequestError, match=f"^--prompt: {message}"):
        read_prompt(str(tmp_path / "prompt.json"))


@pytest.mark.parametrize(
    ("name", "pool", "pooling", "wanted"),
    [
        ("sfr-mistral", PooledPart.LAST, None, ("last", Pooling.LAST)),
        ("e5-large-instruct", None, Pooling.MEAN_ALL, (None, Pooling.MEAN_ALL)),
        (
            "minilm",
            PooledPart.LAST,
            Pooling.MEAN,
            "--prompt: pool last: expected .* the pooling last, got --pooling me",
        ),
        ("minilm", PooledPart.ALL, Pooling.LATENT, "--pooling: expected one of mean, last, cls for minilm, got latent"),
    ],
)
def test_pool_and_pooling_agree_or_are_refused(name, pool, pooling, wanted):
    own = replace(OWN, pool=pool)
    if isinstance(wanted, str):
        with pytest.raises(RequestError, match=f"^{wanted}"):
            find_encoder(name, own=own, pooling=pooling)
    else:
        spec = find_encoder(name, own=own, pooling=pooling)
        assert (spec.own.pool, spec.pooling[0]) == wanted


@pytest.fixture(scope="module")
def read_by(bert, qwen):
    return {"causal": qwen, "bert": bert}


def under(system):
    return small.vectors(system, EVERY)


@pytest.mark.parametrize("style", ["cond", "concat-cs:sentence"])
@pytest.mark.parametrize(("kind", "pooling"), [("causal", "last"), ("bert", "mean")])
def test_a_built_in_prompt_as_a_template_gives_the_same_tokens_and_vectors(read_by, kind, style, pooling):
    built_in = resolve(read_by[kind], prompt=style, pooling=pooling)
    [prompts] = built_in.prompts
    pool = "last" if pooling == "last" else prompts.pair.span
    own_prompt = {"template": prompts.pair.pattern, "base_template": prompts.base.pattern, "pool": pool}
    own = resolve(read_by[kind], prompt=own_prompt)
    sentences, conditions = map(list, zip(*EVERY, strict=True))
    prepared = (config.prepare(sentences, conditions).of_pairs for config in (own, built_in))
    for found, wanted in zip(*prepared, strict=True):
        if pooling == "mean":
            tiny.batches_equal(found, wanted)
        np.testing.assert_array_equal(found.sequences.flat, wanted.sequences.flat)
    loaded = small.system(own), small.system(built_in)
    np.testing.assert_array_equal(*map(under, loaded))
    np.testing.assert_array_equal(*(system.embed(SENTENCES, None) for system in loaded))
    assert own.subtract and own.describe() != built_in.describe()
    assert "own" not in built_in.describe()["encoder"]


def test_nothing_is_subtracted_without_a_base_template(read_by):
    own = {"template": ONE_WORD, "pool": "all"}
    plain, subtracted = (resolve(read_by["bert"], prompt=own | base) for base in ({}, {"base_template": BASE}))
    assert (plain.subtract, subtracted.subtract) == (False, True)
    base = small.mean(read_by["bert"], BASE.replace("{condition}", CONDITIONS[0]))
    loaded = [small.system(config).embed(SENTENCES, CONDITIONS[0]) for config in (plain, subtracted)]
    small.close(loaded[1], loaded[0] - base)
    with pytest.raises(RequestError, match=r"^--subtract: expected a base_template in the file of --prompt, got a"):
        resolve(read_by["bert"], prompt=own, subtract=True)
    assert not resolve(read_by["bert"], prompt=own | {"views": ["concat-sc", "template"]}).subtract


def test_a_folder_keeps_its_prompt_and_refuses_another(qwen, tmp_path):
    shape, folder = ProjectorConfig(input_dim=32, output_dim=7), str(tmp_path)
    config = replace(resolve(qwen, prompt=PROMPT), projector=shape)
    write_folder(tmp_path, config, Projector(shape).eval(), {}, "")
    loaded = raycase.load(folder, dtype=torch.float32)
    assert loaded.config.encoder == config.encoder
    assert raycase.load(folder, prompt=PROMPT).config.describe() == loaded.config.describe()
    assert loaded.embed(["a red dress"], "color").shape == (1, 7)
    with pytest.raises(RequestError, match=r"^--prompt: template: .* was trained with Express.*, got .sentence. .cond"):
        resolve(folder, prompt={"template": "{sentence} {condition}"})
    with pytest.raises(RequestError, match=r"^--prompt: .* was trained with template, got cond; leave the flag out"):
        resolve(folder, prompt="cond")


@pytest.mark.parametrize("make", [bi_encoder, lora])
def test_a_fine_tuned_encoder_reads_it_too(read_by, tmp_path, make):
    """BeLLM's way: a template whose last token is trained."""
    own = OwnPrompt(template=ONE_WORD, pool=PooledPart.LAST)
    config = make(read_by["causal"], own=own)
    system = small.disturb(config.trainable()).eval()
    zero_shot = small.system(resolve(read_by["causal"], prompt={"template": ONE_WORD, "pool": "last"}))
    small.close(under(small.system(config)), under(zero_shot))
    system.save(tmp_path / "tuned")
    loaded = raycase.load(str(tmp_path / "tuned"), dtype=torch.float32)
    small.close(under(loaded), under(system), atol=2e-5)
    assert (loaded.config.encoder.own, loaded.config.encoder.pooling[0]) == (own, Pooling.LAST)
    averaged = make(read_by["causal"], own=replace(own, pool=None)).encoder.own
    assert averaged.pool is PooledPart.CONDITION
    files = {"train": "a.csv", "validation": "b.csv", "output": "out"}
    (tmp_path / "prompt.json").write_text(json.dumps({"template": ONE_WORD}))
    job = ProjectorFlags(model=str(tmp_path / "tuned"), **files, prompt=str(tmp_path / "prompt.json"))
    assert job.config().encoder.own == own
    with pytest.raises(RequestError, match=r"^--subtract: expected a base_template"):
        ProjectorFlags(model=str(tmp_path / "tuned"), **files, subtract=True).config()
