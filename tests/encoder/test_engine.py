"""Prompts through the encoder together give what each gives alone: trees, rows without padding, batches."""

from copy import deepcopy
from functools import cache, partial

import numpy as np
import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoConfig, AutoModel

from raycase.encoder import attention, engine
from raycase.encoder.attention import NAME, register
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import compile_layers, try_kernels
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.names import PromptStyle

WINDOW = 5
make = partial(AutoConfig.for_model, vocab_size=50)
DECODERS = {
    "qwen3": make("qwen3", head_dim=8, **tiny.NO_TOKENS, **tiny.DECODER),
    "mistral": make("mistral", sliding_window=WINDOW, **tiny.DECODER),
    "llama": make("llama", **tiny.NO_TOKENS, **tiny.DECODER),
}
# Layers with and without a window in one model.
SOME = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
MIXED = make("qwen2", **SOME, **tiny.NO_TOKENS, **tiny.DECODER)
BOTH_WAYS = make("qwen2", is_causal=False, **tiny.NO_TOKENS, **tiny.DECODER)
BERT = make("bert", max_position_embeddings=64, **tiny.SIZES)


def encoder(config, causal=True, pooling=Pooling.MEAN, dtype=torch.float32, **options):
    """An encoder of random weights in rows, where it is a decoder, and the same model as transformers has it."""
    register()
    torch.manual_seed(0)
    plain = AutoModel.from_config(deepcopy(config), attn_implementation="sdpa").to(dtype).eval()
    implementation = NAME if config is not BERT else "sdpa"
    rows = AutoModel.from_config(deepcopy(config), attn_implementation=implementation).to(dtype).eval()
    rows.load_state_dict(plain.state_dict())
    if not hasattr(rows, "layers"):
        rows.pooler = None  # as `load_encoder` does
    spec = EncoderSpec(source="", prompt=PromptStyle.COND, pooling=(pooling,), causal=causal, max_tokens=512)
    return TextEncoder(spec=spec, model=rows, tokenize=None, **options), plain


def batch_of(sequences, spans):
    return TokenBatch.of([Tokens(ids=s, start=a, end=b) for s, (a, b) in zip(sequences, spans, strict=True)])


@torch.inference_mode()
def alone(plain, sequences, spans, *, pooling=Pooling.MEAN, bidirectional=False):
    """Each sequence by itself through plain transformers, pooled: (N, D) float32."""
    vectors = []
    for ids, (start, end) in zip(sequences, spans, strict=True):
        mask = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool) if bidirectional else None
        hidden = plain(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0].float()
        vectors.append(hidden[-1] if pooling is Pooling.LAST else hidden[start:end].mean(0))
    return torch.stack(vectors).numpy()


def equal(rows, plain, sequences, spans, **options):
    """Assert that an encoder gives what each sequence gives alone; gives its work."""
    vectors, work = rows.encode(batch_of(sequences, spans))
    assert relative(vectors, alone(plain, sequences, spans, **options)) < 1e-5
    return work


def relative(found, wanted):
    return (np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)).max()


@st.composite
def prompts(draw):
    """Sequences with shared prefixes, duplicates, some the prefix of another, some of length 1; and pooled spans."""
    piece = st.lists(st.integers(3, 9), min_size=1, max_size=14)
    stems = draw(st.lists(piece, min_size=1, max_size=3))
    sequences = draw(st.lists(st.tuples(st.sampled_from(stems), st.just([]) | piece), min_size=1, max_size=10))
    sequences = [[*stem, *rest] for stem, rest in sequences] + draw(st.lists(piece, max_size=2))
    sequences += draw(st.lists(st.sampled_from(sequences), max_size=3))
    ends = [draw(st.integers(1, len(s))) for s in sequences]
    return sequences, [(draw(st.integers(0, end - 1)), end) for end in ends]


@cache
def made(name, pooling, dtype):
    rows, plain = encoder(DECODERS[name], pooling=pooling, dtype=dtype)
    rows._trees_cost_less = lambda *_: True
    return rows, plain


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
@pytest.mark.parametrize("name", DECODERS)
@given(prompts(), st.integers(1, 80))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_tree_gives_what_each_prompt_gives_alone(name, pooling, found, budget):
    sequences, spans = found
    for dtype in (torch.float32, torch.bfloat16):
        rows, plain = made(name, pooling, dtype)
        rows.batch_tokens = budget
        vectors, work = rows.encode(batch_of(sequences, spans))
        wanted = alone(plain, sequences, spans, pooling=pooling)
        if dtype is torch.float32:
            assert relative(vectors, wanted) < 1e-5
        else:
            cosines = (vectors * wanted).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted, axis=1)
            assert cosines.min() > 0.999
        assert work.tokens == sum(map(len, sequences))
        assert len({tuple(s[: n + 1]) for s in sequences for n in range(len(s))}) <= work.processed <= work.tokens


