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
    """States of the text tokens of B prompts, padded on the right.

    index (B,): the prompts; states (B, S, W) fp32, the layers side by side; real (B, S) bool, which are tokens of the
    text; unconditional (B, P) fp32: f of the prompt, by the encoder's own pooling.
    """

    index: Tensor
    states: Tensor
    real: Tensor
    unconditional: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean state of each text: (B, W)."""
        return pool_mean(self.states, self.real)


def layer_numbers(spec: EncoderSpec, depths: Sequence[float]) -> list[int]:
    """Layers at these fractions of the encoder's depth: 0 is the input of the first layer, 1 the encoder's output.

    Raises RequestError for a fraction outside [0, 1] and for two that name the same layer.
    """
    count = int(load_config(spec.source).num_hidden_layers)
    layers = [round(depth * count) for depth in depths if 0 <= depth <= 1]
    if not layers or len(set(layers)) < len(depths):
        listed = " ".join(f"{depth:g}" for depth in depths) or "none"
        raise RequestError(
            f"--layers: expected distinct layers of {count}, as fractions of the depth from 0 to 1, got {listed}"
        )
    return layers


class StateReader:
    """Reads the states after chosen layers of an encoder, in padded batches. Make one before the layers are compiled:
    the library adds hooks to them. Raises RequestError for an encoder that does not give the states of its layers.

    A prompt has two views: what the encoder pools, and the text whose tokens are read.
    """

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
        """Encode each prompt once and call `use` with the prompts and their states, batch after batch.

        After a failure for lack of memory, `use` is called again with prompts of the failed batch.
        """

        def compute(rows: np.ndarray, _: Row | None) -> Work:
            states, work = self._padded(batch, rows)
            use(rows, states)
            return work

        return self.encoder.in_batches(batch, compute)

    def _padded(self, batch: TokenBatch, rows: np.ndarray) -> tuple[TokenStates, Work]:
        """The states of one padded batch."""
        encoder, texts = self.encoder, (batch.start[rows, -1:], batch.end[rows, -1:])
        hidden_BTD, sent, work = encoder.padded_pass(batch, rows, *texts, every=True)
        index_B, first_VB, stop_VB, start_B1, end_B1 = sent
        unconditional_BD = encoder.pool_states(hidden_BTD, first_VB[:1], stop_VB[:1]).float()  # the first view
        place_BS = start_B1 + torch.arange(int((texts[1] - texts[0]).max()), device=hidden_BTD.device)
        real_BS = place_BS < end_B1
        at_BS1 = (place_BS * real_BS).long().unsqueeze(-1)
        of_B = batch.encoded_once(rows)[1]
        taken = {n: s if of_B is None else s[of_B] for n, s in encoder.taken.items()} | {self._last: hidden_BTD}
        layers = [taken[n].gather(1, at_BS1.expand(-1, -1, taken[n].shape[-1])).float() for n in self.layers]
        encoder.taken = {}
        return TokenStates(
            index=index_B, states=torch.cat(layers, dim=-1), real=real_BS, unconditional=unconditional_BD
        ), work
