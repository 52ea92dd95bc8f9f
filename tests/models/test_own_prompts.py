"""Prompts of one's own: their file, what of them is pooled, and systems that read them: the built-in prompts written
as templates give the same vectors."""

import json
from dataclasses import replace

import numpy as np
import pytest
import small
import tiny
import torch
from small import CONDITIONS, EVERY, SENTENCES

import raycase
from raycase.commands.train import ProjectorFlags
from raycase.encoder.choices import find_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import BUILT_IN, OwnPrompt, PooledPart, read_prompt
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.models.model_folder import write_folder
from raycase.models.registry import resolve
from raycase.papers.baselines.model import bi_encoder, lora

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
        ({"template": "{sentence} {sentence} {condition}"}, ONCE),
        ({"template": "{sentence}"}, ONCE),
        ({"template": ONE_WORD, "base_template": ONE_WORD}, r"base_template: expected \{condition\} once and no"),
        ({"template": 7}, "template: expected a valid string, got 7"),
        ({"template": ONE_WORD, "pool": "first"}, "pool: expected 'last', 'condition', .*, got 'first'"),
        ({"template": ONE_WORD, "base-template": "{condition}"}, "base-template: expected no such name, got one"),
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
        ("qwen3-embedding-0.6b", None, None, ("last", Pooling.LAST)),
        ("qwen3-embedding-0.6b", PooledPart.CONDITION, None, ("condition", Pooling.MEAN)),
        ("sfr-mistral", None, None, ("condition", Pooling.MEAN)),
        ("sfr-mistral", PooledPart.LAST, None, ("last", Pooling.LAST)),
        ("nv-embed-v2", PooledPart.ALL, None, ("all", Pooling.LATENT)),
        ("e5-large-instruct", None, Pooling.MEAN_ALL, (None, Pooling.MEAN_ALL)),
    ],
)
def test_pool_and_pooling_say_the_same(name, pool, pooling, wanted):
    spec = find_encoder(name, own=replace(OWN, pool=pool), pooling=pooling)
    assert (spec.own.pool, spec.pooling[0]) == wanted
    assert sorted(spec.pooling) == sorted(ENCODERS[name].pooling)


@pytest.mark.parametrize(
    ("pool", "pooling", "message"),
    [
        (PooledPart.LAST, Pooling.MEAN, "--prompt: pool last: expected .* the pooling last, got --pooling mean; leave"),
        (PooledPart.ALL, Pooling.LATENT, "--pooling: expected one of mean, last, cls for minilm, got latent"),
    ],
)
def test_a_pool_that_contradicts_the_pooling_is_refused(pool, pooling, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        find_encoder("minilm", own=replace(OWN, pool=pool), pooling=pooling)


@pytest.fixture(scope="module")
def encoders(bert, qwen):
    return {"causal": qwen, "bert": bert}


def under(system):
    return small.vectors(system, EVERY)


@pytest.mark.parametrize("style", [*BUILT_IN, "concat-sc:condition", "concat-cs:sentence"])
@pytest.mark.parametrize(("kind", "pooling"), [("causal", "last"), ("bert", "mean")])
def test_a_built_in_prompt_as_a_template_gives_the_same_tokens_and_vectors(encoders, kind, style, pooling):
    built_in = resolve(encoders[kind], prompt=style, pooling=pooling)
    [prompts] = built_in.prompts
    pool = "last" if pooling == "last" else prompts.pair.span
    own_prompt = {"template": prompts.pair.pattern, "base_template": prompts.base.pattern, "pool": pool}
    own = resolve(encoders[kind], prompt=own_prompt)
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


@pytest.mark.parametrize("ends", [True, False])
def test_the_last_token_of_the_whole_prompt_is_read_as_the_library_has_it(tmp_path, ends):
    """The template's closing quotation mark, or the end token that the tokenizer adds after it."""
    tiny.save_model(tmp_path, "qwen3", tiny.save_tokenizer(tmp_path, tiny.qwen(ends=ends)))
    folder = str(tmp_path)
    *_, last = small.tokenizer(folder).convert_ids_to_tokens(small.ids(folder, _filled(*EVERY[0]))[0])
    assert last == ("<|endoftext|>" if ends else '"')
    found = under(small.system(resolve(folder, prompt={"template": ONE_WORD, "pool": "last"})))
    small.close(found, [small.states(folder, _filled(s, c))[-1] for s, c in EVERY], atol=1e-5)


def _filled(sentence, condition):
    return ONE_WORD.replace("{condition}", condition).replace("{sentence}", sentence)


def test_views_of_both_kinds_stand_side_by_side(encoders):
    own = {"template": ONE_WORD, "base_template": BASE, "pool": "sentence", "views": ["concat-sc", "template"]}
    both = resolve(encoders["bert"], prompt=own)
    apart = [small.system(config) for config in both.views_apart]
    assert both.views_apart[0].describe() == resolve(encoders["bert"], prompt="concat-sc", pooling="mean").describe()
    np.testing.assert_array_equal(under(small.system(both)), np.hstack([under(system) for system in apart]))


def test_nothing_is_subtracted_without_a_base_template(encoders):
    own = {"template": ONE_WORD, "pool": "all"}
    plain, subtracted = (resolve(encoders["bert"], prompt=own | base) for base in ({}, {"base_template": BASE}))
    assert (plain.subtract, subtracted.subtract) == (False, True)
    base = small.mean(encoders["bert"], BASE.replace("{condition}", CONDITIONS[0]))
    loaded = [small.system(config).embed(SENTENCES, CONDITIONS[0]) for config in (plain, subtracted)]
    small.close(loaded[1], loaded[0] - base)
    with pytest.raises(RequestError, match=r"^--subtract: expected a base_template in the file of --prompt, got a"):
        resolve(encoders["bert"], prompt=own, subtract=True)
    assert not resolve(encoders["bert"], prompt=own | {"views": ["concat-sc", "template"]}).subtract


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
def test_a_fine_tuned_encoder_reads_it_too(encoders, tmp_path, make):
    """BeLLM's way: a template whose last token is trained."""
    own = OwnPrompt(template=ONE_WORD, pool=PooledPart.LAST)
    config = make(encoders["causal"], own=own)
    system = small.disturb(config.trainable()).eval()
    zero_shot = small.system(resolve(encoders["causal"], prompt={"template": ONE_WORD, "pool": "last"}))
    small.close(under(small.system(config)), under(zero_shot))
    system.save(tmp_path / "tuned")
    loaded = raycase.load(str(tmp_path / "tuned"), dtype=torch.float32)
    small.close(under(loaded), under(system), atol=2e-5)
    assert (loaded.config.encoder.own, loaded.config.encoder.pooling[0]) == (own, Pooling.LAST)
    averaged = make(encoders["causal"], own=replace(own, pool=None)).encoder.own
    assert averaged.pool is PooledPart.CONDITION
    files = {"train": "a.csv", "validation": "b.csv", "output": "out"}
    (tmp_path / "prompt.json").write_text(json.dumps({"template": ONE_WORD}))
    job = ProjectorFlags(model=str(tmp_path / "tuned"), **files, prompt=str(tmp_path / "prompt.json"))
    assert job.config().encoder.own == own
    with pytest.raises(RequestError, match=r"^--subtract: expected a base_template"):
        ProjectorFlags(model=str(tmp_path / "tuned"), **files, subtract=True).config()
