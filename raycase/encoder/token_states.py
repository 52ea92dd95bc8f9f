"""Hidden states of a text's own tokens, after chosen layers of an encoder, from the pass that pools them.

Shapes: B prompts of a batch, T tokens, S tokens of the longest text, L layers, D hidden size, W = L * D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder, padded_output
from raycase.encoder.packing import Row, token_budget_batches
from raycase.encoder.pooling import pool_mean
from raycase.encoder.sources import load_config
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class TokenStates:
    """States of the text tokens of B prompts, padded on the right.

    index (B,): the prompts; states (B, S, W) fp32, the layers side by side; real (B, S) bool, which are tokens of the
    text; plain (B, P) fp32: f of the prompt, by the encoder's own pooling.
    """

    index: Tensor
    states: Tensor
    real: Tensor
    plain: Tensor

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
            f"--layers: expected fractions of the depth from 0 to 1, each another of {count} layers, got {listed}"
        )
    return layers


class StateReader:
    """Reads the states after chosen layers. It adds hooks to the encoder, so make one before the layers are compiled.

    A prompt has two views: what the encoder pools, and the text whose tokens are read.
    """

    def __init__(self, encoder: TextEncoder, layers: Sequence[int]) -> None:
        self.encoder = encoder
        self.layers = layers
        self._taken: dict[int, Tensor] = {}
        self.modules = modules = [*encoder.layers, *filter(None, [encoder.last_layer])]
        self._last = int(encoder.model.config.num_hidden_layers)
        if not encoder.known:
            self._ask_model()
            return
        for number in layers:
            if number == 0:
                modules[0].register_forward_pre_hook(self._before_first, with_kwargs=True)
            elif number < self._last:
                modules[number - 1].register_forward_hook(self._after(number))

    def _after(self, number: int) -> Callable[..., None]:
        def take(module: nn.Module, args: Any, output: Any) -> None:
            self._taken[number] = output[0] if isinstance(output, tuple) else output

        return take

    def _before_first(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._taken[0] = args[0] if args else kwargs["hidden_states"]

    def _ask_model(self) -> None:
        """Read what the library's model says of its layers. Raises RequestError where it says something else."""
        model = self.encoder.model

        def asked(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return args, kwargs | {"output_hidden_states": True}

        def take(module: nn.Module, args: Any, output: Any) -> None:
            self._taken = {n: output.hidden_states[n] for n in self.layers if n < self._last}

        states = padded_output(model, output_hidden_states=True).hidden_states
        outside = self.encoder.last_layer is not None
        if states is None or len(states) + outside != self._last + 1:
            raise RequestError(
                f"--model: expected the states of {self._last} layers, got {len(states or ())} from a "
                f"{model.config.model_type}; it embeds by --prompt and --pooling alone"
            )
        model.register_forward_pre_hook(asked, with_kwargs=True)
        model.register_forward_hook(take)

    @torch.inference_mode()
    def read(self, batch: TokenBatch, use: Callable[[np.ndarray, TokenStates], None]) -> Work:
        """Encode each prompt once and call `use` with the prompts and their states, batch after batch.

        After a failure for lack of memory, `use` is called again with prompts of the failed batch.
        """

        def compute(rows: np.ndarray, row: Row | None) -> Work:
            self._taken.clear()  # of a batch that failed, or was pooled alone
            if row is None:
                states, work = self.padded(batch, rows)
                use(rows, states)
                return work
            return self._in_row(batch, rows, row, use)

        return self.encoder.in_batches(batch, compute)

    def padded(self, batch: TokenBatch, rows: np.ndarray) -> tuple[TokenStates, Work]:
        """The states of one padded batch, with a gradient where the weights have one."""
        found = self.encoder.padded_pass(batch, rows, *_text_tokens(batch, rows), every=True)
        place_BS, count_B1 = found.beside
        views = slice(1)  # the first
        plain_BD = self.encoder.pool_states(found.hidden, found.position, found.first[views], found.stop[views])
        at_BS1 = place_BS.long().unsqueeze(-1)
        states_BSW = torch.cat(
            [s.gather(1, at_BS1.expand(-1, -1, s.shape[-1])).float() for s in self._chosen(found.hidden)], dim=-1
        )
        real_BS = _real(place_BS, count_B1)
        return TokenStates(index=found.index, states=states_BSW, real=real_BS, plain=plain_BD.float()), found.work

    def _in_row(
        self,
        batch: TokenBatch,
        rows: np.ndarray,
        row: Row,
        use: Callable[[np.ndarray, TokenStates], None],
    ) -> Work:
        """Read the prompts of a row, those of similar length together, so that little is padded."""
        encoder = self.encoder
        views = slice(1)  # the first
        firsts, stops = (bounds_VB[views] for bounds_VB in encoder.spans(batch, rows))
        parts = list(token_budget_batches(row.paths.counts, encoder.batch_tokens))
        places = [
            array
            for part in parts
            for array in (
                rows[part],
                row.paths.padded(part)[0],
                firsts[:, part],
                stops[:, part],
                *_text_tokens(batch, rows[part]),
            )
        ]
        inputs, work = encoder.row_inputs(row, *places)
        hidden_TD = encoder.row_states(inputs)
        layers = [s.reshape(-1, s.shape[-1]) for s in self._chosen(hidden_TD)]
        for number, part in enumerate(parts):
            index_B, paths, first_KB, stop_KB, place_BS, count_B1 = inputs.beside[6 * number : 6 * number + 6]
            paths, place_BS = paths.long(), place_BS.long()
            position_BT = torch.arange(paths.shape[1], device=hidden_TD.device).expand(len(part), -1)
            plain_BD = encoder.pool_states(hidden_TD[paths], position_BT, first_KB, stop_KB).float()
            token_BS = paths.gather(1, place_BS)
            states_BSW = torch.cat([layer_TD[token_BS].float() for layer_TD in layers], dim=-1)
            real_BS = _real(place_BS, count_B1)
            use(rows[part], TokenStates(index=index_B, states=states_BSW, real=real_BS, plain=plain_BD))
        return work

    def _chosen(self, hidden: Tensor) -> list[Tensor]:
        """The states after each chosen layer; `hidden`: those that the encoder pools."""
        taken, self._taken = self._taken, {}
        return [hidden if number == self._last else taken[number] for number in self.layers]


def _text_tokens(batch: TokenBatch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place in its prompt of each token of the last view, (B, S), zero behind them, and how many they are, (B, 1)."""
    start_B1, count_B1 = batch.start[rows, -1:], batch.end[rows, -1:] - batch.start[rows, -1:]
    token_S = np.arange(int(count_B1.max()))
    return np.where(token_S < count_B1, start_B1 + token_S, 0), count_B1


def _real(place_BS: Tensor, count_B1: Tensor) -> Tensor:
    """Which of the places are tokens of the text: (B, S) bool."""
    return torch.arange(place_BS.shape[1], device=place_BS.device) < count_B1
