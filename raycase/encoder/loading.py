"""From the files of an encoder to a `TextEncoder`: weights, and saving them again."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils import is_accelerate_available
from transformers.utils import logging as library_log
from transformers.utils.hub import cached_file

from raycase.encoder.architecture import (
    attention_of,
    class_of,
    encoder_half,
    is_known,
    padding_is_seen,
    run_by_length,
    save_half,
    set_for_inference,
    without_weights,
)
from raycase.encoder.attention import NAME, register
from raycase.encoder.compiling import try_kernels
from raycase.encoder.engine import TextEncoder
from raycase.encoder.last_layer import LIKE_BERT, LastLayer, positions_of
from raycase.encoder.latent_attention import LatentAttention
from raycase.encoder.model_files import check_weights
from raycase.encoder.pickled_weights import as_safetensors, pickled_files
from raycase.encoder.pooling import Pooling
from raycase.encoder.published import load_after, save_after
from raycase.encoder.sizes import check_sizes
from raycase.encoder.sources import (
    encoder_errors,
    load_config,
    load_tokenizer,
    pinned_commit,
    published_tokenizer,
    settings_of,
    types_around,
    weights_folder,
    weights_identity,
)
from raycase.encoder.table import EncoderSpec
from raycase.encoder.throughput import is_matrix
from raycase.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


log = logging.getLogger(__name__)
BATCH_TOKENS_GPU, BATCH_TOKENS_CPU = 32768, 4096
# Tokens times hidden size of a padded batch on a CPU: of more, what a layer makes leaves the processor's cache
# (`results/mpnet.md`). Large models still need tokens enough for what it costs to read their weights.
BATCH_NUMBERS_CPU, LEAST_TOKENS_CPU = 3 * 2**18, 512


def load_encoder(
    spec: EncoderSpec,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    batch_tokens: int | None = None,
    unpadded: bool | None = None,
    adapt: Callable[[PreTrainedModel], None] | None = None,
) -> TextEncoder:
    """Load the encoder of a row of the table: on a GPU if there is one, in bf16 where that is faster.

    `unpadded` (default: on a GPU) forbids padded batches (`raycase.encoder.engine`); `adapt` changes the library's
    model once it is loaded. Raises RequestError where weights, tokenizer, pooling or length do not fit the
    row.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = device.type == "cuda"
    dtype = dtype or (torch.bfloat16 if bf16_is_faster(device) else torch.float32)
    unpadded = on_gpu if unpadded is None else unpadded
    config = load_config(spec.source)
    with encoder_errors(f"a readable encoder at {spec.source}"):
        set_for_inference(config, causal=spec.causal)
    known = is_known(config)
    in_rows = known and (unpadded or spec.causal)
    model, latent = _load_weights(spec, config, device, dtype, in_rows=in_rows)
    check_sizes(model, spec.source, spec.max_tokens)
    if adapt is not None:
        adapt(model)
    model = model.to(device).eval()
    pooler = _take_pooler(model, spec)
    if not known:
        try:  # a model that nobody may have run; where it sees padding, each length runs by itself
            with encoder_errors(f"a model that encodes texts, as {config.model_type} at {spec.source}"):
                if padding_is_seen(model):
                    run_by_length(model)
        except RequestError as error:
            if dtype is torch.float32:
                raise
            log.warning("%s is computed in float32, for it does not run in %s: %s", spec.source, dtype, error)
            del model  # both would not fit where one just does
            options: dict[str, Any] = {"batch_tokens": batch_tokens, "unpadded": unpadded, "adapt": adapt}
            return load_encoder(spec, device=device, dtype=torch.float32, **options)
    if not any(is_matrix(name, weight) for name, weight in model.named_parameters()):
        raise RequestError(f"--model: expected an encoder of linear layers, got a {config.model_type}, without")
    types = types_around(spec) if "token_type_ids" in signature(model.forward).parameters else None
    if types is not None and known:
        raise RequestError(
            f"{spec.source}: expected a tokenizer that gives the tokens of a text type 0, as {config.model_type} was "
            "trained, got others; remove the types from its tokenizer.json"
        )
    encoder = TextEncoder(
        spec=spec,
        model=model,
        types=types,
        tokenize=load_tokenizer(spec),
        latent=latent,
        pooler=pooler,
        after=_load_after(spec, device),
        last_layer=None if in_rows else _take_last_layer(model),
        batch_tokens=batch_tokens or _batch_tokens(config, on_gpu=on_gpu, in_rows=in_rows),
        unpadded=unpadded,
    )
    try_kernels(encoder)
    return encoder


