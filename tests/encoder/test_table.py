"""Vectors of every encoder of the table, on tiny random models of the same kinds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import prompt_set
from raycase.encoder.table import ENCODERS
from raycase.models.pairs import SENTENCE as UNCONDITIONAL

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


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(folder_of, tiny_encoder, name):
    """Tokens, pooled span, direction of attention and pooling, against plain transformers."""
    row, folder, encoder = ROWS[name], folder_of(name), tiny_encoder(name)
    prompts = prompts_of(ENCODERS[name])
    pairs = [(SENTENCE, CONDITION), ("café 😀", "number of people"), ("two people play at the bar with a dog", "a")]
    rendered, wanted = [], []
    for s, c in pairs:
        rendered += [prompts.pair.render(s, c), prompts.base.render("", c), UNCONDITIONAL.render(s, "")]
        wanted += [(row.pair, s, c, row.over), (row.base, s, c, row.over), ("{s}", s, c, "")]
    tokens = tiny.tokens(encoder.tokenize, rendered)
    found = encoder.pool(tokens)
    assert ENCODERS[name].max_tokens == row.max_tokens
    for i, (pattern, s, c, over) in enumerate(wanted):
        text = pattern.replace("{s}", s).replace("{c}", c)
        ids, vector = reference(folder, name, text, over.replace("{c}", c))
        assert tokens[i].ids == ids
        np.testing.assert_allclose(found[i], vector.numpy(), rtol=1e-4, atol=1e-5)


NV_TEXTS = ["color of the dress", "number of people", "7 dogs", "北京 東京", "a", "café 😀"]


def test_nv_embeds_authors_average_the_end_token_too(folder_of):
    """Their instruction is all that stands before the text; a sentence alone has none, and is averaged with `<s>`."""
    folder = folder_of("nv-embed-v2")
    table = ENCODERS["nv-embed-v2"]
    spec = replace(find_encoder("nv-embed-v2", pooling=Pooling.LATENT_END), source=str(folder), max_tokens=300)
    encoder = load_encoder(spec, dtype=torch.float32)
    prompts = prompts_of(spec)
    rendered, wanted = [], []
    for condition in NV_TEXTS:
        for template, sentence in ((prompts.pair, SENTENCE), (prompts.base, "")):
            prompt = template.render(sentence, condition)
            rendered.append(prompt)
            wanted.append(tiny.nv_embed(folder, prompt.text.removesuffix(condition), condition))
        rendered.append(UNCONDITIONAL.render(condition, ""))
        wanted.append(tiny.nv_embed(folder, "", condition))
    np.testing.assert_allclose(encoder.pool(tiny.tokens(encoder.tokenize, rendered)), wanted, rtol=1e-4, atol=1e-5)
    cases = load_encoder(replace(table, source=str(folder), max_tokens=300), dtype=torch.float32)
    apart = cases.pool(tiny.tokens(cases.tokenize, rendered))
    alone = [i % 3 == 2 for i in range(len(rendered))]
    assert [np.allclose(a, b, atol=1e-5) for a, b in zip(apart, wanted, strict=True)] == alone
