"""From the files of an encoder to a `TextEncoder`: weights, and what is compiled for them."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import Tensor, nn

from raycase.encoder.attention import DECODERS, NAME, SHORT, register
from raycase.encoder.bert import LIKE_BERT, LastLayer, LatentAttention
from raycase.encoder.engine import KNOWN, TextEncoder
from raycase.encoder.model_files import ENCODER_WEIGHTS
from raycase.encoder.on_cpu import ACTIVATIONS, OnCpu
from raycase.encoder.packing import Forest, Row, row_lengths
from raycase.encoder.pooling import LATENT_POOLINGS, Pooling
from raycase.encoder.sources import (
    encoder_errors,
    is_shipped,
    library_config,
    load_config,
    load_tokenizer,
    weights_folder,
)
from raycase.encoder.table import MODULES, EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError, first_line, note
from raycase.io.json_values import loads

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

log = logging.getLogger(__name__)
BATCH_TOKENS_GPU, BATCH_TOKENS_CPU = 32768, 4096
# Tokens times hidden size of a padded batch on a CPU: of more, what a layer makes leaves the processor's cache
# (`results/mpnet.md`). Large models still need tokens enough for what it costs to read their weights.
BATCH_NUMBERS_CPU, LEAST_TOKENS_CPU = 3 * 2**18, 512
PADDED = 5  # tokens of padding in a trial
LEAST_COSINE = 0.99  # of vectors by FlexAttention to those by chunks, in any number format


def load_encoder(
    spec: EncoderSpec,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    batch_tokens: int | None = None,
    output_dtype: torch.dtype = torch.float32,
    adapt: Callable[[PreTrainedModel], None] | None = None,
    by_library: bool = False,
) -> TextEncoder:
    """Load the encoder of a row of the table: on a GPU if there is one, in bf16 where that is faster.

    `adapt` changes the library's model once it is loaded. On a processor, BERT and its like are `OnCpu` unless they are
    to be `by_library`, as for a gradient.
    """
    device = torch.device(device or best_device())
    dtype = dtype or (torch.bfloat16 if bf16_is_faster(device) else torch.float32)
    on_cpu = device.type == "cpu" and adapt is None and not by_library and _by_openvino(load_config(spec.source))
    read_alone = on_cpu and is_shipped(spec.source) and spec.pooling[0] is not Pooling.POOLER  # without the library
    config = load_config(spec.source) if read_alone else library_config(spec.source)
    if dtype is torch.int8 and not on_cpu:
        raise RequestError(
            f"--compute int8: expected {', '.join(LIKE_BERT)} by OpenVINO on a processor, got {config.model_type} by "
            f"{'transformers' if device.type == 'cpu' else device}; leave it out"
        )
    _adjust(config, spec)
    pools = spec.published is not None and spec.published.by_library  # which takes padded states
    in_rows = config.model_type in DECODERS and not pools
    parts: dict[str, Any] = {}
    with encoder_errors(f"readable weights at {spec.source}"):
        if read_alone:
            weights = load_file(Path(weights_folder(spec.source, large=True)) / ENCODER_WEIGHTS)
        else:
            model, parts["latent"] = _load_weights(spec, config, device, torch.float32 if on_cpu else dtype, in_rows)
            if adapt is not None:
                adapt(model)
            model = model.to(device).eval()
            parts["pooler"] = _take_pooler(model, spec)
            weights = {name: weight.numpy() for name, weight in model.state_dict().items()} if on_cpu else {}
            if config.model_type in LIKE_BERT and not on_cpu:
                parts["last_layer"] = _take_last_layer(model)
    tokenize = load_tokenizer(spec)
    expected = f"a model that encodes texts in {dtype}, as {config.model_type} at {spec.source}"
    with encoder_errors(expected):  # a model that nobody may have run
        if on_cpu:
            bf16 = dtype is torch.bfloat16 or (dtype is torch.int8 and bf16_is_faster(device))
            texts = _sample_texts(tokenize) if dtype is torch.int8 else []
            model = OnCpu(config, weights, bf16=bf16, texts=texts)
        equal_lengths = not (on_cpu or config.model_type in KNOWN) and padding_is_seen(model)
        if "token_type_ids" in signature(model.forward).parameters and any(tokenize.tokenizer.encode("a").type_ids):
            raise ValueError("a tokenizer that gives the tokens of a text other types than 0")
        after = LibraryModules(weights_folder(spec.source, large=True)).to(device) if pools else None
    encoder = TextEncoder(
        spec=spec,
        model=model,
        tokenize=tokenize,
        after=after,
        **parts,
        batch_tokens=_batch_tokens(config, device, in_rows) if batch_tokens is None else batch_tokens,
        equal_lengths=equal_lengths,
        output_dtype=output_dtype,
    )
    try_kernels(encoder)
    return encoder


def class_of(config: PretrainedConfig) -> Any:
    """What loads the model of a configuration, of T5 the half that encodes; ValueError for other encoder-decoders."""
    from transformers import AutoModel, AutoModelForTextEncoding  # take seconds to import

    if type(config) in AutoModelForTextEncoding._model_mapping:
        return AutoModelForTextEncoding
    if config.is_encoder_decoder:
        raise ValueError(f"a {config.model_type}, an encoder-decoder")
    return AutoModel


@torch.inference_mode()
def padding_is_seen(model: PreTrainedModel) -> bool:
    """Whether states change with the masked tokens behind them, as convolutions over tokens have it. Raises ValueError
    for what gives no state for each token, and any error of the model."""
    pad = model.config.pad_token_id or 0
    some = [i for i in range(min(12, model.config.vocab_size)) if i != pad]
    ids_BT = torch.tensor([[some[(n + k * k) % len(some)] for k in range(12)] for n in range(2)], device=model.device)
    keep_BT = torch.ones_like(ids_BT)
    keep_BT[1, -PADDED:] = 0
    found, others = (
        model(input_ids=ids_BT.where(keep_BT > 0, padding), attention_mask=keep_BT).last_hidden_state
        for padding in (pad, some[-1])
    )
    if found.ndim != 3 or found.shape[-1] != model.config.hidden_size:
        raise ValueError(f"states of the shape {tuple(found.shape)}")
    return not (torch.equal(found[0], others[0]) and torch.equal(found[1, :-PADDED], others[1, :-PADDED]))


@cache
def best_device() -> str:
    """Where models run by default: a GPU of CUDA or ROCm, of Intel (xpu), of Apple (mps), else the CPU."""
    devices = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.backends.mps}
    device = next((name for name, module in devices.items() if module.is_available()), "cpu")
    if device in ("xpu", "mps"):
        note(f"Running on {device}, where raycase is not tested: in float32, without compiled kernels")
    return device


def bf16_is_faster(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32, as far as that is known."""
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    # without AMX: twice as fast on AMD's EPYC, half as fast on an Intel Xeon (results/embed_throughput.md)
    of_amd = torch.cpu._is_avx512_bf16_supported() and b"AuthenticAMD" in Path("/proc/cpuinfo").read_bytes()
    return of_amd or torch.cpu._is_amx_tile_supported()


