"""Prompts of one's own: their templates, what of them is pooled, and the file of `--prompt` that says so."""

import json
from dataclasses import asdict, replace

import pytest
import tiny

from raycase.data.schema import Reason
from raycase.encoder.choices import find_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart, PromptStyle, read_prompt
from raycase.encoder.published import described
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS, read_spec
from raycase.errors import RequestError

ONE_WORD = 'Express this text "{sentence}" in one word in terms of {condition}: "'
OWN = OwnPrompt(template=ONE_WORD)
SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def test_the_texts_take_their_places_and_everything_else_stays():
    own = OwnPrompt(
        template=" {{sentence}} {0} {text}\n{condition} ", base_template="{{{condition}}}", pool=PooledPart.ALL
    )
    pair = own.prompts.pair.render(" {condition} ", "{sentence}")
    assert pair.text == " {{condition}} {0} {text}\n{sentence} "
    assert [pair.text[slice(*span)] for span in pair.texts] == ["{condition}", "{sentence}"]
    assert own.prompts.base.render("", CONDITION).text == "{{color of the dress}}"
    assert own.prompts.plain.render(SENTENCE, "").text == SENTENCE


@pytest.mark.parametrize("pool", [*PooledPart, None])
def test_what_is_pooled(pool):
    prompts = OwnPrompt(template=ONE_WORD, base_template="{condition}: ", pool=pool).prompts
    text, base = prompts.pair.render(SENTENCE, CONDITION), prompts.base.render("", CONDITION)
    wanted = {PooledPart.CONDITION: (CONDITION, CONDITION), PooledPart.SENTENCE: (SENTENCE, CONDITION)}.get(
        pool, (None, None)
    )
    assert tuple(p.pooled and p.text[slice(*p.pooled)] for p in (text, base)) == wanted


@pytest.mark.parametrize(
    "template",
    ["", "x", "{sentence}", "{condition}", "{sentence} {sentence} {condition}", "{sentence} {condition}" * 2],
)
def test_a_template_without_its_places_is_refused(template):
    with pytest.raises(
        RequestError, match=r"^--prompt: template: expected \{sentence\} and \{condition\} once each, got '"
    ):
        OwnPrompt(template=template)


@pytest.mark.parametrize("template", ["", "x", "{sentence}", ONE_WORD, "{condition}{condition}", "\ud800{condition}"])
def test_a_base_template_without_its_place_is_refused(template):
    with pytest.raises(
        RequestError, match=r"^--prompt: base_template: expected \{condition\} once and no \{sentence\}, got "
    ):
        OwnPrompt(template=ONE_WORD, base_template=template)


def test_a_prompt_is_a_name_or_a_file(tmp_path):
    assert read_prompt(None) == (None, None)
    assert read_prompt("sent+concat-sc:all") == ("sent+concat-sc:all", None)
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps({"template": ONE_WORD}))
    assert read_prompt(str(file)) == ("template", OWN)
    whole = {"template": ONE_WORD, "base_template": "{condition}:", "pool": "last", "views": ["template", "concat-sc"]}
    file.write_text(json.dumps(whole))
    wanted = OwnPrompt(template=ONE_WORD, base_template="{condition}:", pool=PooledPart.LAST)
    assert read_prompt(str(file)) == read_prompt(whole) == ("template+concat-sc", wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_template": "{condition}", "pool": "last"}, "template: expected it, got none"),
        ({"template": 7}, "template: expected a valid string, got 7"),
        ({"template": ONE_WORD, "base_template": ["x"]}, "base_template: expected a valid string, got"),
        (
            {"template": ONE_WORD, "pool": "first"},
            "pool: expected 'last', 'condition', 'sentence' or 'all', got 'first'",
        ),
        ({"template": ONE_WORD, "base-template": "{condition}"}, "base-template: expected no such name, got one"),
        ({"template": ONE_WORD, "views": "template"}, "views: expected a valid array, got 'template'"),
        ({"template": ONE_WORD, "views": ["concat-sc"]}, "views: expected template among them, got concat-sc"),
        ({"template": ONE_WORD, "views": ["template", "concat"]}, "expected cond, sent, .*, got 'concat'"),
        ({"template": ONE_WORD, "views": ["template", "template"]}, "expected each view once"),
        ([], "the file: expected an object, got"),
    ],
)
def test_a_file_with_anything_else_is_refused(values, message, tmp_path):
    (tmp_path / "prompt.json").write_text(json.dumps(values))
    with pytest.raises(RequestError, match=f"^--prompt: {message}"):
        read_prompt(str(tmp_path / "prompt.json"))


def test_a_prompt_without_its_file_is_refused(tmp_path):
    (tmp_path / "wrong.json").write_text("{")
    (tmp_path / "twice.json").write_text(json.dumps({"template": ONE_WORD})[:-1] + ', "template": "{sentence}"}')
    for prompt, message in {
        str(tmp_path / "none.json"): "--prompt: expected a JSON file, got no ",
        str(tmp_path / "wrong.json"): ".*wrong.json: expected JSON",
        str(tmp_path / "twice.json"): ".*twice.json: expected JSON, got: expected each name once, got 'template' twice",
        "cond+template": "--prompt: expected a file NAME.json with the template, got cond.template",
        "nope": "--prompt: expected cond, sent, .*, or a file NAME.json with a template, got 'nope'",
    }.items():
        with pytest.raises(RequestError, match=f"^{message}"):
            read_prompt(prompt)


