"""Model folders on the Hugging Face hub: one commit of a repository, in the hub's own cache of this machine."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download

from raycase.errors import RequestError, first_line

ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
PINNED = re.compile(r"hf://([\w.-]+/[\w.-]+)@([0-9a-f]{40})(?:/(.+))?")  # repository, commit, subfolder
DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(@[^/]+)?/.+")
WEIGHTS = "safetensors"
KINDS = ("json", WEIGHTS, "txt", "model", "jinja", "md", "tsv", "tiktoken", "codes", "spm")  # endings of what is read


@cache
def pinned_uri(model: str, file: str) -> str | None:
    """`hf://owner/name@commit` of a Hugging Face id whose repository has this file; None where it has not, where there
    is no such repository, or where neither the hub nor its cache answers. Whether the cache has an encoder's files says
    nothing: a repository may have both."""
    name, _, revision = model.partition("@")
    if not ID.fullmatch(model) or Path(model).exists():
        return None
    try:
        found = hf_hub_download(name, file, revision=revision or None)
    except (OSError, ValueError):  # every error of the hub is one of these
        return None
    return f"hf://{name}@{Path(found).parent.name}"


def dataset_of(uri: str) -> str | None:
    """The dataset, as owner/name, that a file or folder on the hub is in; None for a place elsewhere."""
    match = DATASET.fullmatch(uri)
    return match and match[1]


def snapshot(uri: str, *, large: bool, named: str = "") -> Path:
    """The folder behind a URI of `pinned_uri`, or a subfolder of it, on this machine: settings and vocabularies, the
    file called `named`, and where `large` the weights. Raises RequestError where it cannot be fetched."""
    match = PINNED.fullmatch(uri)
    assert match is not None
    name, commit, inside = match.groups()
    below = f"{inside}/" if inside else ""
    patterns = [f"{below}*.{kind}" for kind in KINDS if large or kind != WEIGHTS]
    try:
        folder = snapshot_download(
            name, revision=commit, allow_patterns=[*patterns, *([below + named] if named else [])]
        )
    except (OSError, ValueError) as error:
        raise RequestError(f"--model: expected a readable model at {uri}, got: {first_line(error)}") from error
    return Path(folder) / (inside or "")