def _batch_tokens(config: Any, device: torch.device, in_rows: bool) -> int:
    """Tokens of a batch, by default."""
    if device.type == "cuda":
        return BATCH_TOKENS_GPU
    if in_rows:  # which share prefixes, the more the longer they are
        return BATCH_TOKENS_CPU
    return min(BATCH_TOKENS_CPU, max(LEAST_TOKENS_CPU, BATCH_NUMBERS_CPU // config.hidden_size))


def _by_openvino(config: Any) -> bool:
    """Whether `OnCpu` computes what the library's model of this configuration does."""
    decodes = getattr(config, "is_decoder", False)
    return config.model_type in LIKE_BERT and config.hidden_act in ACTIVATIONS and not decodes


def _sample_texts(tokenize: PromptTokenizer) -> list[list[int]]:
    """Ids of texts of three domains, which ship."""
    lines = (files("raycase.sample") / "sentences.csv").read_text(encoding="utf-8").splitlines()
    return [tokenize.tokenizer.encode(row["text"]).ids for row in islice(csv.DictReader(lines), 0, None, 4)]


def _adjust(config: Any, spec: EncoderSpec) -> None:
    """Leave out what an encoder that reads each text once, and whole, does not need."""
    config.use_cache = False  # of keys and values
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird's: random blocks, other ones in each batch
        config.attention_type = "original_full"
    if config.model_type in DECODERS and not spec.causal:
        config.is_causal, config.sliding_window = False, None  # a window would hide the far end of a text


def _load_weights(
    spec: EncoderSpec, config: Any, device: torch.device, dtype: torch.dtype, in_rows: bool
) -> tuple[Any, LatentAttention | None]:
    """The library's model, and NV-Embed's latent attention where the row has it."""
    folder = weights_folder(spec.source, large=True)
    from transformers import MistralModel  # takes seconds to import
    from transformers.utils import is_accelerate_available

    register()
    options: dict[str, Any] = {"config": config, "dtype": dtype, "weights_only": True}
    if in_rows:
        options["attn_implementation"] = NAME
    if is_accelerate_available():  # loads straight to the device; without it, weights go through the CPU's memory
        options["device_map"] = {"": device}
    if spec.pooling[0] not in LATENT_POOLINGS:
        return _load_all(class_of(config), folder, spec, trust_remote_code=False, **options), None
    model = _load_all(MistralModel, folder, spec, key_mapping={r"^embedding_model\.": ""}, **options)
    return model, _load_latent(folder, config).to(device, dtype).eval()


def _take_pooler(model: PreTrainedModel, spec: EncoderSpec) -> torch.nn.Module | None:
    """Take the pooler out of the model, which would run it for every batch."""
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = torch.nn.Identity()  # some models call it whether there is one or not
    if spec.pooling[0] is Pooling.POOLER and not (pooler and model.config.model_type in LIKE_BERT):
        raise RequestError(f"--pooling pooler: expected one of {', '.join(LIKE_BERT)}, got {model.config.model_type}")
    return pooler


def _take_last_layer(model: PreTrainedModel) -> LastLayer:
    """Take the last layer out of a model like BERT."""
    *layers, last = model.encoder.layer
    model.encoder.layer = torch.nn.ModuleList(layers)
    return LastLayer(last, model).to(model.device).eval()


def whole_model(encoder: TextEncoder) -> PreTrainedModel:
    """The library's model with its last layer and pooler put back. The encoder must not be used afterwards."""
    if encoder.last_layer is not None:
        encoder.model.encoder.layer.append(encoder.last_layer.layer)
        encoder.last_layer = None
    if encoder.pooler is not None:
        encoder.model.pooler, encoder.pooler = encoder.pooler, None
    return encoder.model


def _load_all(loader: Any, folder: str, spec: EncoderSpec, **options: Any) -> PreTrainedModel:
    """Load a model, without the library's progress bars and report. Raises ValueError for missing weights, which it
    would initialise at random; few encoders have a pooler, which is missed only where the row pools with it."""
    from transformers.utils import logging as library_log

    bars, level = library_log.is_progress_bar_enabled(), library_log.get_verbosity()
    library_log.disable_progress_bar()
    library_log.set_verbosity_error()
    try:
        model, info = loader.from_pretrained(folder, output_loading_info=True, **options)
    finally:
        library_log.set_verbosity(level)
        if bars:
            library_log.enable_progress_bar()
    optional = ("decoder.",) if spec.pooling[0] is Pooling.POOLER else ("decoder.", "pooler.")
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(optional))
    if missing:
        raise ValueError(f"no {missing[0]} ({len(missing)} weights missing)")
    if any(name.startswith("pooler.") for name in info["missing_keys"]):
        model.pooler = torch.nn.Identity()  # its weights are random
    return model


def _load_latent(folder: str, config: PretrainedConfig) -> LatentAttention:
    """NV-Embed's latent attention: the weights named `latent_attention_model.*`, from whichever shards hold them."""
    prefix = "latent_attention_model."
    weights: dict[str, Tensor] = {}
    for shard in sorted(Path(folder).glob("*.safetensors")):
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


class LibraryModules(nn.Module):
    """The library's modules behind the Transformer: states of whole texts -> f(s), in float32."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from sentence_transformers.util import import_module_class

        self.parts = nn.ModuleList()
        for module in loads((Path(folder) / MODULES).read_bytes())[1:]:
            if Path(path := module["path"]).name != path or path == "..":
                raise ValueError(f"{path!r} in {MODULES}, expected folders beside it")
            of_library: Any = import_module_class(module["type"], model_name_or_path=folder, trust_remote_code=False)
            self.parts.append(of_library.load(folder, subfolder=path, local_files_only=True).float())
        self.eval()

    def forward(self, hidden_BTD: Tensor, real_BT: Tensor, prompt_tokens: int) -> Tensor:
        """States, which of them are no padding, and how many tokens the prompt has: (B, T, D), (B, T) -> (B, K)."""
        features: dict[str, Any] = {"token_embeddings": hidden_BTD.float(), "attention_mask": real_BT.long()}
        features["prompt_length"] = prompt_tokens
        for part in self.parts:
            features = part(features)
        return features["sentence_embedding"]


# ------------------------------------------------------------------------------------------------------- compiling
# What fails here, for example without a C++ compiler, is left out with a warning.


@torch.inference_mode()
def try_kernels(encoder: TextEncoder) -> None:
    """Leave FlexAttention out where it fails, or gives other vectors than attention in chunks."""
    if not encoder.flex:
        return
    try:
        for trial in list(_trials(encoder)):
            encoder.flex = True
            found = encoder.pool_row(*trial)[1]
            encoder.flex = False
            wanted = encoder.pool_row(*trial)[1]
            if not F.cosine_similarity(found.float(), wanted.float()).min() > LEAST_COSINE:
                raise ValueError("its vectors are not those of attention in chunks")
        encoder.flex = True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise any errors
        encoder.flex = False
        log.warning("FlexAttention does not run here and is not used: %s", first_line(error))


def _trials(encoder: TextEncoder) -> Iterator[tuple[TokenBatch, np.ndarray, Row]]:
    """Prompts, those of a row by index, and the row: of both shapes of blocks and two lengths, each compiled alone."""
    spec = encoder.spec
    for length, tokens in zip(row_lengths(encoder.batch_tokens)[::-1][:2], (2, SHORT), strict=False):
        tokens = min(tokens, length, spec.max_tokens)
        ids = [[(n + k * k) % 12 for k in range(tokens)] for n in range(length // tokens)]
        batch = TokenBatch.of([Tokens(ids=prompt, start=0, end=len(prompt)) for prompt in ids])
        forest = Forest.of(batch.sequences, causal=spec.causal)
        row = forest.lay(forest.cuts(length, encoder.row_length)[0])
        yield batch, row.sequences, row


@torch.inference_mode()
def compile_layers(encoder: TextEncoder) -> None:
    """Compile the layers one by one, so that equal ones compile once: each of the few shapes of rows, or any shape."""
    if isinstance(encoder.model, OnCpu):
        return
    layers = [*encoder.layers, *filter(None, (encoder.last_layer, getattr(encoder.model, "norm", None)))]
    for layer in layers:
        hooks = layer._forward_hooks  # the library's, which take states: they are called as they are
        hooks.update({key: torch._dynamo.disable(hook) for key, hook in hooks.items()})
        layer.compile(dynamic=not encoder.flex)
    try:
        if encoder.flex:
            for trial in _trials(encoder):
                encoder.pool_row(*trial)
            return
        for length in (24, 40):  # so that both dimensions are compiled as dynamic
            sequences = [[n % 7] * (length - n % 5) + [n] for n in range(length)]
            encoder.pool([Tokens(ids=ids, start=0, end=len(ids) - n % 5) for n, ids in enumerate(sequences)])
    except Exception as error:  # the compiler raises any errors
        log.warning("not compiled: %s", first_line(error))
        for layer in layers:
            layer._compiled_call_impl = None
