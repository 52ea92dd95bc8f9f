"""From the files of an encoder to a `TextEncoder`: weights, adapters, and saving them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils import is_accelerate_available
from transformers.utils.hub import cached_file

from raycase.encoder.attention import NAME, register
from raycase.encoder.engine import TextEncoder
from raycase.encoder.last_layer import BERT_LAYERS, BertLastLayer
from raycase.encoder.latent_attention import LatentAttention
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import load_config, load_tokenizer, pinned_commit, published_tokenizer, weights_folder
from raycase.encoder.table import EncoderSpec
from raycase.errors import RequestError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def bf16_is_native(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


# Model types whose layers take positions and hand `row` on to their attention (`raycase.encoder.attention`).
ROW_MODELS = ("bert", "roberta", "xlm-roberta", "llama", "mistral", "qwen2", "qwen3")


def load_encoder(
    spec: EncoderSpec,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    batch_tokens: int | None = None,
    unpadded: bool | None = None,
    adapt: Callable[[PreTrainedModel], None] | None = None,
) -> TextEncoder:
    """Load the weights of a row: on a GPU if there is one, in bf16 where the processor has it.

    `unpadded` (default: on a GPU) lets no batch be padded (`raycase.encoder.engine`); `adapt` changes the
    library's model as it was loaded. Raises RequestError where weights, tokenizer or pooling do not fit the row.
    """
    from transformers import AutoModel, MistralModel  # take seconds to import, and are not needed without weights

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or (torch.bfloat16 if bf16_is_native(place) else torch.float32)
    folder = weights_folder(spec.source, large=True)
    config = load_config(spec.source)
    config.use_cache = False
    if not spec.causal:  # decoders read both ways; their window would cut the text off, as in no published encoder
        config.is_causal = False
        config.sliding_window = None
    latent: LatentAttention | None = None
    unpadded = place.type == "cuda" if unpadded is None else unpadded
    in_rows = config.model_type in ROW_MODELS and (unpadded or spec.causal)
    register()
    options: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "attn_implementation": NAME if in_rows else "sdpa",
        "use_safetensors": True,
    }
    options |= pinned_commit(spec.source)
    if is_accelerate_available():  # straight to the device; without it, by way of the CPU's memory
        options["device_map"] = {"": place}
    try:
        if Pooling.LATENT in spec.pooling:
            model = _load_all(MistralModel, folder, spec, key_mapping={r"^embedding_model\.": ""}, **options)
            latent = _load_latent(folder, config).to(place, dtype).eval()
        else:
            model = _load_all(AutoModel, folder, spec, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RequestError(f"--model: expected readable weights at {spec.source}, got: {first_line(error)}") from error
    if spec.adapter is not None:
        model = merge_adapter(model, weights_folder(spec.adapter, large=True))
    if adapt is not None:
        adapt(model)
    model = model.to(place).eval()
    pooler, model.pooler = getattr(model, "pooler", None), None  # not computed for every batch
    if spec.pooling[0] is Pooling.POOLER and not (pooler and config.model_type in BERT_LAYERS):
        raise RequestError(f"--pooling pooler: expected one of {', '.join(BERT_LAYERS)}, got {config.model_type}")
    last_layer: BertLastLayer | None = None
    if config.model_type in BERT_LAYERS and not in_rows:
        *layers, last = model.encoder.layer
        model.encoder.layer = torch.nn.ModuleList(layers)
        last_layer = BertLastLayer(last).to(place).eval()
    encoder = TextEncoder(
        spec=spec,
        model=model,
        tokenize=load_tokenizer(spec),
        latent=latent,
        last_layer=last_layer,
        pooler=pooler,
        batch_tokens=batch_tokens or (32768 if place.type == "cuda" else 4096),
        unpadded=unpadded,
    )
    encoder.try_flex()
    return encoder


def save_encoder(model: PreTrainedModel, source: str, folder: Path) -> None:
    """A model in the Hugging Face layout, with the tokenizer of the encoder that it was made from."""
    model.save_pretrained(folder)
    published_tokenizer(source).save_pretrained(folder)


def whole_model(encoder: TextEncoder) -> PreTrainedModel:
    """The library's model with what was taken out of it put back; the encoder is not to be used any more."""
    if encoder.last_layer is not None:
        encoder.model.encoder.layer.append(encoder.last_layer.layer)
        encoder.last_layer = None
    if encoder.pooler is not None:
        encoder.model.pooler, encoder.pooler = encoder.pooler, None
    return encoder.model


def merge_adapter(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """A LoRA adapter added to the weights. Raises RequestError where the two do not fit."""
    peft = import_peft()
    try:
        adapted = peft.PeftModel.from_pretrained(model, folder)
        found = peft.load_peft_weights(folder, device="cpu")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RequestError(f"--model: expected a readable adapter in {folder}, got: {first_line(error)}") from error
    held = peft.get_peft_model_state_dict(adapted)
    if found.keys() != held.keys():
        raise RequestError(f"--model: expected an adapter of {len(held)} weights in {folder}, got {len(found)} others")
    return adapted.merge_and_unload()


def import_peft() -> Any:
    """The library of adapters. Raises RequestError where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise RequestError("LoRA: expected the package peft, got none; pip install 'raycase[lora]'") from error
    return peft


def _load_all(kind: Any, folder: str, spec: EncoderSpec, **options: Any) -> PreTrainedModel:
    """Load every weight; transformers itself would fill in what is missing at random.

    Few encoders have a pooler, and it is needed where it is chosen alone.
    """
    model, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    unused = () if spec.pooling[0] is Pooling.POOLER else ("pooler.",)
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(unused))
    if missing:
        raise ValueError(f"no {missing[0]} ({len(missing)} weights missing)")
    if info["missing_keys"]:
        model.pooler = None  # which was made up
    return model


def _load_latent(folder: str, config: PretrainedConfig) -> LatentAttention:
    """The weights named `latent_attention_model.*`, from whichever shards hold them."""

    root = Path(folder)
    if not root.is_dir():
        root = Path(cached_file(folder, "model.safetensors.index.json", **pinned_commit(folder))).parent
    prefix = "latent_attention_model."
    weights: dict[str, Tensor] = {}
    for shard in sorted(root.glob("*.safetensors")):
        with safe_open(shard, "pt") as handle:
            names = [k for k in handle.keys() if k.startswith(prefix)]  # noqa: SIM118 (not a dict)
            weights |= {k.removeprefix(prefix): handle.get_tensor(k) for k in names}
    values = config.latent_attention
    latent = LatentAttention(
        dim=values["hidden_dim"],
        latents=values["num_latents_value"],
        heads=values["num_cross_heads"],
        head_dim=values["cross_dim_head"],
    )
    latent.load_state_dict(weights)
    return latent
