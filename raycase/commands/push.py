"""The command push: a model folder on the Hugging Face hub, from which `raycase.load("owner/name")` reads it."""

from dataclasses import dataclass
from typing import Any

import tyro

EXAMPLE = "raycase push runs/pooling owner/name"


@dataclass(frozen=True, kw_only=True)
class PushFlags:
    """Publish a model folder on the Hugging Face hub, with your token (`hf auth login`, or HF_TOKEN)."""

    folder: tyro.conf.Positional[str]
    """What `raycase train` wrote."""
    repository: tyro.conf.Positional[str]
    """owner/name; created if it does not exist."""
    private: bool = False
    """Make a new repository private."""


def push(flags: PushFlags) -> dict[str, Any]:
    """Publish a model folder on the Hugging Face hub."""
    from raycase.models.push import push

    commit = push(flags.folder, flags.repository, private=flags.private)
    model = f"{flags.repository}@{commit}"
    print(f"raycase.load({flags.repository!r}), or this very commit: {model}")
    return {"repository": flags.repository, "commit": commit, "model": model}