def shared(sentences=6, conditions=5, seed=0):
    """Prompts with an instruction, sentences and conditions."""
    random = np.random.default_rng(seed)
    texts = [random.integers(3, 50, random.integers(4, 15)).tolist() for _ in range(sentences)]
    ends = [random.integers(3, 50, random.integers(1, 4)).tolist() for _ in range(conditions)]
    sequences = [[3, 4, 3, *text, 5, *end] for text in texts for end in ends]
    return sequences, [(len(s) - 2, len(s)) for s in sequences]


def test_layers_with_and_without_a_window():
    assert MIXED.layer_types == ["full_attention", "sliding_attention"]
    rows, plain = encoder(MIXED)
    assert rows.window == WINDOW
    work = equal(rows, plain, *shared())
    assert work.processed < work.tokens / 2


def test_rows_without_padding_give_what_each_gives_alone():
    rows, plain = encoder(BOTH_WAYS, causal=False, batch_tokens=100)
    work = equal(rows, plain, *shared(), bidirectional=True)
    assert work.processed == work.tokens


def test_long_prompts_that_share_nothing_are_padded_and_others_share_a_tree():
    rows, _ = encoder(DECODERS["qwen3"], batch_tokens=10_000)
    for prompts, padded in (([[3] * 600, [4] * 500], True), ([[3] * 600, [3] * 599 + [4]] * 3, False)):
        batch = batch_of(prompts, [(0, 1)] * len(prompts))
        assert [row is None for _, row in rows.batches(batch, np.arange(len(batch)))] == [padded]


def test_where_flex_attention_does_not_run_attention_is_in_chunks(monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("no Triton here\nand more")

    monkeypatch.setattr(engine, "block_mask", broken)
    rows, plain = encoder(DECODERS["qwen3"])
    rows.flex = True
    try_kernels(rows)
    assert not rows.flex and "FlexAttention does not run here and is not used: no Triton here" in caplog.text
    equal(rows, plain, *shared())


@pytest.mark.parametrize("causal", [True, False])
def test_rows_through_flex_attention(monkeypatch, causal):
    """As on a GPU, but for compiling."""
    monkeypatch.setattr(attention, "compiled_flex", lambda: flex_attention)
    rows, plain = encoder(DECODERS["mistral"] if causal else BOTH_WAYS, causal=causal, batch_tokens=256)
    rows.flex = True
    try_kernels(rows)
    assert rows.flex
    equal(rows, plain, *shared(sentences=20), bidirectional=not causal)


def limited(rows, most):
    """Let the model run out of memory above so many tokens; gives the sizes that it was asked for."""
    asked, forward = [], rows.model.forward

    def run(input_ids, **options):
        asked.append(input_ids.numel())
        if input_ids.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(input_ids=input_ids, **options)

    rows.model.forward = run
    return asked


@pytest.mark.parametrize("causal", [True, False])
def test_out_of_memory_halves_the_budget_and_encoding_continues(causal, caplog):
    made = DECODERS["qwen3"] if causal else BERT
    rows, plain = encoder(made, causal=causal, batch_tokens=1000)
    sequences, spans = shared(sentences=40)
    asked = limited(rows, 300)
    assert equal(rows, plain, sequences, spans).tokens == sum(map(len, sequences))
    assert rows.batch_tokens == 250 and caplog.text.count("out of memory: continuing with") == 2
    before = len(asked)
    rows.encode(batch_of(sequences, spans))
    assert max(asked[before:]) <= 300, "the smaller budget stays"


@pytest.mark.parametrize("second", [3, 4])
def test_a_prompt_that_does_not_fit_alone_is_an_error(second):
    """Equal ones share a row however small the budget is."""
    rows, _ = encoder(DECODERS["qwen3"], batch_tokens=1000)
    limited(rows, 10)
    with pytest.raises(torch.OutOfMemoryError):
        rows.encode(batch_of([[3] * 20, [second] * 20], [(0, 1)] * 2))
    assert rows.batch_tokens < 40, "expected fewer tokens to be tried until each prompt was alone"


@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3", "bert"])
def test_compiled_layers_give_the_same_vectors(name, caplog):
    causal = name in DECODERS
    rows, plain = encoder(DECODERS[name] if causal else BERT, causal=causal)
    compile_layers(rows)
    assert "not compiled" not in caplog.text
    for seed in range(2):
        equal(rows, plain, *shared(seed=seed))
