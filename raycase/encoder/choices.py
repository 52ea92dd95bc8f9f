"""From a name and choices to a row of the table of encoders, or to one that is made for an encoder outside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from raycase.encoder.library_files import read_layout, read_published
from raycase.encoder.loading import class_of
from raycase.encoder.model_files import INSIDE, is_remote
from raycase.encoder.pooling import LATENT_POOLINGS, OVER_A_SPAN, Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart
from raycase.encoder.sources import encoder_errors, library_config, published_tokenizer
from raycase.encoder.table import ENCODERS, EncoderSpec, Published
from raycase.errors import RequestError
from raycase.names import PromptStyle

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MOST_TOKENS = 512  # of a prompt, for encoders without any length
POSITIONS = ("position_embeddings", "embed_positions", "wpe")  # names of tables of positions, of BERT, OPT and GPT-2
UNLIMITED = 10**9  # a tokenizer without a length gives a larger number than this


def find_encoder(
    name: str, *, prompt: str | None = None, pooling: Pooling | None = None, own: OwnPrompt | None = None
) -> EncoderSpec:
    """The row of the table for `name`, or a row made for a Hugging Face id or a model folder, with the choices applied.

    The chosen pooling comes first in the row. `own` is the view `template` of the prompt, by default its only one;
    without a base template, the row subtracts nothing by default. Raises RequestError for an unknown name, a pooling
    that the encoder does not have, an encoder outside the table without a pooling, chosen or saved by
    sentence-transformers, and choices that contradict each other.
    """
    prompt = prompt or (PromptStyle.TEMPLATE if own else None)
    spec = ENCODERS.get(name)
    if own and own.pool:
        pooling = _pooling_over(own.pool, pooling, spec.pooling if spec else None, name)
    if spec is None and prompt is None:
        _check_place(name)
        raise RequestError(f"--model: {name} is not in the table of encoders; pass --prompt")
    spec = _with_pooling(name, spec or _spec_outside_table(name, prompt, pooling), pooling)
    if own is not None:
        default = {Pooling.LAST: PooledPart.LAST} | dict.fromkeys(OVER_A_SPAN, PooledPart.CONDITION)
        own = replace(own, pool=own.pool or default.get(spec.pooling[0]))
        spec = replace(spec, own=own, subtract=spec.subtract and own.base_template is not None)
    return replace(spec, prompt=prompt or spec.prompt)


def find_unprompted(name: str, *, pooling: Pooling | None = None) -> EncoderSpec:
    """`find_encoder` for systems that encode each text by itself. An encoder outside the table gives f(s) as
    sentence-transformers does."""
    spec = ENCODERS.get(name) or _spec_outside_table(name, None, pooling)
    return replace(_with_pooling(name, spec, pooling), prompt=PromptStyle.CONCAT_SC)  # not used


def _with_pooling(name: str, spec: EncoderSpec, pooling: Pooling | None) -> EncoderSpec:
    """The row with this pooling first. Raises RequestError for one that the encoder does not have."""
    pooling = pooling or spec.pooling[0]
    if pooling not in spec.pooling:
        raise RequestError(f"--pooling: expected one of {', '.join(spec.pooling)} for {name}, got {pooling}")
    return replace(spec, pooling=(pooling, *(p for p in spec.pooling if p is not pooling)))


def _pooling_over(
    pool: PooledPart, pooling: Pooling | None, available: tuple[Pooling, ...] | None, name: str
) -> Pooling:
    """The pooling that reads these tokens: the chosen one, else the encoder's first. Raises RequestError."""
    fitting = {PooledPart.LAST: (Pooling.LAST,), PooledPart.SENTENCE: (Pooling.MEAN, Pooling.LATENT)}.get(
        pool, OVER_A_SPAN
    )
    found = next((p for p in ([pooling] if pooling else available or fitting) if p in fitting), None)
    if found is None:
        wanted, got = " or ".join(fitting), f"--pooling {pooling}; leave one out" if pooling else name
        raise RequestError(f"--prompt: pool {pool}: expected an encoder with the pooling {wanted}, got {got}")
    return found


def _check_place(name: str) -> None:
    """Raise RequestError for a name that is no Hugging Face id, folder or URI."""
    if is_remote(name) or Path(name).is_dir():
        return
    if "/" not in name:
        raise RequestError(
            f"--model: expected one of {', '.join([*INSIDE, *ENCODERS])}, a Hugging Face id, or a model folder here or "
            f"on object storage, got {name!r}; models of sentence-transformers have ids like sentence-transformers/NAME"
        )
    if name.startswith((".", "/", "~")) or name.split("@")[0].count("/") > 1:
        raise RequestError(f"--model: expected a model folder, got {name!r}, which does not exist")


