"""Vectors of every encoder of the table, on tiny random models of the same kinds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel, BertConfig

from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import _batch_tokens, load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import prompt_set
from raycase.encoder.table import ENCODERS
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


CHOSEN = {  # poolings that are no default of the table's
    Pooling.CLS: lambda out: out.last_hidden_state[:, 0],
    Pooling.POOLER: lambda out: out.pooler_output,
    Pooling.MEAN_ALL: lambda out: out.last_hidden_state.mean(1),
}


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("simcse-bert-base", Pooling.CLS),
        ("simcse-bert-base", Pooling.POOLER),
        ("simcse-roberta-large", Pooling.POOLER),
        ("e5-large-instruct", Pooling.MEAN_ALL),
    ],
)
def test_a_pooling_that_is_chosen(folder_of, name, pooling):
    folder = folder_of(name)
    spec = replace(find_encoder(name, pooling=pooling), source=str(folder), max_tokens=200)
    encoder = load_encoder(spec, dtype=torch.float32)
    tokens = encoder.tokenize([prompts_of(spec).pair.render(s, CONDITION) for s in (SENTENCE, "A dog")])
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        wanted = torch.cat([CHOSEN[pooling](model(torch.tensor([t.ids]))) for t in tokens])
    np.testing.assert_allclose(encoder.pool(tokens), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_pooler_that_the_weights_lack_is_refused(copied):
    folder = copied("simcse-bert-base")
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("pooler")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RequestError, match=r"expected readable weights .*no pooler"):
        load_encoder(replace(find_encoder("simcse-bert-base", pooling=Pooling.POOLER), source=str(folder)))


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


@pytest.mark.parametrize(
    ("hidden", "on_gpu", "in_rows", "tokens"),
    [
        (384, False, False, 2048),
        (768, False, False, 1024),
        (4096, False, False, 512),
        (32, False, False, 4096),
        (4096, False, True, 4096),
        (768, True, False, 32768),
    ],
)
def test_tokens_of_a_batch_by_the_encoders_width(hidden, on_gpu, in_rows, tokens):
    assert _batch_tokens(BertConfig(hidden_size=hidden), on_gpu=on_gpu, in_rows=in_rows) == tokens
