"""The path of a GPU without one, by torch's meta device, whose tensors have no numbers, so that what waits for one
raises: few copies, everything on its device."""

import numpy as np
import pytest
import tiny
import torch
from transformers import BertConfig, BertModel, MistralConfig, MistralModel, Qwen3Config, Qwen3Model

from raycase.encoder import attention, engine
from raycase.encoder.attention import NAME, register
from raycase.encoder.engine import TextEncoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens

GPU = torch.device("meta")
MODELS = {
    "qwen3": (Qwen3Model, Qwen3Config(vocab_size=50, head_dim=8, **tiny.NO_TOKENS, **tiny.DECODER)),
    "mistral": (MistralModel, MistralConfig(vocab_size=50, sliding_window=20, **tiny.DECODER)),
    "bert": (BertModel, BertConfig(vocab_size=50, max_position_embeddings=512, **tiny.SIZES)),
}


class FakeGpu:
    """`events` says what was sent, run and collected, in order."""

    def __init__(self, monkeypatch):
        self.events = []
        monkeypatch.setattr(engine, "send", self._send)
        monkeypatch.setattr(engine, "Collector", self._collector)
        monkeypatch.setattr(attention, "compiled_flex", lambda: _flex_attention)

    def watched(self, module):
        """The module; notes when it is run."""
        module.register_forward_pre_hook(lambda *_: self.events.append("forward"))
        return module

    def _send(self, device, *arrays):
        assert device == GPU
        self.events.append("send")
        return [torch.empty(np.shape(array), dtype=torch.int32, device=GPU) for array in arrays]

    def _collector(self, count, like):
        events = self.events

        class Collector:
            def add(self, rows, vectors_BD, kept=None):
                assert vectors_BD.device == GPU
                assert vectors_BD.shape == (len(rows), like.shape[1])
                events.append("collect")

            def result(self):
                return None

        return Collector()


def _flex_attention(query, key, value, *, block_mask, **_):
    """FlexAttention knows no such device."""
    assert {t.device for t in (query, key, value, block_mask.kv_indices)} == {GPU}
    assert block_mask.seq_lengths == (query.shape[2], key.shape[2])
    return torch.empty_like(query)


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch)


def on(gpu, name, rows, pooling):
    """A tiny encoder on the GPU, by rows or padded."""
    kind, config = MODELS[name]
    register()
    with GPU:
        model = kind._from_config(config, attn_implementation=NAME if rows else "sdpa").eval()
    if name == "bert":
        model.pooler = None
    spec = EncoderSpec(source="", prompt="cond", pooling=(pooling,), causal=name != "bert", max_tokens=512)
    encoder = TextEncoder(spec=spec, model=gpu.watched(model), tokenize=None, batch_tokens=512)
    encoder.flex = rows
    return encoder


def prompts(views):
    random = np.random.default_rng(0)
    ids = [random.integers(3, 50, random.integers(30, 60)).tolist() for _ in range(60)]
    return TokenBatch.of(*[[Tokens(ids=i, start=2, end=9 + view) for i in ids] for view in range(views)])


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
@pytest.mark.parametrize(("name", "rows"), [("qwen3", True), ("mistral", True), ("mistral", False), ("bert", False)])
def test_everything_is_sent_in_one_copy_before_the_encoder_begins(gpu, name, rows, pooling):
    encoder = on(gpu, name, rows, pooling)
    base_CD = torch.empty(60, 64, device=GPU)
    encoder.encode(prompts(views=2), lambda index_B, pooled_BD: (pooled_BD - base_CD[index_B]).half())
    assert len(gpu.events) >= 6
    assert len(gpu.events) % 3 == 0
    assert gpu.events == ["send", "forward", "collect"] * (len(gpu.events) // 3)
