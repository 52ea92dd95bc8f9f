"""From a name and choices to a row of the table of encoders, or to one that is made for an encoder outside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from raycase.data.fetch import INSIDE, is_remote
from raycase.encoder.architecture import has_decoder, is_causal, without_weights
from raycase.encoder.model_files import check_no_adapter
from raycase.encoder.pooling import OVER_A_SPAN, Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart, PromptStyle, parse_views
from raycase.encoder.published import default_prompt, published_length, read_modules, read_published
from raycase.encoder.sizes import learned_positions
from raycase.encoder.sources import encoder_errors, load_config, published_tokenizer, settings_of, weights_folder
from raycase.encoder.table import ENCODERS, NORMALIZE, EncoderSpec, Published
from raycase.errors import RequestError

MOST_TOKENS = 512  # of a prompt, for encoders that say no length at all
READ_HALF = ("longt5", "switch_transformers")  # by sentence-transformers, as T5, whose half has a class of its own
UNLIMITED = 10**9  # a tokenizer that says no length says a larger number than this


def find_encoder(
    name: str, *, prompt: str | None = None, pooling: Pooling | None = None, own: OwnPrompt | None = None
) -> EncoderSpec:
    """The row of the table for `name`, or a row made for a Hugging Face id or a model folder, with the choices applied.

    The chosen pooling comes first in the row. `own` is the view `template` of the prompt, by default its only one;
    without a base template, the row subtracts nothing by default. Raises RequestError for an unknown name, a pooling
    that the encoder does not have, an encoder outside the table without a pooling, chosen or saved by
    sentence-transformers, and choices that contradict each other.
    """
    if own is not None:
        prompt = prompt or PromptStyle.TEMPLATE
    if prompt is not None:
        _check_views(prompt, own)
    spec = ENCODERS.get(name)
    if own and own.pool:
        pooling = _pooling_over(own.pool, pooling, spec.pooling if spec else None, name)
    if spec is None and prompt is None:
        check_no_adapter(_folder_outside_table(name))
        raise RequestError(f"--model: {name} is not in the table of encoders; pass --prompt")
    spec = _with_pooling(name, spec or _spec_outside_table(name, prompt, pooling), pooling)
    if own is not None:
        default = {Pooling.LAST: PooledPart.LAST} | dict.fromkeys(OVER_A_SPAN, PooledPart.CONDITION)
        own = replace(own, pool=own.pool or default.get(spec.pooling[0]))
        spec = replace(spec, own=own, subtract=spec.subtract and own.base_template is not None)
    return replace(spec, prompt=prompt or spec.prompt)


def find_unprompted(name: str, *, pooling: Pooling | None = None) -> EncoderSpec:
    """`find_encoder` for systems that encode each text by itself. An encoder outside the table gives f(s) as
    sentence-transformers saved it, else by the mean over the text."""
    spec = ENCODERS.get(name) or _spec_outside_table(name, None, pooling)
    return replace(_with_pooling(name, spec, pooling), prompt=PromptStyle.CONCAT_SC)  # not used


def _with_pooling(name: str, spec: EncoderSpec, pooling: Pooling | None) -> EncoderSpec:
    """The row with this pooling first. Raises RequestError for one that the encoder does not have."""
    if pooling is None:
        return spec
    if pooling not in spec.pooling:
        raise RequestError(f"--pooling: expected one of {', '.join(spec.pooling)} for {name}, got {pooling}")
    return replace(spec, pooling=(pooling, *(p for p in spec.pooling if p is not pooling)))


def _check_views(prompt: str, own: OwnPrompt | None) -> None:
    """Raises RequestError for views that do not exist. The view `template` and a prompt of one's own go together."""
    reads_own = any(style is PromptStyle.TEMPLATE for style, _ in parse_views(prompt))
    assert reads_own == (own is not None), "read_prompt gives both or neither"


def _pooling_over(
    pool: PooledPart, pooling: Pooling | None, available: tuple[Pooling, ...] | None, name: str
) -> Pooling:
    """The pooling that reads these tokens: the chosen one, else the encoder's first. Raises RequestError."""
    fitting = {PooledPart.LAST: (Pooling.LAST,), PooledPart.SENTENCE: (Pooling.MEAN, Pooling.LATENT)}.get(
        pool, OVER_A_SPAN
    )
    wanted = " or ".join(fitting)
    if pooling is None:
        found = next((p for p in available or fitting if p in fitting), None)
        if found is None:
            raise RequestError(f"--prompt: pool {pool}: expected an encoder with the pooling {wanted}, got {name}")
        return found
    if pooling not in fitting:
        raise RequestError(f"--prompt: pool {pool}: expected --pooling {wanted}, got {pooling}; leave one out")
    return pooling


def _folder_outside_table(name: str) -> str:
    """Where the weights of a Hugging Face id or a folder are. Raises RequestError for a name that is neither."""
    if "/" not in name and not Path(name).is_dir():
        raise RequestError(
            f"--model: expected one of {', '.join([*INSIDE, *ENCODERS])}, a Hugging Face id, or a model folder here or "
            f"on object storage, got {name!r}; of sentence-transformers' own models the id is sentence-transformers/..."
        )
    if (
        (name.startswith((".", "/", "~")) or name.split("@")[0].count("/") > 1)
        and not is_remote(name)
        and not Path(name).is_dir()
    ):
        raise RequestError(f"--model: expected a model folder, got {name!r}, where there is none")
    return weights_folder(name)


