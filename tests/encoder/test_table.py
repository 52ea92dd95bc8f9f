"""What the prompts say (CASE, section 3.1 and section 4), what a pooling reads, and the vectors of every encoder of the
table, on tiny random models of the same kinds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from raycase.encoder.bert import LatentAttention
from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling, pool_mean, pooled_spans
from raycase.encoder.prompts import BUILT_IN, TokenSpan, parse_views, prompt_set
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.models.pairs import SENTENCE as UNCONDITIONAL
from raycase.names import PromptStyle

SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def pooled(template, sentence, condition):
    """The pooled text of a prompt, None where all of it is."""
    found = template.render(sentence, condition)
    return found.pooled and found.text[slice(*found.pooled)]


RETRIEVE = "Instruct: Retrieve semantically similar texts"
TO_SENTENCE = f"{RETRIEVE} to a given Sentence, given the Condition : color of the dress\n"


@pytest.mark.parametrize(
    ("style", "options", "pair", "base"),
    [
        (PromptStyle.SENT, {}, TO_SENTENCE + "Query: " + SENTENCE, f"{RETRIEVE}\nQuery: {CONDITION}"),
        (PromptStyle.CONCAT_CS, {"separator": ": "}, f"{CONDITION}: {SENTENCE}", CONDITION),
    ],
)
def test_the_texts_of_a_style(style, options, pair, base):
    """Of those that no row has."""
    prompts = prompt_set(style, **options)
    assert [each.render(SENTENCE, CONDITION).text for each in (prompts.pair, prompts.base)] == [pair, base]


@pytest.mark.parametrize("style", BUILT_IN)
@pytest.mark.parametrize("span", TokenSpan)
def test_what_is_pooled(style, span):
    prompts = prompt_set(style, span=span)
    of_style = {PromptStyle.COND: CONDITION, PromptStyle.SENT: SENTENCE}
    of_span = {TokenSpan.CONDITION: CONDITION, TokenSpan.SENTENCE: SENTENCE, TokenSpan.ALL: None}
    assert pooled(prompts.pair, SENTENCE, CONDITION) == of_style.get(style, of_span[span])
    wanted = None if style not in of_style and span is TokenSpan.ALL else CONDITION
    assert pooled(prompts.base, "", CONDITION) == wanted


NO_STYLES = ["", "+", "cond+", "+cond", "other", "cond+other", "Cond", " cond", "cond + sent"]
NO_SPANS = ["cond:all", "sent:sentence", "concat-sc:", "concat-sc:other", "concat-cs:all:all", "concat-sc: all"]
TWICE = ["cond+cond", "cond+sent+cond", "concat-sc:all+concat-sc:all"]


@pytest.mark.parametrize(
    ("prompts", "said"), [(NO_STYLES, "cond, sent"), (NO_SPANS, "a span for .*concat-sc"), (TWICE, "each view once")]
)
def test_what_is_no_view_is_refused(prompts, said):
    for prompt in prompts:
        with pytest.raises(RequestError, match=f"^--prompt: expected {said}.*, got '"):
            parse_views(prompt)


HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [5.0, -4.0]], [[7.0, 0.0], [1.0, 1.0], [100.0, 100.0]]])


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (Pooling.LAST, [[5.0, -4.0], [1.0, 1.0]]),  # each sequence's own last
        (Pooling.CLS, [[1.0, 2.0], [7.0, 0.0]]),
        (Pooling.MEAN, [[4.0, 1.0], [4.0, 0.5]]),
        (Pooling.LATENT_END, [[4.0, 1.0], [4.0, 0.5]]),
    ],
)
def test_which_tokens_a_pooling_reads(pooling, wanted):
    start, end, lengths = torch.tensor([[1, 0], [3, 2], [3, 2]])
    first, stop = pooled_spans(pooling, start, end, lengths)
    place = torch.arange(3)
    assert pool_mean(HIDDEN, (place >= first[:, None]) & (place < stop[:, None])).tolist() == wanted


def test_latent_attention_has_the_published_names_and_shapes():
    """Those of nvidia/NV-Embed-v2, for dim 16 in place of 4096."""
    latent = LatentAttention(dim=16, latents=512, heads=8, head_dim=32)
    cross, feed = "cross_attend_blocks.0.", "cross_attend_blocks.1."
    norms = (f"{cross}norm", f"{cross}norm_context", f"{feed}norm")
    norms = [f"{name}.{part}" for name in norms for part in ("weight", "bias")]
    assert {name: tuple(value.shape) for name, value in latent.state_dict().items()} == {
        "latents": (512, 16),
        f"{cross}fn.to_q.weight": (256, 16),
        f"{cross}fn.to_kv.weight": (512, 16),
        f"{cross}fn.to_out.weight": (16, 256),
        f"{feed}fn.net.0.weight": (128, 16),
        f"{feed}fn.net.0.bias": (128,),
        f"{feed}fn.net.2.weight": (16, 64),
        f"{feed}fn.net.2.bias": (16,),
    } | dict.fromkeys(norms, (16,))


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
    return Row(
        pair=f"{RETRIEVE} to a given Condition, given the Sentence : {{s}}\nQuery:{colon}{{c}}",
        base=f"{RETRIEVE}\nQuery:{colon}{{c}}",
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


def load(row, folder):
    """The tiny encoder of a folder by a row of the table."""
    return load_encoder(replace(row, source=str(folder), max_tokens=300), dtype=torch.float32)


def reference(folder, name, text, over):
    """One sequence without padding through plain transformers, pooled: -> ids, (D,)."""
    row = ROWS[name]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = tokenizer.encode(text)
    ids = encoding.ids
    if row.end and ids[-1] != tokenizer.token_to_id(row.end):
        ids = [*ids, tokenizer.token_to_id(row.end)]
    is_latent = row.pooling == "latent"
    model, latent = tiny.nv_embed_model(folder) if is_latent else (AutoModel.from_pretrained(folder).eval(), {})
    both_ways = hasattr(model, "embed_tokens") and not row.causal
    mask = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool) if both_ways else None
    with torch.inference_mode():
        hidden = model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
    if row.pooling == "last":
        return ids, hidden[-1]
    held = range(len(ids))
    if over:
        start = text.rindex(over)
        held = [i for i, (a, b) in enumerate(encoding.offsets) if b > start and a < start + len(over) and a < b]
    if is_latent:
        hidden = tiny.latent_reference(latent, hidden, heads=2)
    return ids, hidden[held].mean(0)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(folder_of, name):
    """Tokens, pooled span, direction of attention and pooling, against plain transformers."""
    row, folder, prompts = ROWS[name], folder_of(name), prompts_of(ENCODERS[name])
    encoder = load(ENCODERS[name], folder)
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
    folder, spec = folder_of("nv-embed-v2"), find_encoder("nv-embed-v2", pooling=Pooling.LATENT_END)
    encoder, cases, prompts = load(spec, folder), load(ENCODERS["nv-embed-v2"], folder), prompts_of(spec)
    rendered, wanted = [], []
    for condition in NV_TEXTS:
        for template, sentence in ((prompts.pair, SENTENCE), (prompts.base, "")):
            prompt = template.render(sentence, condition)
            rendered.append(prompt)
            wanted.append(tiny.nv_embed(folder, prompt.text.removesuffix(condition), condition))
        rendered.append(UNCONDITIONAL.render(condition, ""))
        wanted.append(tiny.nv_embed(folder, "", condition))
    np.testing.assert_allclose(encoder.pool(tiny.tokens(encoder.tokenize, rendered)), wanted, rtol=1e-4, atol=1e-5)
    apart = cases.pool(tiny.tokens(cases.tokenize, rendered))
    alone = [i % 3 == 2 for i in range(len(rendered))]
    assert [np.allclose(a, b, atol=1e-5) for a, b in zip(apart, wanted, strict=True)] == alone
