"""Tokens a second of all-mpnet-base-v2 by its library's attention, which raycase uses, and by PyTorch's with MPNet's
relative positions as the mask, on captions and on abstracts.

    HF_HUB_OFFLINE=1 .venv/bin/python benchmarks/mpnet_attention.py

Both are loaded in bf16 and take turns; medians over the rounds. The least cosine is of their vectors.
"""

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetModel, MPNetSelfAttention
from turns import abstracts, captions, finish, median

from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import find_encoder
from raycase.encoder.token_batch import Tokens

MODEL = "sentence-transformers/all-mpnet-base-v2"


class Attention(MPNetSelfAttention):
    """Of one layer: what is added to the scores, (B or 1, H, T, T), has the mask in it."""

    def forward(self, hidden_states: Tensor, _: Any, position_bias: Tensor, **options: Any) -> tuple[Tensor]:
        """(B, T, D) -> (B, T, D)."""
        heads = [p(hidden_states).unflatten(-1, (self.num_attention_heads, -1)) for p in (self.q, self.k, self.v)]
        q_BHTK, k_BHTK, v_BHTK = (part_BTHK.transpose(1, 2) for part_BTHK in heads)
        dropout = self.dropout.p if self.training else 0.0
        seen_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=position_bias, dropout_p=dropout)
        return (self.o(seen_BHTK.transpose(1, 2).flatten(2)),)


class Encoder(MPNetEncoder):
    """All layers, for which positions and mask are added up once."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        **options: Any,
    ) -> BaseModelOutput:
        """(B, T, D) and what is added to the scores of padding, (B, 1, T, T) -> (B, T, D), and each layer's states."""
        bias = self.compute_position_bias(hidden_states[:1])
        if attention_mask is not None:
            bias = bias + attention_mask
        states = [hidden_states]
        for layer in self.layer:
            states.append(layer(states[-1], None, bias)[0])
        return BaseModelOutput(
            last_hidden_state=states[-1], hidden_states=tuple(states) if output_hidden_states else None
        )


def use_sdpa(model: MPNetModel) -> None:
    """Change a loaded model; its weights and their names stay."""
    model.encoder.__class__ = Encoder
    for layer in model.encoder.layer:
        layer.attention.attn.__class__ = Attention


def main(rounds):
    spec = find_encoder(MODEL, prompt="concat-sc", pooling=Pooling.MEAN)
    sdpa, library = (load_encoder(spec, device="cpu", dtype=torch.bfloat16) for _ in range(2))
    use_sdpa(sdpa.model)
    result = {"model": MODEL, "dtype": "bfloat16", "rounds": rounds, "ratios": {}}
    for name, texts in {"captions": captions(2000), "abstracts": abstracts(100)}.items():
        ids = [each.ids[: spec.max_tokens] for each in sdpa.tokenize.tokenizer.encode_batch(texts)]
        tokens = [Tokens(ids=each, start=0, end=len(each)) for each in ids]
        count = sum(map(len, ids))
        vectors, seconds = {}, {"sdpa": [], "library": []}
        for _ in range(rounds + 1):  # the first warms up
            for of, encoder in (("sdpa", sdpa), ("library", library)):
                began = time.perf_counter()
                vectors[of] = encoder.pool(tokens)
                seconds[of].append(time.perf_counter() - began)
        rates = {of: count / median(times[1:]) for of, times in seconds.items()}
        lengths = [np.linalg.norm(v, axis=1) for v in vectors.values()]
        cosines = (vectors["sdpa"] * vectors["library"]).sum(1) / (lengths[0] * lengths[1])
        result[name] = {
            "tokens": count,
            "tokens_per_text": count / len(texts),
            **{f"{of}_tokens_per_second": round(rate) for of, rate in rates.items()},
            "least_cosine": float(cosines.min()),
        }
        result["ratios"][name] = rates["sdpa"] / rates["library"]
        print(name, result[name], file=sys.stderr)
    finish(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.rounds)
