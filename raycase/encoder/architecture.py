"""What an encoder needs is asked of the library's model, not of lists of names: its attention, its direction, its half
that encodes, and whether padding changes what stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Model types whose layers take positions and pass `row` on to their attention (`raycase.encoder.attention`), and whose
# layers are known one by one. All others go in padded batches, and say themselves what their layers' states are.
KNOWN = ("bert", "roberta", "xlm-roberta", "llama", "mistral", "qwen2", "qwen3")
TRIED, PADDED = 12, 5  # tokens of a trial; of them padding in its second text


def is_known(config: PretrainedConfig) -> bool:
    """Whether the layers of this model are known one by one."""
    return config.model_type in KNOWN


def class_of(config: PretrainedConfig) -> Any:
    """What loads the model of a configuration: of T5, only the half that encodes."""
    from transformers import AutoModel, AutoModelForTextEncoding  # take seconds to import

    if type(config) not in AutoModel._model_mapping:
        raise ValueError(f"no model of texts alone: {config.model_type}")
    found = AutoModel._model_mapping[type(config)]
    kinds = found if isinstance(found, tuple) else (found,)
    halved = any(map(_has_decoder, kinds)) and type(config) in AutoModelForTextEncoding._model_mapping
    return AutoModelForTextEncoding if halved else AutoModel


def without_weights(config: PretrainedConfig) -> PreTrainedModel:
    """The encoder of a configuration, without memory for its weights. Raises ValueError where there is none."""
    return encoder_half(_whole(config))


def _whole(config: PretrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        whole: PreTrainedModel = class_of(config).from_config(config)
    return whole


def _has_decoder(kind: type[PreTrainedModel]) -> bool:
    return "decoder_input_ids" in signature(kind.forward).parameters


def has_decoder(config: PretrainedConfig) -> bool:
    """Whether a model of this configuration has a decoder beside the half that encodes, which alone is read."""
    return _has_decoder(type(_whole(config)))


def encoder_half(model: PreTrainedModel) -> PreTrainedModel:
    """The encoder of a model that has a decoder, too, as BART; else the model."""
    half: PreTrainedModel = model.get_encoder() if _has_decoder(type(model)) else model
    return half


def save_half(model: PreTrainedModel, folder: Path) -> None:
    """Save a model as `class_of` loads it: an encoder half under the names that it has in the whole."""
    weights = None
    if has_decoder(model.config):
        weights = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights, max_shard_size="1000GB")  # one file, whose name is known


def is_causal(model: PreTrainedModel) -> bool:
    """Whether its tokens attend to those before them only."""
    return bool(getattr(model.config, "is_causal", True)) and any(
        getattr(m, "is_causal", False) for m in model.modules()
    )


def attention_of(model: PreTrainedModel) -> str:
    """PyTorch's attention where the model supports it, else its own code."""
    return "sdpa" if model._supports_sdpa else "eager"


def set_for_inference(config: PretrainedConfig, *, causal: bool) -> None:
    """Without a cache of keys and values; where a decoder is to be read in both directions, without its window, which
    would hide the far end of a text. Encoders that were trained with windows keep them."""
    config.use_cache = False
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird's: random blocks, other ones in each batch
        config.attention_type = "original_full"
    if not causal and is_causal(without_weights(config)):
        config.is_causal = False
        config.sliding_window = None


def layers_of(model: PreTrainedModel, taken: int) -> list[nn.Module]:
    """Its layers, first to last, but for those `taken` out of it; none where it has no list of them."""
    wanted = int(model.config.num_hidden_layers) - taken
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == wanted)
    return list(next(lists, ()))


@torch.inference_mode()
def padding_is_seen(model: PreTrainedModel) -> bool:
    """Whether states depend on the padding behind them, as convolutions over tokens have it: whether they change with
    the tokens that are masked.

    Raises ValueError for what gives no state of the hidden size for each token, and any error of the model.
    """
    found, others = padded_output(model).last_hidden_state, padded_output(model, other=True).last_hidden_state
    if found.shape != (2, TRIED, model.config.hidden_size):
        raise ValueError(f"states of the shape {tuple(found.shape)} for 2 texts of {TRIED} tokens")
    return not (torch.equal(found[0], others[0]) and torch.equal(found[1, :-PADDED], others[1, :-PADDED]))


def padded_output(model: PreTrainedModel, *, other: bool = False, **options: Any) -> Any:
    """What a model gives for two short texts, the second of them padded: with the padding token, or any `other`."""
    pad = model.config.pad_token_id or 0
    some = [i for i in range(min(TRIED, model.config.vocab_size)) if i != pad]
    ids_BT = torch.tensor([[some[(n + k * k) % len(some)] for k in range(TRIED)] for n in range(2)])
    keep_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    keep_BT[1, -PADDED:] = False
    ids_BT = ids_BT.masked_fill(~keep_BT, some[-1] if other else pad)
    return model(input_ids=ids_BT.to(model.device), attention_mask=keep_BT.long().to(model.device), **options)


def run_by_length(model: PreTrainedModel) -> None:
    """Make a model run the texts of each length by themselves, so that none has padding."""
    forward = model.forward

    def apart(*, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> BaseModelOutput:
        if attention_mask is None:
            output: BaseModelOutput = forward(input_ids=input_ids, **options)
            return output
        lengths_B, longest = attention_mask.sum(1), input_ids.shape[1]
        order, parts = [], []
        for length in lengths_B.unique().tolist():
            order.append((lengths_B == length).nonzero()[:, 0])
            part = {name: value[order[-1], :length] for name, value in options.items() if isinstance(value, Tensor)}
            parts.append(forward(input_ids=input_ids[order[-1], :length], **options | part))
        back = torch.cat(order).argsort()

        def joined(states: Sequence[Tensor]) -> Tensor:
            return torch.cat([F.pad(s, (0, 0, 0, longest - s.shape[1])) for s in states])[back]

        layers = [part.hidden_states for part in parts if part.hidden_states is not None]
        return BaseModelOutput(
            last_hidden_state=joined([part.last_hidden_state for part in parts]),
            hidden_states=tuple(map(joined, zip(*layers, strict=True))) if layers else None,
        )

    model.forward = apart
