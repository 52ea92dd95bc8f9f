"""The path of a GPU without one, by torch's meta device, whose tensors have no numbers, so that what waits for one
raises: few copies, everything on its device."""

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoConfig, AutoModel

from raycase.encoder import attention, engine
from raycase.encoder.attention import NAME, register
from raycase.encoder.engine import TextEncoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens

GPU = torch.device("meta")
MODELS = {
    "qwen3": {"head_dim": 8, **tiny.NO_TOKENS, **tiny.DECODER},
    "mistral": {"sliding_window": 20, **tiny.DECODER},
    "bert": {"max_position_embeddings": 512, **tiny.SIZES},
}


@pytest.fixture
def events(monkeypatch):
    """What is sent, run and collected, in order."""
    found = []

    def send(device, *arrays):
        assert device == GPU
        found.append("send")
        return [torch.empty(np.shape(array), dtype=torch.int32, device=GPU) for array in arrays]

    def add(collector, rows, vectors_BD):
        assert vectors_BD.device == GPU and vectors_BD.shape == (len(rows), collector.like.shape[1])
        found.append("collect")

    def flex(query, key, value, *, block_mask, **_):  # which knows no such device
        assert {t.device for t in (query, key, value, block_mask.kv_indices)} == {GPU}
        assert block_mask.seq_lengths == (query.shape[2], key.shape[2])
        return torch.empty_like(query)

    monkeypatch.setattr(engine, "send", send)
    monkeypatch.setattr(engine.Collector, "__init__", lambda self, _, like: setattr(self, "like", like))
    monkeypatch.setattr(engine.Collector, "add", add)
    monkeypatch.setattr(engine.Collector, "result", lambda _: None)
    monkeypatch.setattr(attention, "compiled_flex", lambda: flex)
    return found


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
@pytest.mark.parametrize(("name", "rows"), [("qwen3", True), ("mistral", True), ("mistral", False), ("bert", False)])
def test_everything_is_sent_in_one_copy_before_the_encoder_begins(events, name, rows, pooling):
    """Of a tiny encoder by rows or in padded batches."""
    register()
    config = AutoConfig.for_model(name, vocab_size=50, **MODELS[name])
    with GPU:
        model = AutoModel.from_config(config, attn_implementation=NAME if rows else "sdpa").eval()
    model.pooler = None
    model.register_forward_pre_hook(lambda *_: events.append("forward"))
    spec = EncoderSpec(source="", prompt="cond", pooling=(pooling,), causal=name != "bert", max_tokens=512)
    encoder = TextEncoder(spec=spec, model=model, tokenize=None, batch_tokens=512)
    encoder.flex = rows
    random = np.random.default_rng(0)
    ids = [random.integers(3, 50, random.integers(30, 60)).tolist() for _ in range(60)]
    batch = TokenBatch.of(*[[Tokens(ids=i, start=2, end=9 + view) for i in ids] for view in range(2)])
    base_CD = torch.empty(60, 64, device=GPU)
    encoder.encode(batch, lambda index_B, pooled_BD: (pooled_BD - base_CD[index_B]).half())
    assert len(events) >= 6
    assert events == ["send", "forward", "collect"] * (len(events) // 3)