@pytest.mark.parametrize(
    ("name", "pool", "pooling", "wanted"),
    [
        ("qwen3-embedding-0.6b", None, None, ("last", Pooling.LAST)),
        ("qwen3-embedding-0.6b", PooledPart.CONDITION, None, ("condition", Pooling.MEAN)),
        ("qwen3-embedding-0.6b", None, Pooling.MEAN, ("condition", Pooling.MEAN)),
        ("sfr-mistral", None, None, ("condition", Pooling.MEAN)),
        ("sfr-mistral", PooledPart.LAST, None, ("last", Pooling.LAST)),
        ("sfr-mistral", PooledPart.LAST, Pooling.LAST, ("last", Pooling.LAST)),
        ("nv-embed-v2", PooledPart.ALL, None, ("all", Pooling.LATENT)),
        ("minilm", PooledPart.SENTENCE, Pooling.MEAN, ("sentence", Pooling.MEAN)),
        ("minilm", None, Pooling.CLS, (None, Pooling.CLS)),
        ("e5-large-instruct", None, Pooling.MEAN_ALL, (None, Pooling.MEAN_ALL)),
    ],
)
def test_pool_and_pooling_say_the_same(name, pool, pooling, wanted):
    spec = find_encoder(name, own=replace(OWN, pool=pool), pooling=pooling)
    assert (spec.own.pool, spec.pooling[0]) == wanted
    assert sorted(spec.pooling) == sorted(ENCODERS[name].pooling)


@pytest.mark.parametrize(
    ("name", "pool", "pooling", "message"),
    [
        (
            "minilm",
            PooledPart.LAST,
            Pooling.MEAN,
            "--prompt: pool last: expected an encoder with the pooling last, got --pooling mean; leave one out",
        ),
        (
            "minilm",
            PooledPart.CONDITION,
            Pooling.LAST,
            "--prompt: pool condition: expected an encoder with the pooling mean or latent.*, got --pooling last",
        ),
        (
            "e5-large-instruct",
            PooledPart.ALL,
            Pooling.MEAN_ALL,
            "--prompt: pool all: expected an encoder with the pooling mean or latent.*, got --pooling mean-all",
        ),
        (
            "nv-embed-v2",
            PooledPart.LAST,
            None,
            "--prompt: pool last: expected an encoder with the pooling last, got nv-embed-v2",
        ),
        ("minilm", PooledPart.ALL, Pooling.LATENT, "--pooling: expected one of mean, last, cls for minilm, got latent"),
    ],
)
def test_a_pool_that_contradicts_the_pooling_is_refused(name, pool, pooling, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        find_encoder(name, own=replace(OWN, pool=pool), pooling=pooling)


def test_an_encoder_outside_the_table_needs_no_more_than_template_and_pool(folder_of):
    folder = str(folder_of("qwen3-embedding-0.6b"))
    assert find_encoder(folder, own=replace(OWN, pool=PooledPart.LAST)).pooling == (Pooling.LAST,)
    assert find_encoder(folder, own=replace(OWN, pool=PooledPart.ALL)).pooling == (Pooling.MEAN,)
    with pytest.raises(RequestError, match="pass --pooling beside it"):
        find_encoder(folder, own=OWN)


def test_it_is_a_view_by_a_name_of_its_own():
    assert find_encoder("minilm", own=OWN).prompt == PromptStyle.TEMPLATE
    assert find_encoder("minilm", prompt="cond+template", own=OWN).prompt == "cond+template"
    with pytest.raises(RequestError, match=r"--prompt: expected a span for concat-cs"):
        find_encoder("minilm", prompt="template:condition", own=OWN)


def test_without_a_base_template_nothing_is_subtracted():
    assert not find_encoder("minilm", own=OWN).subtract
    assert find_encoder("minilm", own=replace(OWN, base_template="{condition}")).subtract


def test_a_row_has_the_prompt_only_where_a_view_reads_it():
    spec = find_encoder("minilm", prompt="cond+template", own=replace(OWN, base_template="{condition}"))
    assert described(spec)["own"] == {"template": ONE_WORD, "base_template": "{condition}", "pool": "condition"}
    assert saved(spec) == spec
    assert described(replace(spec, prompt="cond")) == described(replace(ENCODERS["minilm"], prompt="cond"))
    assert all("own" not in row.as_json() and saved(row) == row for row in ENCODERS.values())
    for own in (asdict(OWN) | {"template": "x"}, asdict(OWN) | {"base_template": "x"}, {}, {"pool": "x"}):
        with pytest.raises(ValueError, match=r"template|own"):
            saved(spec, own=own)


def saved(spec, **changes):
    """A row as it is read back from JSON."""
    return read_spec(json.loads(json.dumps(spec.as_json() | changes)))


@pytest.mark.parametrize("family", tiny.TOKENIZERS)
def test_a_prompt_of_ones_own_is_tokenised_as_a_built_in_one(tmp_path, family):
    tiny.save_tokenizer(tmp_path, tiny.TOKENIZERS[family]())
    spec = replace(ENCODERS["minilm"], source=str(tmp_path), max_tokens=60)
    texts = ("a red dress", "two people", "the woman with a dog at the bar " * 9)
    pairs = [(s, c) for s in texts for c in ("color", "number of people", "dog")]
    templates = [replace(OWN, pool=pool).prompts.pair for pool in PooledPart]
    assert load_tokenizer(spec).pairs(templates, pairs).truncated.any()
    (refused,) = load_tokenizer(replace(spec, max_tokens=8))([templates[0].render(*pairs[0])])
    assert refused.refused is Reason.NO_ROOM