def _spec_outside_table(name: str, prompt: str | None, pooling: Pooling | None) -> EncoderSpec:
    """The row of a Hugging Face id or a folder: with this pooling, else as sentence-transformers pools it; under a
    prompt, its pooling is over the text, as CASE has it, and there is no default prompt."""
    _check_place(name)
    layout, config = read_layout(name), library_config(name)
    if pooling in LATENT_POOLINGS and not hasattr(config, "latent_attention"):
        raise RequestError(f"--pooling {pooling}: expected an NV-Embed, got a {config.model_type} at {name}")
    tokenizer = published_tokenizer(name)
    with encoder_errors(f"a readable encoder at {name}"):
        model = without_weights(config)
        positions = getattr(config, "max_position_embeddings", None) or 0  # as sentence-transformers reads it
        most = min(int(tokenizer.model_max_length), positions if positions > 0 else UNLIMITED)
        most = (layout and layout.max_tokens) or most
    published = None
    if layout and prompt is None:
        _check_alike(name, layout.prompt, tokenizer)
    if layout and pooling is None:
        published = read_published(name, layout, config.hidden_size, tokenizer)
    elif layout and pooling and layout.prompt and prompt is None:
        published = Published(pooling=(pooling,), after=(), dim=config.hidden_size, prompt=layout.prompt)
    if prompt is not None and pooling is None:
        if published is None or published.by_library or published.dim != config.hidden_size:
            raise RequestError(
                f"--prompt: {name} is not in the table of encoders, and was not saved by sentence-transformers with "
                "one pooling alone; pass --pooling beside it, or leave --prompt out"
            )
        [pooling], published = published.pooling, None
        pooling = Pooling.MEAN if pooling is Pooling.MEAN_ALL else pooling
    causal = is_causal(model)
    return EncoderSpec(
        source=str(Path(name).absolute()) if Path(name).is_dir() else name,
        prompt=prompt or PromptStyle.CONCAT_SC,
        pooling=(pooling or (published.pooling[0] if published else _default_pooling(name, config, causal)),),
        causal=causal,
        max_tokens=int(min(most if most < UNLIMITED else MOST_TOKENS, learned_positions(model))),
        published=published,
        lower_case=layout is not None and layout.lower_case,
    )


def _default_pooling(name: str, config: PretrainedConfig, causal: bool) -> Pooling:
    """What sentence-transformers takes for an encoder that it did not save. Raises RequestError for a cross-encoder."""
    saved = next(iter(config.architectures or ()), "")
    if saved.endswith("ForSequenceClassification") and config.num_labels == 1:
        raise RequestError(f"--model: expected an encoder, got {name}, a cross-encoder: it scores pairs of texts")
    return Pooling.LAST if saved.endswith("ForCausalLM") and causal else Pooling.MEAN_ALL


def _check_alike(name: str, prompt: str, tokenizer: Any) -> None:
    """Raise RequestError where the library cuts a text elsewhere, or reads tokens in a prompt that are text here."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special and token.content in prompt]
    if special or tokenizer.truncation_side != "right":
        got = f"{special[0]} in the default prompt" if special else "one that cuts texts at their beginning"
        raise RequestError(f"--model: expected a tokenizer that reads as raycase does at {name}, got {got}")


def without_weights(config: PretrainedConfig) -> PreTrainedModel:
    """The encoder of a configuration, without memory for its weights. Raises ValueError where there is none."""
    with torch.device("meta"):
        model: PreTrainedModel = class_of(config).from_config(config)
    return model


def is_causal(model: PreTrainedModel) -> bool:
    """Whether its tokens attend to those before them only."""
    has_causal = any(getattr(m, "is_causal", False) for m in model.modules())
    return has_causal and bool(getattr(model.config, "is_causal", True))


def learned_positions(model: PreTrainedModel) -> float:
    """How many tokens a prompt may have for each to have its own weights; infinite where positions are computed.

    RoBERTa's begin after the padding's, OPT's after two that are not used.
    """
    tables = [m for name, m in model.named_modules() if name.split(".")[-1] in POSITIONS and hasattr(m, "weight")]
    padding = [getattr(table, "padding_idx", None) for table in tables]
    unused = [max(0 if i is None else i + 1, getattr(t, "offset", 0)) for i, t in zip(padding, tables, strict=True)]
    return min((len(t.weight) - n for t, n in zip(tables, unused, strict=True)), default=float("inf"))
