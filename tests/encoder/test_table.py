"""Vectors of every encoder of the table, on tiny random models of the same kinds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel

from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import prompt_set
from raycase.encoder.sources import find_encoder
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import Tokens
from raycase.errors import RequestError

SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def prompts_of(spec):
    return prompt_set(spec.prompt, template=spec.template, separator=spec.separator, span=spec.span)


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
def tiny_encoder(folder_of):
    """The tiny encoder of a name, loaded by the table's row with another source."""

    def load(name, dtype=torch.float32, **options):
        spec = replace(ENCODERS[name], source=str(folder_of(name)), max_tokens=200)
        return load_encoder(spec, dtype=dtype, **options)

    return load


def plain_model(folder, name):
    """The model as transformers has it, and the weights of NV-Embed's latent attention."""
    return tiny.nv_embed_model(folder) if name == "nv-embed-v2" else (AutoModel.from_pretrained(folder).eval(), {})


def reference(folder, name, text, over):
    """One sequence without padding through plain transformers, pooled: -> ids, (D,)."""
    row = ROWS[name]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = tokenizer.encode(text)
    ids = encoding.ids
    if row.end and ids[-1] != tokenizer.token_to_id(row.end):
        ids = [*ids, tokenizer.token_to_id(row.end)]
    model, latent = plain_model(folder, name)
    bidirectional = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool)
    with torch.inference_mode():
        decoder = hasattr(model, "embed_tokens")
        mask = bidirectional if decoder and not row.causal else None
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


NV_TEXTS = ["color of the dress", "number of people", "7 dogs", "北京 東京", "a", "café 😀"]


@pytest.mark.parametrize("unpadded", [False, True])
def test_nv_embeds_authors_average_the_end_token_too(folder_of, unpadded):
    """Their instruction is all that stands before the text; a sentence alone has none, and is averaged with `<s>`."""
    folder = folder_of("nv-embed-v2")
    table = ENCODERS["nv-embed-v2"]
    spec = replace(find_encoder("nv-embed-v2", pooling=Pooling.LATENT_END), source=str(folder), max_tokens=300)
    encoder = load_encoder(spec, dtype=torch.float32, unpadded=unpadded)
    prompts = prompts_of(spec)
    rendered, wanted = [], []
    for condition in NV_TEXTS:
        for template, sentence in ((prompts.pair, SENTENCE), (prompts.base, "")):
            prompt = template.render(sentence, condition)
            rendered.append(prompt)
            wanted.append(tiny.nv_embed(folder, prompt.text.removesuffix(condition), condition))
        rendered.append(prompts.plain.render(condition, ""))
        wanted.append(tiny.nv_embed(folder, "", condition))
    np.testing.assert_allclose(encoder.pool(encoder.tokenize(rendered)), wanted, rtol=1e-4, atol=1e-5)
    cases = load_encoder(replace(table, source=str(folder), max_tokens=300), dtype=torch.float32)
    apart = cases.pool(cases.tokenize(rendered))
    alone = [i % 3 == 2 for i in range(len(rendered))]
    assert [np.allclose(a, b, atol=1e-5) for a, b in zip(apart, wanted, strict=True)] == alone


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
def test_the_last_token_reaches_the_first_where_attention_goes_bidirectional(tiny_encoder, name, padded):
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
    rendered = [
        pair.render(SENTENCE, c)
        for c in ("color of the dress", "a", "café naïve Łódź Straße", "北京 東京", "привет", "😀")
    ]
    vectors = [e.pool(e.tokenize(rendered)) for e in (tiny_encoder(name), tiny_encoder(name, dtype=torch.bfloat16))]
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    assert (a * b).sum(1).min() > 0.999
    assert vectors[1].dtype == np.float32


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
