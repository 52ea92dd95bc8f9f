"""A GPU that is not there: torch's meta device, whose tensors have no numbers, so that what waits for one raises."""

import numpy as np
import torch

from raycase.encoder import attention, engine

GPU = torch.device("meta")


class FakeGpu:
    """`events` says what was sent, run and collected, in order."""

    def __init__(self, monkeypatch):
        self.events = []
        for module in (engine, attention):
            monkeypatch.setattr(module, "send", self._send)
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
