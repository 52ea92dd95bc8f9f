"""BERT, RoBERTa, XLM-RoBERTa and MPNet on a processor: their graph by OpenVINO, made of the weights in memory.

In int8, linear maps multiply whole numbers of 8 bits: each row of a weight has its step, and an input one, by what its
components are in some texts. Before, components are brought to like sizes (SmoothQuant, Xiao et al., 2023, eq. 4). The
second map of a feed-forward layer stays in bfloat16 (results/cpu.md).

Shapes: B sequences, T tokens, D hidden size or components of an input, E outputs, H heads, K head size.
"""

from __future__ import annotations

import io
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# else the first import sends Google Analytics an event, from a fork of this process, and writes into the home directory
_hides = "openvino_telemetry" not in sys.modules
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: there is no such module
import openvino as ov  # noqa: E402
from openvino import opset15 as op  # noqa: E402

if _hides:  # those who want it import it themselves
    del sys.modules["openvino_telemetry"]

FARTHEST = 128  # tokens, from which on MPNet's bias of relative positions is the same
BUCKETS, MPNET_PAD = 32, 1  # of its distances, and its padding: the library reads neither from a configuration
MASKED = -1e4  # what is added to the logit of a token that is padding
SMOOTH = 0.65  # SmoothQuant's alpha
LEAST = 1e-5  # of a component, and of a weight
# activations of the feed-forward layer, by the library's names
ACTIVATIONS: dict[str, Any] = {
    "gelu": lambda x: op.gelu(x, "erf"),
    "gelu_new": lambda x: op.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: op.gelu(x, "tanh"),
    "relu": op.relu,
    "silu": op.swish,
}
Arrays = Mapping[str, np.ndarray]  # fp32, by the library's names
# least and most of each component of an input, (D,) each, by the name of a linear map that reads it
InputRanges = Mapping[str, tuple[np.ndarray, np.ndarray]]


class OnCpu(nn.Module):
    """The encoder, called as the library's model is; without gradients."""

    device, dtype = torch.device("cpu"), torch.float32  # of what it gives

    def __init__(self, config: Any, weights: Arrays, *, bf16: bool, texts: Sequence[list[int]] = ()) -> None:
        """bf16: else in float32; texts: where their tokens are given, in int8 by what they need."""
        super().__init__()
        self.config, self.bf16 = config, bf16
        ranges = Graph(config, weights).ranges(texts, bf16=bf16) if texts else None
        self.compiled = compiled(Graph(config, weights, ranges).model, bf16=bf16)
        self.of_thread = threading.local()  # one request cannot run twice at a time

    def __getstate__(self) -> dict[str, Any]:
        own = {"compiled": self.compiled.export_model().getvalue(), "of_thread": None}
        return self.__dict__ | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        options = _options(bf16=self.bf16)
        self.compiled = _core().import_model(io.BytesIO(state["compiled"]), "CPU", options)
        self.of_thread = threading.local()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """attention_mask: (B, T). All states are given, asked for or not; they hold until the thread's next call."""
        if not hasattr(self.of_thread, "request"):
            self.of_thread.request = self.compiled.create_infer_request()
        ids_BT = input_ids.int().numpy()
        mask_BT = np.ones_like(ids_BT) if attention_mask is None else attention_mask.int().numpy()
        types_BT = np.zeros_like(ids_BT) if token_type_ids is None else token_type_ids.int().numpy()
        found = self.of_thread.request.infer([ids_BT, mask_BT, types_BT], share_inputs=True, share_outputs=True)
        states = [torch.from_numpy(np.asarray(each)) for each in found.to_tuple()]
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


def compiled(model: ov.Model, *, bf16: bool) -> ov.CompiledModel:
    """The model for this processor."""
    return _core().compile_model(model, "CPU", _options(bf16=bf16))


def _options(*, bf16: bool) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # all processes would take the same cores
        "PERFORMANCE_HINT": "LATENCY",
        "CPU_RUNTIME_CACHE_CAPACITY": 64,  # shapes of batches whose kernels are kept: with 5000, memory grows by GiB
    }


@cache
def _core() -> ov.Core:
    """One for the process: of two, the one that goes last leaves signals a stack that is gone."""
    return ov.Core()