def _spec_outside_table(name: str, prompt: str | None, pooling: Pooling | None) -> EncoderSpec:
    """The row of a Hugging Face id or a folder: with this pooling, else as sentence-transformers saved it; under a
    prompt, its pooling is over the text, as CASE has it, and there is no default prompt."""
    _folder_outside_table(name)
    if pooling in (Pooling.LATENT, Pooling.LATENT_END):
        raise RequestError(
            f"--pooling {pooling}: expected NV-Embed's weights (--model nv-embed-v2), got another encoder"
        )
    settings = settings_of(name)
    modules = read_modules(settings)
    config = load_config(name)
    tokenizer = published_tokenizer(name)
    length, lower_case = published_length(settings) if modules else (None, False)
    with encoder_errors(f"a readable encoder at {name}"):
        model = without_weights(config)
        causal = is_causal(model)
        max_tokens = int(min(_most_tokens(length, tokenizer, config), learned_positions(model)))
        if max_tokens < 1:
            raise ValueError(f"room for {max_tokens} tokens")
    published = None
    before = default_prompt(settings) if modules and prompt is None else ""
    if before:
        _check_prompt(name, before, tokenizer, max_tokens)
    if modules and pooling is None:
        tokens_of = partial(_prompt_tokens, tokenizer)
        published = read_published(settings, modules, config.hidden_size, before, tokens_of)
        if prompt is None:
            _check_alike(name, config, tokenizer)
    elif before and pooling is not None:
        published = Published(pooling=(pooling,), after=(), dim=config.hidden_size, prompt=before)
    elif pooling is None and prompt is not None:
        raise RequestError(
            f"--model: {name} is not in the table of encoders, and has no modules.json of sentence-transformers, "
            "which would say its pooling; pass --pooling"
        )
    pooling = pooling or (published.pooling[0] if published else Pooling.MEAN)
    if published and prompt is not None:
        pooling, published = _over_the_text(name, published, config.hidden_size), None
    return EncoderSpec(
        source=str(Path(name).absolute()) if Path(name).is_dir() else name,
        prompt=prompt or PromptStyle.CONCAT_SC,
        pooling=(pooling,),
        causal=causal,
        max_tokens=max_tokens,
        published=published,
        lower_case=lower_case,
    )


def _most_tokens(length: int | None, tokenizer: Any, config: PretrainedConfig) -> int:
    """The published length, else the most tokens by tokenizer and configuration, as sentence-transformers has it."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    said = length or min(int(tokenizer.model_max_length), positions if positions > 0 else UNLIMITED)
    return said if said < UNLIMITED else MOST_TOKENS


def _check_alike(name: str, config: PretrainedConfig, tokenizer: Any) -> None:
    """Raise RequestError for a model of which sentence-transformers reads other states, or another part of a text."""
    got = None
    if config.model_type not in READ_HALF and has_decoder(config):
        got = f"a {config.model_type}, an encoder-decoder of which raycase reads the half that encodes"
    elif tokenizer.truncation_side != "right":
        got = f"truncation_side {tokenizer.truncation_side} in its tokenizer; raycase cuts a long text at its end"
    if got:
        raise RequestError(
            f"--model: expected a model that raycase reads as sentence-transformers does at {name}, got {got}; pass "
            "--pooling for the encoder's own states"
        )


def _check_prompt(name: str, prompt: str, tokenizer: Any, max_tokens: int) -> None:
    """Raise RequestError for a default prompt that leaves no room for a text, or has special tokens, which are text
    in a prompt here and special there."""
    tokens = len(tokenizer(prompt, verbose=False)["input_ids"])
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    special = next((token.content for token in added if token.special and token.content in prompt), None)
    got = None
    if special:
        got = f"{special} in {prompt!r:.80}"
    elif tokens >= max_tokens:
        got = f"{tokens} tokens of at most {max_tokens} in {prompt!r:.80}"
    if got:
        raise RequestError(
            f"--model: expected a default prompt of text alone and with room for a text in {name}, got {got}; pass "
            "--prompt for another one, or take default_prompt_name out of config_sentence_transformers.json"
        )


def _over_the_text(name: str, published: Published, hidden_size: int) -> Pooling:
    """The pooling of a prompt's text that is nearest to the published one. Raises RequestError where none is."""
    [pooling, *others] = published.pooling
    pooling = Pooling.MEAN if pooling is Pooling.MEAN_ALL else pooling
    known = not others and pooling in (Pooling.MEAN, Pooling.CLS, Pooling.LAST)
    if not known or set(published.after) - {NORMALIZE} or published.dim != hidden_size:
        raise RequestError(
            f"--prompt: {name} has more behind its states than one pooling of the text; pass --pooling beside it, or "
            "leave --prompt out"
        )
    return pooling


def _prompt_tokens(tokenizer: Any, prompt: str) -> int:
    """Tokens of a prompt by itself, without a special one behind it: those that sentence-transformers leaves out."""
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)