def _batch_tokens(config: PretrainedConfig, *, on_gpu: bool, in_rows: bool) -> int:
    if on_gpu:
        return BATCH_TOKENS_GPU
    if in_rows:  # they share prefixes, the more the longer they are
        return BATCH_TOKENS_CPU
    return min(BATCH_TOKENS_CPU, max(LEAST_TOKENS_CPU, BATCH_NUMBERS_CPU // config.hidden_size))


def bf16_is_faster(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # without AMX: twice as fast on AMD's EPYC, half as fast on an Intel Xeon (results/embed_throughput.md)
    return torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and _made_by_amd())


@cache
def _made_by_amd() -> bool:
    described = Path("/proc/cpuinfo")
    return described.exists() and "AuthenticAMD" in described.read_text(encoding="utf-8", errors="replace")


def _load_weights(
    spec: EncoderSpec, config: PretrainedConfig, device: torch.device, dtype: torch.dtype, *, in_rows: bool
) -> tuple[PreTrainedModel, LatentAttention | None]:
    """The library's model, and NV-Embed's latent attention where the row pools with it."""
    from transformers import MistralModel  # takes seconds to import, and is not needed without weights

    register()
    folder = weights_folder(spec.source, large=True)
    options: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "use_safetensors": True,
    }
    if is_accelerate_available():  # loads straight to the device; without it, weights go through the CPU's memory
        options["device_map"] = {"": device}
    with encoder_errors(f"readable weights at {spec.source}"):
        options["attn_implementation"] = NAME if in_rows else attention_of(without_weights(config))
        pinned = pinned_commit(spec.source)
        check_weights(folder, pinned)
        if files := pickled_files(folder, pinned):
            folder, pinned = str(as_safetensors(files, weights_identity(spec.source))), {}
        options |= pinned
        if Pooling.LATENT not in spec.pooling:
            kind = class_of(config)
            return encoder_half(_load_all(kind, folder, spec, trust_remote_code=False, **options)), None
        model = _load_all(MistralModel, folder, spec, key_mapping={r"^embedding_model\.": ""}, **options)
        return model, _load_latent(folder, config).to(device, dtype).eval()


def _take_pooler(model: PreTrainedModel, spec: EncoderSpec) -> torch.nn.Module | None:
    """Take the pooler out of the model, which would run it for every batch. Raises RequestError where it is needed."""
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = torch.nn.Identity()  # some models call it whether there is one or not
    if spec.pooling[0] is Pooling.POOLER and not (pooler and model.config.model_type in LIKE_BERT):
        raise RequestError(f"--pooling pooler: expected one of {', '.join(LIKE_BERT)}, got {model.config.model_type}")
    return pooler


def _load_after(spec: EncoderSpec, device: torch.device) -> torch.nn.Module | None:
    """The modules behind the pooling of a sentence-transformers model, in float32."""
    if spec.published is None or not spec.published.after:
        return None
    with encoder_errors(f"readable weights at {spec.source}"):
        return load_after(settings_of(spec.source), spec.published).to(device)


def _take_last_layer(model: PreTrainedModel) -> LastLayer | None:
    """Take the last layer out of a BERT-like model, to compute it for the pooled tokens only; None for other models."""
    if model.config.model_type not in LIKE_BERT:
        return None
    *layers, last = model.encoder.layer
    model.encoder.layer = torch.nn.ModuleList(layers)
    return LastLayer(last, positions_of(model)).to(model.device).eval()


def save_encoder(model: PreTrainedModel, spec: EncoderSpec, folder: Path) -> None:
    """Save a model in the Hugging Face layout, with the tokenizer of its row and what follows its pooling."""
    save_half(model, folder)
    published_tokenizer(spec.source).save_pretrained(folder)
    if spec.published is not None:
        save_after(settings_of(spec.source), spec.published, folder)


def whole_model(encoder: TextEncoder) -> PreTrainedModel:
    """The library's model with its last layer and pooler put back. The encoder must not be used afterwards."""
    if encoder.last_layer is not None:
        encoder.model.encoder.layer.append(encoder.last_layer.layer)
        encoder.last_layer = None
    if encoder.pooler is not None:
        encoder.model.pooler, encoder.pooler = encoder.pooler, None
    return encoder.model


def _load_all(kind: Any, folder: str, spec: EncoderSpec, **options: Any) -> PreTrainedModel:
    """Load a model. Raises ValueError for missing weights, which transformers would initialise at random.

    A missing pooler is an error only where the row pools with it: few encoders have one.
    """
    with _quietly():
        model, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    optional = ("decoder.",) if spec.pooling[0] is Pooling.POOLER else ("decoder.", "pooler.")
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(optional))
    if missing:
        raise ValueError(f"no {missing[0]} ({len(missing)} weights missing)")
    if unused := [name for name in sorted(info["unexpected_keys"]) if _is_of_a_layer(name, model)]:
        lacking = f"a {model.config.model_type} of transformers"
        raise ValueError(f"{unused[0]} ({len(unused)} weights of layers that {lacking} lacks)")
    if any(name.startswith("pooler.") for name in info["missing_keys"]):
        model.pooler = torch.nn.Identity()  # its weights are random
    return model


def _is_of_a_layer(name: str, model: PreTrainedModel) -> bool:
    """Whether a weight that was not loaded stands in the layers of a model, or in a layer behind them: it would have
    changed the vectors. Tables that old versions saved, which follow from the configuration, do not count."""
    if re.search(
        r"(inv_freq|cos_cached|sin_cached|masked_bias|causal_mask|position_ids|attn\.bias|attention\.bias)$", name
    ):
        return False
    lists = tuple(f"{n}." for n, part in model.named_modules() if isinstance(part, torch.nn.ModuleList))
    name = name.removeprefix(f"{model.base_model_prefix}.")
    return name.startswith(lists)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars and its report, all of which is checked here."""
    bars, level = library_log.is_progress_bar_enabled(), library_log.get_verbosity()
    library_log.disable_progress_bar()
    library_log.set_verbosity_error()
    try:
        yield
    finally:
        library_log.set_verbosity(level)
        if bars:
            library_log.enable_progress_bar()


def _load_latent(folder: str, config: PretrainedConfig) -> LatentAttention:
    """NV-Embed's latent attention: the weights named `latent_attention_model.*`, from whichever shards hold them."""
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
