"""One paper, one module; `resolve` and `load` find the module that a name or a saved folder asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raycase.data.fetch import fetch, is_remote
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import parse_views
from raycase.errors import RequestError
from raycase.systems import bi_encoder, case, cross_encoder, csr, dualcse, lora, mixsp, sentence_encoder, tri_encoder
from raycase.systems.contracts import SystemConfig
from raycase.systems.model_folder import read_folder

Choice = TypeVar("Choice", bound=StrEnum)
TUNED = (
    bi_encoder.BiEncoderConfig,
    tri_encoder.TriEncoderConfig,
    cross_encoder.CrossEncoderConfig,
    sentence_encoder.SentenceEncoderConfig,
    csr.CsrConfig,
    dualcse.DualCseConfig,
    lora.LoraConfig,
    mixsp.MixSpConfig,
)
# What a saved folder's `system` names -> what reads its `raycase.json`.
SYSTEMS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    case.SYSTEM: case.resolve_folder,
    **{kind.SYSTEM: partial(read_folder, kind) for kind in TUNED},
}


def resolve(
    model: str = "minilm",
    *,
    prompt: str | None = None,
    pooling: Pooling | str | None = None,
    subtract: bool | None = None,
) -> SystemConfig:
    """What `model` is, without loading weights: a name of the table, a Hugging Face id, or a model folder, here or on
    object storage.

    A saved folder fixes prompt, pooling and subtraction. Raises RequestError for an unknown model, an unreadable
    folder, and a choice that contradicts the folder.
    """
    if prompt is not None:
        parse_views(prompt)
    pooling = None if pooling is None else _choice(Pooling, pooling, "pooling")
    folder = fetch(model, large=False) if is_remote(model) else Path(model).absolute()
    saved = folder / "raycase.json"
    if not saved.is_file():
        return case.resolve(model, prompt=prompt, pooling=pooling, subtract=subtract)
    try:
        values = json.loads(saved.read_text(encoding="utf-8"))
        config = SYSTEMS[values["system"]](model if is_remote(model) else str(folder), values)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{saved}: expected what training saved, got {type(error).__name__}: {error}") from error
    asked = {"prompt": prompt, "pooling": pooling, "subtract": subtract}
    fixed = config.fixed
    for flag, value in asked.items():
        if value is not None and value != fixed[flag]:
            if fixed[flag] is None:
                raise RequestError(f"--{flag}: {model} has none to choose, got {value}; leave the flag out")
            raise RequestError(f"--{flag}: {model} was trained with {fixed[flag]}, got {value}; leave the flag out")
    return config


def embeds(config: Any) -> bool:
    """Whether a system gives vectors; else it only scores pairs."""
    return bool(getattr(config, "EMBEDS", True))


def known_conditions(config: Any) -> tuple[str, ...] | None:
    """The only conditions that a system knows, possibly none at all; None: it takes any."""
    return getattr(config, "CONDITIONS", None)


def resolve_encoder(model: str = "minilm", **choices: Any) -> SystemConfig:
    """`resolve` for what needs vectors. Raises RequestError for a model that only scores pairs."""
    config = resolve(model, **choices)
    if not embeds(config):
        raise RequestError(
            f"--model: expected a model that gives vectors, got {model}, which scores pairs; see jobs/evaluate.py"
        )
    return config


def _choice(choices: type[Choice], value: str, flag: str) -> Choice:
    try:
        return choices(value)
    except ValueError as error:
        raise RequestError(f"--{flag}: expected one of {', '.join(choices)}, got {value!r}") from error


def load(
    model: str = "minilm", *, device: Any = None, dtype: Any = None, batch_tokens: int | None = None, **choices: Any
) -> Any:
    """Load what `resolve` finds: an `Encoder` whose `embed(sentences, conditions)` gives (N, dim) float32; or of a
    cross-encoder a `PairScorer`.

    device and dtype are torch's (default: a GPU if there is one, bf16 where the processor has it); `choices` are
    those of `resolve`. Raises RequestError.
    """
    return resolve(model, **choices).load(device=device, dtype=dtype, batch_tokens=batch_tokens)
