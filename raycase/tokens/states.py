"""Hidden states of a text's own tokens, after chosen layers of an encoder, from the pass that pools them.

Shapes: B prompts of a batch, T tokens, S tokens of the longest text, L layers, D hidden size, W = L * D.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.engine import TextEncoder
from raycase.encoder.packing import Row
from raycase.encoder.pooling import pool_mean
from raycase.encoder.sources import load_config
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class TokenStates:
    """States of the text tokens of B prompts, padded on the right."""

    index: Tensor  # (B,) the prompts
    states: Tensor  # (B, S, W) fp32, the layers side by side
    real: Tensor  # (B, S) bool, which are tokens of the text
    unconditional: Tensor  # (B, P) fp32: f of the prompt, by the encoder's own pooling

    @property
    def mean(self) -> Tensor:
        """The mean state of each text: (B, W)."""
        return pool_mean(self.states, self.real)


def layer_numbers(spec: EncoderSpec, depths: Sequence[float]) -> list[int]:
    """Layers at these fractions of the encoder's depth: 0 is the input of the first layer, 1 the encoder's output."""
    count = int(load_config(spec.source).num_hidden_layers)
    layers = [round(depth * count) for depth in depths if 0 <= depth <= 1]
    if not layers or len(set(layers)) < len(depths):
        listed = " ".join(f"{depth:g}" for depth in depths) or "none"
        raise RequestError(
            f"--layers: expected distinct layers of {count}, as fractions of the depth from 0 to 1, got {listed}"
        )
    return layers


class StateReader:
    """Reads the states after chosen layers of an encoder, in padded batches, of prompts with two views: what the
    encoder pools, and the text whose tokens are read. To be made before the library's layers, which get hooks, are
    compiled."""

    def __init__(self, encoder: TextEncoder, layers: Sequence[int]) -> None:
        encoder.in_rows = encoder.flex = False  # texts share no prefix
        self.encoder = encoder
        self.layers = layers
        model, self._last = encoder.model, int(encoder.model.config.num_hidden_layers)
        encoder.kept = [number for number in layers if number < self._last]
        ids_BT = torch.ones(1, 4, dtype=torch.int64, device=model.device)
        states = model(input_ids=ids_BT, output_hidden_states=True).hidden_states or ()
        if len(states) + (encoder.last_layer is not None) != self._last + 1:
            raise RequestError(
                f"--model: expected the states of {self._last} layers, got {len(states)} from a "
                f"{model.config.model_type}; it embeds by --prompt and --pooling alone"
            )

    @torch.inference_mode()
    def read(self, batch: TokenBatch, use: Callable[[np.ndarray, TokenStates], None]) -> Work:
        """Encode each prompt once and call `use` with the prompts and their states, batch after batch, after a failure
        for lack of memory again with those of the failed batch."""
        encoder = self.encoder

        def compute(rows: np.ndarray, _: Row | None) -> Work:
            texts = batch.start[rows, -1:], batch.end[rows, -1:]
            hidden_BTD, sent, work = encoder.padded_pass(batch, rows, *texts, every=True)
            index_B, first_VB, stop_VB, start_B1, end_B1 = sent
            unconditional_BD = encoder.pool_states(hidden_BTD, first_VB[:1], stop_VB[:1]).float()  # the first view
            place_BS = start_B1 + torch.arange(int((texts[1] - texts[0]).max()), device=hidden_BTD.device)
            real_BS = place_BS < end_B1
            of_B = batch.encoded_once(rows)[1]
            taken = {n: s if of_B is None else s[of_B] for n, s in encoder.taken.items()} | {self._last: hidden_BTD}
            if (texts[0] == (first := int(texts[0].min()))).all():  # a part of the states, which need not be gathered
                layers = [taken[n][:, first : first + place_BS.shape[1]].float() for n in self.layers]
            else:
                at_BS1 = (place_BS * real_BS).long().unsqueeze(-1)
                layers = [taken[n].gather(1, at_BS1.expand(-1, -1, taken[n].shape[-1])).float() for n in self.layers]
            encoder.taken, states_BSW = {}, torch.cat(layers, dim=-1)
            use(rows, TokenStates(index=index_B, states=states_BSW, real=real_BS, unconditional=unconditional_BD))
            return work

        return encoder.in_batches(batch, compute)
