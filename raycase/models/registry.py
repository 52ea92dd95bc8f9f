"""From a name or a folder to a system: `resolve` finds its configuration, `load` also loads its weights.

What papers add is found by the table of `raycase.papers`, and imported when it is asked for: no room imports a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from raycase.encoder.model_files import DEFAULT_MODEL, INSIDE, MODEL_FILE, SHIPPED, fetch, is_remote, pinned_uri
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt, read_prompt
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError, check_problems, checks_types, expecting, named, note_once, visible
from raycase.io.json_values import loads
from raycase.models import case
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import EmbedderConfig, SentenceEncoderConfig, SystemConfig

MODULES = {"systems": "model", "flags": "train", "tasks": "task"}  # of a paper, by what they add
SYSTEMS: dict[str, type[SystemConfig]] = {  # by `system` in `raycase.json`
    config.SYSTEM: config for config in (case.CaseConfig, ConditionPoolingConfig, SentenceEncoderConfig)
}
_loading = RLock()  # transformers sets torch's default type while it loads, for all threads


def of_papers(what: str) -> dict[str, str]:
    """The names that papers add to one of `MODULES`, each with its paper."""
    papers = import_module("raycase.papers").PAPERS
    return {name: paper for paper, adds in papers.items() for name in getattr(adds, what).split()}


def of_paper(what: str, name: str) -> Any:
    """What a paper adds under this name."""
    module = import_module(f"raycase.papers.{of_papers(what)[name]}.{MODULES[what]}")
    return getattr(module, what.upper())[name]


def find_system(name: str) -> Any:
    """The class of a system's configuration."""
    if name not in (known := [*SYSTEMS, *of_papers("systems")]):
        raise RequestError(f"system: expected one of {', '.join(known)}, got {name!r}")
    return SYSTEMS.get(name) or of_paper("systems", name)


@checks_types
def resolve(
    model: str = DEFAULT_MODEL,
    *,
    prompt: str | Mapping[str, Any] | None = None,
    pooling: Pooling | str | None = None,
    subtract: bool | None = None,
    dim: int | None = None,
) -> SystemConfig:
    """Find a system without loading its weights.

    model: the name of a model that ships; a name of the table of encoders, for zero-shot CASE; a Hugging Face id or an
    encoder's folder, for condition pooling without training, or with a prompt for zero-shot CASE; one of these after
    "condition-pooling:", or another system's name that needs no training, and a colon; or a model folder. Folders are
    local or on object storage. prompt: a name, a file NAME.json with your own template, or what such a file
    holds. A trained model fixes prompt, pooling and subtraction. dim: cut conditional vectors to their first so many
    dimensions. Raises RequestError for an unknown model, an unreadable folder, a choice that contradicts the model or
    another one, and a dimension that the model was not trained with.
    """
    views, own = read_prompt(prompt)
    choices = {"prompt": views, "pooling": pooling and Pooling(pooling), "subtract": subtract, "own": own}
    config = _find(model, choices)
    compared = {
        f"prompt: {field.name}": [getattr(each.get("own"), field.name, None) for each in (choices, config.fixed)]
        for field in fields(OwnPrompt)
    }
    compared |= {name: [choices[name], config.fixed[name]] for name in ("prompt", "pooling", "subtract")}
    for choice, (value, trained) in compared.items():
        if value is not None and value != trained:
            expected = "has none to choose" if trained is None else f"was trained with {visible(trained)}"
            instead = "leave the flag out" + (f", or pass --model {INSIDE[model]}" if model in INSIDE else "")
            raise RequestError(f"--{choice}: {model} {expected}, got {visible(value)}; {instead}")
    if dim is not None and dim not in config.nested:
        known = ", ".join(map(str, config.nested)) or "it has none"
        raise RequestError(
            f"--dim: expected a dimension that {config.name} was trained with ({known}), got {dim}; leave the flag out"
        )
    return replace(config, cut=dim)


def _find(model: str, choices: dict[str, Any]) -> SystemConfig:
    """The whole system of this name, id or folder; a trained one whatever is chosen."""
    systems = {*SYSTEMS, *of_papers("systems")}
    name, _, encoder = model.partition(":")
    if encoder and name in systems and hasattr(system := find_system(name), "untrained"):
        return replace(system.untrained(encoder, choices["pooling"]), name=model)
    folder = SHIPPED.get(model) or (model if is_remote(model) else str(Path(model).absolute()))
    if model not in ENCODERS and (on_hub := pinned_uri(model, MODEL_FILE)):
        model = folder = on_hub
    file = fetch(folder, named=MODEL_FILE) / MODEL_FILE
    if file.is_file():
        with expecting(f"{file}: expected what training saved", OSError, KeyError, TypeError, ValueError, why=named):
            values = loads(file.read_text(encoding="utf-8"))
            config: SystemConfig = find_system(values["system"]).read(folder, values)
        return replace(config, name=model) if model in SHIPPED else config
    if model in systems and model not in ENCODERS:
        raise RequestError(f"--model: expected a model, got the system {model}; `raycase train {model}` makes one")
    if model in ENCODERS or choices["prompt"]:
        return case.resolve(model, **choices)
    untrained = ConditionPoolingConfig.untrained(model, choices["pooling"])
    note_once(
        f"{model}: untrained condition pooling for vectors under conditions; for better ones: raycase train "
        f"condition-pooling --model {model}, or --model {DEFAULT_MODEL}"
    )
    return untrained


def resolve_embedder(model: str = DEFAULT_MODEL, **choices: Any) -> EmbedderConfig:
    """`resolve` for a system that embeds."""
    config = resolve(model, **choices)
    if not isinstance(config, EmbedderConfig):
        raise RequestError(
            f"--model: expected a model that gives vectors, got {model}, which scores pairs; see `raycase evaluate`"
        )
    return config


@checks_types
def load(
    model: str = DEFAULT_MODEL,
    *,
    device: Any = None,
    dtype: Any = None,
    batch_tokens: int | None = None,
    **choices: Any,
) -> Any:
    """Load the system that `resolve` finds by these choices: an `Embedder` or a `Scorer`.

    device, dtype: of torch (default: a GPU if there is one, bf16 where that is faster). Raises RequestError.
    """
    problems = {
        f"batch_tokens: expected at least 1, got {batch_tokens}": batch_tokens is not None and batch_tokens < 1,
        f"dtype: expected one of torch, got {dtype!r}": dtype is not None and not isinstance(dtype, torch.dtype),
    }
    check_problems(problems)
    with expecting("device: expected one of torch", RuntimeError, TypeError):
        torch.device("cpu" if device is None else device)
    with _loading:
        return resolve(model, **choices).load(device=device, dtype=dtype, batch_tokens=batch_tokens)