def number(value: Any) -> Any:
    """A constant of whole numbers."""
    return op.constant(np.asarray(value, np.int64))


class Graph:
    """(B, T) int32 each of ids, mask and types -> the states behind the embeddings and behind each layer: (B, T, D).

    model: the graph; read: the inputs of linear maps, by the name of the first map that reads each.
    """

    def __init__(self, config: Any, weights: Arrays, ranges: InputRanges | None = None) -> None:
        self.config, self.weights, self._ranges = config, weights, ranges
        self.read: dict[str, Any] = {}
        self.given = [op.parameter([-1, -1], np.int32, name=name) for name in ("ids", "mask", "types")]
        self.mpnet = config.model_type == "mpnet"
        self.position_T = self._positions()
        hidden_BTD, added = self._embeddings(), self._added()
        states = [hidden_BTD]
        for n in range(config.num_hidden_layers):
            states.append(self._layer(f"encoder.layer.{n}", states[-1], added))
        self.model = ov.Model([op.result(each) for each in states], self.given, "encoder")

    def ranges(self, texts: Sequence[list[int]], *, bf16: bool) -> InputRanges:
        """The least and the most of each component of what the linear maps read of the tokens of these texts."""
        inner = compiled(ov.Model([op.result(each) for each in self.read.values()], self.given, "ranges"), bf16=bf16)
        ids_BT = np.zeros((len(texts), max(map(len, texts))), np.int32)
        real_BT = np.zeros_like(ids_BT)
        for row, ids in enumerate(texts):
            ids_BT[row, : len(ids)], real_BT[row, : len(ids)] = ids, 1
        found = [values[real_BT > 0] for values in inner([ids_BT, real_BT, np.zeros_like(ids_BT)]).values()]
        return {name: (each.min(0), each.max(0)) for name, each in zip(self.read, found, strict=True)}

    def _of(self, name: str) -> Any:
        return op.constant(self.weights[name], shared_memory=True)

    def _row(self, table: str, index_BT: Any) -> Any:
        return op.gather(self._of(f"embeddings.{table}_embeddings.weight"), index_BT, number(0))

    def _norm(self, states: Any, name: str) -> Any:
        level = op.mvn(states, number([-1]), True, self.config.layer_norm_eps, "inside_sqrt")
        return op.add(op.multiply(level, self._of(f"{name}.LayerNorm.weight")), self._of(f"{name}.LayerNorm.bias"))

    def _linear(self, states: Any, *names: str, whole: bool = True) -> list[Any]:
        """Linear maps of one input: (B, T, D) -> (B, T, E) each. whole: by whole numbers, where there are ranges."""
        if whole:
            self.read[names[0]] = states
        weights = [self.weights[f"{name}.weight"] for name in names]
        matrices = [op.constant(weight, shared_memory=True) for weight in weights]
        if whole and self._ranges is not None:
            low_D, high_D = self._ranges[names[0]]
            most_D = np.maximum(-low_D, high_D).clip(LEAST)
            heaviest_D = np.max([np.abs(weight).max(0) for weight in weights], axis=0).clip(LEAST)
            factor_D = most_D**SMOOTH / heaviest_D ** (1 - SMOOTH)
            low, high = (
                op.constant(np.float32(edge)) for edge in ((low_D / factor_D).min(), (high_D / factor_D).max())
            )
            states = op.multiply(states, op.constant((1 / factor_D).astype(np.float32)))
            states = op.fake_quantize(states, low, high, low, high, 256)
            matrices = [whole_numbers(weight * factor_D) for weight in weights]
        return [
            op.add(op.matmul(states, matrix, False, True), self._of(f"{name}.bias"))
            for name, matrix in zip(names, matrices, strict=True)
        ]

    def _positions(self) -> Any:
        """Those of tokens, from 0: (T,)."""
        end = op.gather(op.shape_of(self.given[0]), number(1), number(0))
        return op.range(number(0), end, number(1), "i64")

    def _places(self) -> Any:
        """What the table of positions is asked for; all but BERT count from behind the number of the padding."""
        if self.config.model_type == "bert":
            return self.position_T
        pad = op.constant(MPNET_PAD if self.mpnet else self.config.pad_token_id, np.int32)
        one = op.constant(1, np.int32)
        real_BT = op.convert(op.not_equal(self.given[0], pad), "i32")
        return op.add(op.multiply(op.cumsum(real_BT, one), real_BT), pad)

    def _embeddings(self) -> Any:
        hidden_BTD = op.add(self._row("word", self.given[0]), self._row("position", self._places()))
        if not self.mpnet:
            hidden_BTD = op.add(hidden_BTD, self._row("token_type", self.given[2]))
        return self._norm(hidden_BTD, "embeddings")

    def _added(self) -> Any:
        """What is added to the logits of all layers: (B, 1, 1, T), with MPNet's bias of positions (B, H, T, T)."""
        padding_BT = op.subtract(op.constant(np.float32(1)), op.convert(self.given[1], "f32"))
        added = op.unsqueeze(op.multiply(padding_BT, op.constant(np.float32(MASKED))), number([1, 2]))
        if not self.mpnet:
            return added
        bias_SH, position_T = _position_bias(self.config, self.weights), self.position_T
        far_TT = op.add(op.subtract(op.unsqueeze(position_T, number(1)), position_T), number(len(bias_SH) // 2))
        bias_HTT = op.transpose(op.gather(op.constant(bias_SH), far_TT, number(0)), number([2, 0, 1]))
        return op.add(op.unsqueeze(bias_HTT, number(0)), added)

    def _layer(self, name: str, hidden_BTD: Any, added: Any) -> Any:
        size, heads = self.config.hidden_size, self.config.num_attention_heads
        inner = f"{name}.attention.attn." if self.mpnet else f"{name}.attention.self."
        parts = ("q", "k", "v") if self.mpnet else ("query", "key", "value")
        split, turn = number([0, 0, heads, size // heads]), number([0, 2, 1, 3])
        qkv_BTD = self._linear(hidden_BTD, *(inner + part for part in parts))
        qkv_BHTK = [op.transpose(op.reshape(each, split, True), turn) for each in qkv_BTD]
        heads_BTHK = op.transpose(op.scaled_dot_product_attention(*qkv_BHTK, added), turn)
        joined_BTD = op.reshape(heads_BTHK, number([0, 0, size]), True)
        [attended_BTD] = self._linear(joined_BTD, f"{inner}o" if self.mpnet else f"{name}.attention.output.dense")
        hidden_BTD = self._norm(
            op.add(attended_BTD, hidden_BTD), f"{name}.attention" if self.mpnet else f"{name}.attention.output"
        )
        wide_BTE = ACTIVATIONS[self.config.hidden_act](self._linear(hidden_BTD, f"{name}.intermediate.dense")[0])
        [narrow_BTD] = self._linear(wide_BTE, f"{name}.output.dense", whole=False)  # a few huge components
        return self._norm(op.add(narrow_BTD, hidden_BTD), f"{name}.output")


def whole_numbers(weight_ED: np.ndarray) -> Any:
    """A weight as whole numbers of 8 bits and a step for each row."""
    step_E1 = np.abs(weight_ED).max(1, keepdims=True).clip(LEAST) / 127
    numbers_ED = op.constant(np.round(weight_ED / step_E1).astype(np.int8))
    return op.multiply(op.convert(numbers_ED, "f32"), op.constant(step_E1.astype(np.float32)))


def _position_bias(config: Any, weights: Arrays) -> np.ndarray:
    """MPNet's, by the distance of two tokens and its direction; longer distances share buckets: (2 * most + 1, H)."""
    away_S = np.arange(-config.max_position_embeddings, config.max_position_embeddings + 1)
    one_side = BUCKETS // 2
    exact = one_side // 2
    far_S = np.log(np.maximum(np.abs(away_S), 1) / exact) / math.log(FARTHEST / exact) * (one_side - exact)
    far_S = np.minimum(exact + far_S.astype(np.int64), one_side - 1)
    bucket_S = np.where(np.abs(away_S) < exact, np.abs(away_S), far_S) + (away_S < 0) * one_side
    bias_SH: np.ndarray = weights["encoder.relative_attention_bias.weight"][bucket_S]
    return bias_SH
